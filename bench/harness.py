"""Measuring: interleaved repetitions of a subject and its floors, and figures that judge themselves."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_DISTURBED = 1.3

Sample = Callable[[], Awaitable[float]]


class Unit(StrEnum):
    """What a figure counts."""

    SECONDS = "s"
    BYTES_PER_SECOND = "B/s"
    BYTES = "B"
    PER_SECOND = "/s"
    COUNT = "count"


class Skipped(Exception):
    """This subject cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long the caller is willing to wait."""

    quick: bool

    def times(self, full: int, quick: int) -> int:
        """How often to repeat."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Summary:
    """Repeated measurements of one thing. For a rate, p95 is the slow end: 95 % were faster."""

    p50: float
    p95: float
    count: int
    p10: float

    @property
    def is_disturbed(self) -> bool:
        """The middle is far from the good end: something else used the machine most of the time."""
        return max(self.p50, self.p10) > _DISTURBED * min(self.p50, self.p10)


@dataclass(frozen=True, slots=True)
class Target:
    """A limit for the ratio to the floor, or for the subject itself."""

    limit: float
    is_upper: bool
    of_ratio: bool = True

    def holds(self, value: float) -> bool:
        """Whether the value keeps to the limit."""
        return value <= self.limit if self.is_upper else value >= self.limit


def at_most(limit: float) -> Target:
    """The ratio to the floor may not be higher."""
    return Target(limit, is_upper=True)


def at_least(limit: float) -> Target:
    """The ratio to the floor may not be lower."""
    return Target(limit, is_upper=False)


def value_at_most(limit: float) -> Target:
    """The value itself may not be higher."""
    return Target(limit, is_upper=True, of_ratio=False)


def value_at_least(limit: float) -> Target:
    """The value itself may not be lower."""
    return Target(limit, is_upper=False, of_ratio=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row: what was measured, beside what, and what it should be."""

    name: str
    unit: Unit
    subject: Summary
    floor: Summary | None = None
    floor_name: str = ""
    target: Target | None = None
    facts: dict[str, float | int | str | None] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Subject over floor, both p50."""
        return self.subject.p50 / self.floor.p50 if self.floor and self.floor.p50 else None

    @property
    def is_disturbed(self) -> bool:
        """A ratio of which one side is not to be trusted."""
        return self.subject.is_disturbed or (self.floor is not None and self.floor.is_disturbed)

    @property
    def passed(self) -> bool | None:
        """Whether the target is met; None when there is none, or when noise hides the answer."""
        if self.target is None or self.is_disturbed:
            return None
        value = self.ratio if self.target.of_ratio else self.subject.p50
        return value is not None and self.target.holds(value)


def summarize(samples: Sequence[float], unit: Unit = Unit.SECONDS) -> Summary:
    """The middle and the bad end of the samples."""
    is_rate = unit in (Unit.BYTES_PER_SECOND, Unit.PER_SECOND)
    ordered = sorted(samples, reverse=is_rate)
    last = len(ordered) - 1
    return Summary(
        p50=statistics.median(ordered),
        p95=ordered[min(last, int(len(ordered) * 0.95))],
        count=len(ordered),
        p10=ordered[int(len(ordered) * 0.1)],
    )


def single(value: float) -> Summary:
    """A value that is measured once."""
    return Summary(p50=value, p95=value, count=1, p10=value)


async def interleave(
    candidates: Sequence[Sample],
    *,
    repetitions: int,
    warm_up: int = 1,
    idle: float = 0.0,
    unit: Unit = Unit.SECONDS,
) -> list[Summary]:
    """Measure the candidates in turn, so that noise hits all of them; every other round goes backwards."""
    samples: list[list[float]] = [[] for _ in candidates]
    for turn in range(-warm_up, repetitions):
        order = range(len(candidates)) if turn % 2 else range(len(candidates) - 1, -1, -1)
        for at in order:
            await asyncio.sleep(idle)
            sample = await candidates[at]()
            if turn >= 0:
                samples[at].append(sample)
    return [summarize(series, unit) for series in samples]


def timed(work: Callable[[], Awaitable[object]]) -> Sample:
    """How long something awaited takes."""

    async def sample() -> float:
        began = time.perf_counter()
        await work()
        return time.perf_counter() - began

    return sample


def timed_blocking(work: Callable[[], object]) -> Sample:
    """How long a blocking call takes: a floor owns the whole thread while it runs."""

    async def sample() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return sample


def rate(amount: float, sample: Sample) -> Sample:
    """So much per second."""

    async def per_second() -> float:
        return amount / await sample()

    return per_second
