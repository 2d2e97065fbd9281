"""What the journal costs a command: the same sandbox with its journal on and off, turn by turn.

A turn is a run of commands that lasts for several writes of the journal: what the thread that writes takes from the
program is in it. What a turn leaves unwritten is written between two of them.
"""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.harness import Figure, Plan, Sample, Unit, at_most, interleave
from cove import AsyncSandbox, ExecResult, JournalDetail, JournalKind, ProcessExit
from cove.runtime.journal import Entry, Journal
from cove.runtime.sandbox import Sandbox

_MOST = 1.03


async def run(plan: Plan) -> list[Figure]:
    """One command, and one in a session."""
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        session = await sandbox.create_session()
        turns = plan.times(30, 8)
        return [
            await _compare("exec true", sandbox, lambda: sandbox.exec("true"), 250, turns),
            await _compare("session.exec true", sandbox, lambda: session.exec("true"), 2000, turns),
        ]


async def _compare(
    name: str, sandbox: Sandbox, call: Callable[[], Awaitable[object]], calls: int, turns: int
) -> Figure:
    journal = sandbox.journaling
    candidates = [_turn(sandbox, each, call, calls) for each in (journal, _Off())]
    subject, floor = await interleave(candidates, repetitions=turns, warm_up=2)
    sandbox.journaling = sandbox._jail.link.journal = journal
    return Figure(
        name=f"{name}, with a journal",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="without one",
        target=at_most(_MOST),
    )


class _Nothing(Entry):
    """A call that nobody writes down."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def use(self, end: ProcessExit) -> None:
        """Do nothing."""

    def end(self, result: ExecResult, output_bytes: int) -> None:
        """Do nothing."""


class _Off(Journal):
    """No journal."""

    def __init__(self) -> None:
        super().__init__(Path(), lambda: JournalDetail.EVENTS)
        self._entry = _Nothing(self, JournalKind.EXEC, {})

    def call(self, *_: object, **__: object) -> Entry:
        """Do nothing."""
        return self._entry


def _turn(sandbox: Sandbox, journal: Journal, call: Callable[[], Awaitable[object]], calls: int) -> Sample:
    async def sample() -> float:
        await sandbox.journaling.flush()
        sandbox.journaling = sandbox._jail.link.journal = journal
        began = time.perf_counter()
        for _ in range(calls):
            await call()
        return (time.perf_counter() - began) / calls

    return sample
