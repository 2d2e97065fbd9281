"""Run the attempts that take more than code inside: on the file API, the agent, a neighbour, and after the end."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec

from cove import AsyncSandbox
from cove.errors import CoveError
from cove.verify.findings import Attempt, Finding, judge
from cove.verify.inside.harness import BLOCKED, BROKEN, OPEN, Blocked

Facts = Mapping[str, str]
Try = Callable[[AsyncSandbox, AsyncSandbox, Facts], Awaitable[str]]


class NothingToSee(Exception):
    """The attempt found nothing to look at even where it should be."""


@dataclass(frozen=True)
class OutsideProbe:
    """One attempt that gets a sandbox, a neighbour of the same kind, and the facts."""

    area: str
    name: str
    what: str
    attempt: Try
    is_own_control: bool


PROBES: list[OutsideProbe] = []


def outside_probe(area: str, what: str, *, is_own_control: bool = False) -> Callable[[Try], Try]:
    """Enter the function under its own name. Its own control is one that fails unless it sees what it looks for."""

    def enter(attempt: Try) -> Try:
        PROBES.append(OutsideProbe(area, attempt.__name__, what, attempt, is_own_control))
        return attempt

    return enter


async def run_outside(facts: Facts) -> AsyncIterator[Finding]:
    """Yield each attempt with two confined sandboxes and, as its control, with two unconfined ones."""
    for each in PROBES:
        # A sandbox that was attacked is not the next attempt's problem.
        inside = await _run(each, "bubblewrap", facts)
        if each.is_own_control:
            control = msgspec.structs.replace(inside, verdict=BROKEN if inside.verdict == BROKEN else OPEN)
        else:
            control = await _run(each, "none", facts)
        yield judge(inside, control)


async def _run(each: OutsideProbe, isolation: str, facts: Facts) -> Attempt:
    try:
        async with (
            AsyncSandbox.create(isolation=isolation) as sandbox,  # type: ignore[arg-type]  # one of two words
            AsyncSandbox.create(isolation=isolation) as neighbour,  # type: ignore[arg-type]
        ):
            verdict, why = OPEN, await each.attempt(sandbox, neighbour, facts)
    except (Blocked, CoveError, OSError) as error:
        verdict, why = BLOCKED, str(error)
    except NothingToSee as error:
        verdict, why = BROKEN, str(error)
    except Exception as error:  # noqa: BLE001  # a broken attempt is told, and must not end the others
        verdict, why = BROKEN, f"{type(error).__name__}: {error}"
    return Attempt(area=each.area, name=each.name, what=each.what, verdict=verdict, why=why)
