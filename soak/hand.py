"""One user of a sandbox: calls that may be disturbed, and answers that are certain or not."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from cove import AsyncSandbox
from cove.errors import CoveError, Internal, SandboxUnavailable
from cove.model import Outcome
from soak.faults import Fault
from soak.possible import Violation
from soak.subject import Subject

T = TypeVar("T")

_PAUSE = 0.05
_ANSWER_SECONDS = 180.0  # also on a machine that others keep busy
_CANCEL_PART = 0.12
_STRIKE_PART = 0.004
_LONGEST_DELAY = 0.05
_BY_FAULT = (Outcome.LOST, Outcome.STOPPED, Outcome.SIGNALED, Outcome.KILLED)

# Calls that the sandbox itself does not notice.
_ELSEWHERE = frozenset(
    (
        *("visitor", "mayfly", "move", "create-on", "list", "get-snapshot", "delete-snapshot", "info"),
        *("create-volume", "delete-volume", "delete-image"),
    )
)

Step = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What came back. Not certain: the call failed for an allowed reason and may have done anything it does."""

    value: T | None = None
    error: CoveError | None = None
    is_certain: bool = True

    def get(self) -> T:
        """The value of a call that succeeded."""
        assert self.value is not None
        return self.value

    @property
    def is_done(self) -> bool:
        """It succeeded."""
        return self.is_certain and self.error is None


class Hand:
    """Does one thing after the other. Whatever a call raises is expected, allowed by a fault, or a violation."""

    def __init__(self, subject: Subject, name: str, seed: str, *, is_first: bool = True) -> None:
        self.subject = subject
        self.is_first = is_first
        self.name = f"{subject.name}/{name}"
        self.random = random.Random(seed)
        self.step = 0
        self._made = 0
        self.began = 0.0

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox that is used."""
        return self.subject.sandbox

    def new_id(self, kind: str) -> str:
        """An id that was never used in this sandbox."""
        self._made += 1
        return f"{kind}-{self.name.replace('/', '-')}-{self._made}"

    def number(self) -> int:
        """Different each time."""
        self._made += 1
        return self._made

    def note(self, what: str) -> None:
        """For the history."""
        self.subject.where.history.note(self.name, self.step, what)

    async def call(
        self,
        label: str,
        call: Coroutine[object, object, T],
        *expected: type[CoveError],
        is_steady: bool = False,
    ) -> Answer[T]:
        """Make a call, perhaps cancelled or hit by a fault. One that is `steady` is not cancelled by us."""
        self.note(label)
        self.began = asyncio.get_running_loop().time()
        task = asyncio.ensure_future(call)
        try:
            await self._disturb(task, is_steady)
            done, _ = await asyncio.wait([task], timeout=_ANSWER_SECONDS)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        self.subject.where.history.counts[label.partition(" ")[0]] += 1
        if not done:
            task.cancel()
            await asyncio.wait([task], timeout=_ANSWER_SECONDS)
            raise Violation(f"{label} did not come back in {_ANSWER_SECONDS} seconds")
        return self._judge(label, task, expected)

    async def insist(self, label: str, make_call: Callable[[], Coroutine[object, object, T]]) -> T | None:
        """Make a call again and again until nothing disturbs it."""
        while True:
            answer = await self.call(label, make_call(), is_steady=True)
            if answer.is_done:
                return answer.value
            await asyncio.sleep(_PAUSE)
            await self.subject.recover()

    async def _disturb(self, task: "asyncio.Future[T]", is_steady: bool) -> None:
        chance = self.random.random()
        delay = self.random.random() ** 3 * _LONGEST_DELAY
        if chance < _STRIKE_PART:
            await asyncio.wait([task], timeout=delay)
            if not self.subject.where.is_calm:
                await self._strike()
        elif chance < _STRIKE_PART + _CANCEL_PART and not is_steady:
            await asyncio.wait([task], timeout=delay)
            if not task.done():
                self.note("cancel")
                task.cancel()

    async def _strike(self) -> None:
        subject = self.subject
        if not subject.is_lost:
            is_served = subject.where.is_served
            await (subject.kill_runtime() if is_served and self.random.random() < 0.5 else subject.kill_agent())

    def doubt(self) -> None:
        """The last call may have left something that nobody knows of, if it met a fault."""
        if self.is_disturbed:
            self.subject.where.has_leftovers = True

    @property
    def is_disturbed(self) -> bool:
        """Whether the last call may have met a fault."""
        return bool(self._faults)

    @property
    def _faults(self) -> list[Fault]:
        return self.subject.where.weather.during(self.subject.name, self.began)

    def _judge(self, label: str, task: "asyncio.Future[T]", expected: tuple[type[CoveError], ...]) -> Answer[T]:
        if {Fault.SERVER_KILLED, Fault.NODE_KILLED} & set(self._faults):
            self.subject.doze()  # nobody could use it meanwhile
        if task.cancelled():
            return Answer(is_certain=False)
        error = task.exception()
        if error is None:
            if label.partition(" ")[0] not in _ELSEWHERE:
                self.subject.answered(self.began)
            return self._judge_value(label, task.result())
        if not isinstance(error, CoveError):
            raise Violation(f"{label} raised {error!r}") from error
        is_allowed = self.subject.where.weather.permits(error, self.subject.name, self.began)
        if not is_allowed and not isinstance(error, expected):
            said = self.subject.complaints() if isinstance(error, Internal) else ""
            raise Violation(f"{label} raised {error!r}{said}") from error
        if isinstance(error, SandboxUnavailable) and Fault.ATTACH_KILLED in self._faults:
            self.subject.lose(Fault.AGENT_KILLED)  # a change that was half made ends the jail
        self.note(f"→ {type(error).__name__}: {error}"[:200])
        return Answer(error=error, is_certain=not is_allowed)

    def _judge_value(self, label: str, value: T) -> Answer[T]:
        """What ended with its sandbox, or by a signal that may have been a fault's, says nothing about itself."""
        outcome = getattr(value, "outcome", None)
        may_be_lost = self.subject.where.weather.permits_loss(self.subject.name, self.began)
        if outcome in (Outcome.LOST, Outcome.STOPPED) and not may_be_lost:
            raise Violation(f"{label} was lost without a reason: {value!r}")
        return Answer(value, is_certain=not (may_be_lost and outcome in _BY_FAULT))


class Surface:
    """What a hand can do with one part of a sandbox, and what must be true of that part."""

    weight = 1.0

    def __init__(self, hand: Hand) -> None:
        self.hand = hand

    def steps(self) -> Mapping[Step, float]:
        """What can be done just now, with weights."""
        raise NotImplementedError

    def forget(self) -> None:
        """Everything that ran in the sandbox has ended."""

    def restarted(self) -> None:
        """The same, but sessions have come back."""
        self.forget()

    async def verify(self) -> None:
        """Look at everything that is known."""

    async def empty(self) -> None:
        """End and remove everything."""

    async def leave(self) -> None:
        """Remove what outlives the sandbox."""
