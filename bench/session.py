"""A shell with state against the shell itself."""

import asyncio
from functools import partial
from typing import Protocol

from bench import pipes
from bench.harness import Figure, Plan, Skipped, Unit, at_most, interleave, rate, timed, timed_blocking, value_at_least
from bench.resident_loop import ResidentLoop
from bench.shell import NAME, run_shell
from cove import AsyncSandbox, ExecResult

_SESSIONS = 50
_COMMANDS = 100
_COMMANDS_PER_SECOND = 4000
_OUTPUT_BYTES = 50_000_000


class Session(Protocol):
    """What is used of a session here."""

    async def exec(self, command: str, *, timeout: float | None = None) -> ExecResult: ...
    async def delete(self) -> None: ...


async def run(plan: Plan) -> list[Figure]:
    """Latency, throughput, creation, output."""
    if not hasattr(AsyncSandbox, "create_session"):
        raise Skipped("this version has no sessions")
    async with AsyncSandbox.create() as sandbox:
        session: Session = await sandbox.create_session()
        return [
            *await _latency(sandbox, session, plan),
            *await _timeouts(session, plan),
            await _throughput(sandbox, plan),
            await _creation(sandbox, plan),
            await _output(session, plan),
        ]


async def _latency(sandbox: AsyncSandbox, session: Session, plan: Plan) -> list[Figure]:
    with ResidentLoop() as loop:
        subject, bare, stateless = await interleave(
            [
                timed(lambda: session.exec(":")),
                timed_blocking(lambda: loop.run(b":")),
                timed(lambda: sandbox.exec("true")),
            ],
            repetitions=plan.times(2000, 300),
            warm_up=20,
        )
    name = "session.exec :"
    floors = (("resident bash loop", bare, 3.0), ("sandbox.exec true", stateless, 0.2))
    return [
        Figure(name=name, unit=Unit.SECONDS, subject=subject, floor=floor, floor_name=label, target=at_most(limit))
        for label, floor, limit in floors
    ]


async def _timeouts(session: Session, plan: Plan) -> list[Figure]:
    """What a timeout adds to a command, right after the last one and after pauses of different length."""
    figures = []
    for idle, full, quick in ((0.0, 1000, 200), (0.05, 100, 20), (0.3, 40, 12), (0.7, 20, 6)):
        subject, floor = await interleave(
            [timed(lambda: session.exec(":", timeout=60)), timed(lambda: session.exec(":"))],
            repetitions=plan.times(full, quick),
            warm_up=3,
            idle=idle,
        )
        figures.append(
            Figure(
                name=f"session.exec : with a timeout, after {idle:g} s",
                unit=Unit.SECONDS,
                subject=subject,
                floor=floor,
                floor_name="without a timeout",
                target=at_most(1.25),
            )
        )
    return figures


async def _throughput(sandbox: AsyncSandbox, plan: Plan) -> Figure:
    sessions: list[Session] = [await sandbox.create_session() for _ in range(_SESSIONS)]
    amount = _SESSIONS * _COMMANDS
    with ResidentLoop() as loop:
        subject, floor = await interleave(
            [
                rate(amount, timed(partial(_echo_everywhere, sessions))),
                rate(amount, timed_blocking(partial(_echo_in_loop, loop, amount))),
            ],
            repetitions=plan.times(5, 2),
            unit=Unit.PER_SECOND,
        )
    for session in sessions:
        await session.delete()
    return Figure(
        name=f"{_SESSIONS} sessions x {_COMMANDS} echo",
        unit=Unit.PER_SECOND,
        subject=subject,
        floor=floor,
        floor_name="one resident bash loop",
        target=value_at_least(_COMMANDS_PER_SECOND),
    )


async def _echo_everywhere(sessions: list[Session]) -> None:
    async def echo(at: int, session: Session) -> None:
        for number in range(_COMMANDS):
            result = await session.exec(f"echo {at}-{number}")
            assert result.stdout == f"{at}-{number}\n", result

    await asyncio.gather(*(echo(at, session) for at, session in enumerate(sessions)))


def _echo_in_loop(loop: ResidentLoop, count: int) -> None:
    for number in range(count):
        assert loop.run(b"echo %d" % number)[1] == b"%d\n" % number


async def _creation(sandbox: AsyncSandbox, plan: Plan) -> Figure:
    subject, floor = await interleave(
        [lambda: _create_and_delete(sandbox), timed_blocking(run_shell)],
        repetitions=plan.times(100, 30),
        warm_up=5,
    )
    return Figure(
        name="create_session",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name=NAME,
        target=at_most(2),
    )


async def _create_and_delete(sandbox: AsyncSandbox) -> float:
    created: list[Session] = []

    async def create() -> None:
        created.append(await sandbox.create_session())

    seconds = await timed(create)()
    await created[0].delete()
    return seconds


async def _output(session: Session, plan: Plan) -> Figure:
    command = f"head -c {_OUTPUT_BYTES} /dev/zero"
    subject, floor = await interleave(
        [
            timed(lambda: session.exec(command)),
            timed_blocking(partial(pipes.read_blocking, command.split())),
        ],
        repetitions=plan.times(15, 5),
        warm_up=2,
    )
    return Figure(
        name="session.exec, 50 MB of output",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="blocking pipe reader",
        target=at_most(1.5),
    )
