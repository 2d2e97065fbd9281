"""A terminal against a bare pty: how long a key takes to come back, and how fast output flows."""

import os
import pty
import subprocess
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from bench.harness import (
    Figure,
    Plan,
    Sample,
    Skipped,
    Unit,
    at_least,
    at_most,
    interleave,
    rate,
    timed,
    timed_blocking,
)
from cove import AsyncSandbox
from cove.model import Output, Ready

_READY = b"R"
# One program echoes every byte itself, for the other the kernel does; both say when they are ready.
_ECHO = "import os, tty; tty.setraw(0); os.write(1, b'R')\nwhile True: os.write(1, os.read(0, 1))"
_ECHOES = {
    "by the program": ["python3", "-I", "-c", _ECHO],
    "by the kernel": ["bash", "-c", "printf R; exec sleep 100000"],
}
_PRINT = "head -c {} /dev/zero | tr '\\0' x"
_READ_BYTES = 65536


async def run(plan: Plan) -> list[Figure]:
    """Keys, then bytes."""
    if not hasattr(AsyncSandbox, "terminal"):
        raise Skipped("this version has no terminals")
    async with AsyncSandbox.create() as sandbox:
        figures = [await _keys(sandbox, plan, kind) for kind in _ECHOES]
        return [*figures, await _throughput(sandbox, plan)]


async def _keys(sandbox: AsyncSandbox, plan: Plan, kind: str) -> Figure:
    async with _typist(sandbox, _ECHOES[kind]) as subject:
        with _bare_typist(_ECHOES[kind]) as floor:
            typed, bare = await interleave([subject, floor], repetitions=plan.times(3000, 500), warm_up=50)
    return Figure(
        name=f"key and its echo {kind}",
        unit=Unit.SECONDS,
        subject=typed,
        floor=bare,
        floor_name="bare pty",
        # The kernel answers within a few microseconds, less than any event loop takes to notice: shown, not judged.
        target=at_most(3) if kind == "by the program" else None,
    )


@asynccontextmanager
async def _typist(sandbox: AsyncSandbox, shell: list[str]) -> AsyncIterator[Sample]:
    """A key typed by a viewer, until the viewer sees it."""
    terminal = await sandbox.terminal(shell=shell)
    async with terminal.connect() as connection:
        events = connection.events()
        beginning = {type(event): event for event in [await anext(events), await anext(events)]}
        assert beginning.keys() == {Output, Ready}, beginning

        async def key() -> float:
            began = time.perf_counter()
            await connection.write(b"k")
            event = await anext(events)
            seconds = time.perf_counter() - began
            assert isinstance(event, Output), event
            assert event.data == b"k", event
            return seconds

        yield key
        await events.aclose()
    await terminal.destroy()


@contextmanager
def _bare_typist(command: list[str]) -> Generator[Sample, None, None]:
    with _bare_program(command) as master:
        assert os.read(master, _READ_BYTES) == _READY

        def key() -> None:
            os.write(master, b"k")
            assert os.read(master, _READ_BYTES) == b"k"

        yield timed_blocking(key)


@contextmanager
def _bare_program(command: list[str]) -> Generator[int, None, None]:
    """A program on a pty of its own, its controlling terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        yield master
    finally:
        process.kill()
        process.wait()
        os.close(master)


async def _throughput(sandbox: AsyncSandbox, plan: Plan) -> Figure:
    size = plan.times(100_000_000, 20_000_000)
    command = ["bash", "-c", _PRINT.format(size)]
    subject, floor = await interleave(
        [
            rate(size, timed(partial(_read_all, sandbox, command, size))),
            rate(size, timed_blocking(partial(_read_bare, command, size))),
        ],
        repetitions=plan.times(7, 3),
        unit=Unit.BYTES_PER_SECOND,
    )
    return Figure(
        name=f"terminal output, {size // 1_000_000} MB",
        unit=Unit.BYTES_PER_SECOND,
        subject=subject,
        floor=floor,
        floor_name="bare pty reader",
        target=at_least(0.4),
    )


async def _read_all(sandbox: AsyncSandbox, command: list[str], size: int) -> None:
    """Every byte, by a viewer that misses none."""
    total = 0
    terminal = await sandbox.terminal(shell=command)
    async with terminal.connect(lossless=True) as connection:
        async for event in connection:
            if isinstance(event, Output):
                total += len(event.data)
    assert total == size, (total, size)


def _read_bare(command: list[str], size: int) -> None:
    with _bare_program(command) as master:
        left = size
        while left:
            left -= len(os.read(master, _READ_BYTES))
