"""A shell that gets no time of the machine is waited for; what never ends is not."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.leaks import describe, processes_below

from cove import AsyncSandbox, Outcome
from cove.runtime import shell
from cove.runtime.shell import Shell

pytestmark = pytest.mark.anyio


def group_of_the_shell() -> Path | None:
    """The version 2 group of the one session's shell, if it has one of its own that can be frozen."""
    (pid_of_shell,) = [pid for pid in processes_below(os.getpid()) if describe(pid).strip() == "/bin/bash -s"]
    lines = Path(f"/proc/{pid_of_shell}/cgroup").read_text().splitlines()
    (inside,) = [line[3:] for line in lines if line.startswith("0::")]
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in (fields[1] for fields in mounts if fields[2] == "cgroup2"):
        freeze = Path(point + inside, "cgroup.freeze")
        if "cove" in inside and os.access(freeze, os.W_OK):
            return freeze
    return None


@contextmanager
def frozen(freeze: Path) -> Iterator[None]:
    freeze.write_text("1")
    try:
        yield
    finally:
        freeze.write_text("0")


async def test_a_shell_that_is_not_given_any_time_is_not_taken_for_one_that_never_reports() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=kept")
        freeze = group_of_the_shell()
        if freeze is None:
            pytest.skip("needs control groups that can be frozen")
        with frozen(freeze):
            call = asyncio.ensure_future(session.exec("echo $x"))
            await asyncio.wait([call], timeout=1.5)
            assert not call.done()
        assert (await call).stdout == "kept\n"


async def test_what_the_kernel_does_not_let_go_does_not_hold_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no such process to be had in a test: one is said to be left."""
    send = Shell._signal

    async def never_gone(self: Shell, number: int, scope: bytes, ticks: int = 0) -> int:
        return await send(self, number, scope, ticks) or 1

    monkeypatch.setattr(Shell, "_signal", never_gone)
    monkeypatch.setattr(shell, "_HELD_SECONDS", 0.5)
    async with AsyncSandbox.create() as sandbox, asyncio.timeout(30):
        session = await sandbox.create_session()
        await session.exec("x=kept")
        assert (await session.exec("sleep 1000", timeout=0.1)).outcome is Outcome.TIMED_OUT
        assert (await session.exec("echo $x")).stdout == "kept\n"
