"""Attempts to outlive a command, a sandbox or its program. Each first sees what it looks for."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cove import AsyncSandbox
from cove.linux.cgroup import find_hierarchies
from cove.local.state import default_home
from cove.local.threads import in_thread
from cove.model import Limits
from cove.runtime.home import Home
from cove.verify.inside.harness import Blocked
from cove.verify.outside import Facts, NothingToSee, outside_probe

AREA = "life"

_SECONDS = 10.0
# Two processes that no signal to their group reaches; ready when both are programs of their own.
_HIDE = """
(trap '' TERM HUP INT; setsid setsid sleep {mark} &)
setsid sleep {mark} &
until [ "$(cat /proc/[0-9]*/comm 2>/dev/null | grep -cx sleep)" -ge 2 ]; do :; done
echo ready
"""
_PROGRAM = """
import asyncio, sys
from cove import AsyncSandbox
async def main():
    sandbox = await AsyncSandbox.create()
    await sandbox.exec(sys.argv[1])
    print('ready', flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


def _processes(mark: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{name}/cmdline").read_bytes() == f"sleep\0{mark}\0".encode():
                found.append(int(name))
        except OSError:
            continue
    return found


def _mark(sandbox: AsyncSandbox) -> str:
    """A number of seconds that nobody else sleeps."""
    return str(10**9 + int.from_bytes(sandbox.id.encode()[:4], "big"))


def _judge_processes(pids: list[int], mark: str) -> str:
    """Wait until they are gone, but not for ever."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        select.select([descriptor], [], [], _SECONDS)
        os.close(descriptor)
    left = _processes(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if not left:
        raise Blocked("nothing of it is left")
    return f"{len(left)} of {len(pids)} live on"


async def _seen(mark: str) -> list[int]:
    pids = await in_thread(_processes, mark)
    if not pids:
        raise NothingToSee("no process was seen")
    return pids


@outside_probe(AREA, "a process that hides outlives its command's timeout", is_own_control=True)
async def outlive_a_timeout(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    mark = _mark(sandbox)
    process = await sandbox.start_process(f"{_HIDE.format(mark=mark)} sleep 100", timeout=3)
    await process.wait_for_log("ready", timeout=3)
    pids = await _seen(mark)
    await process.wait()
    return await in_thread(_judge_processes, pids, mark)


@outside_probe(AREA, "a process that hides outlives its sandbox", is_own_control=True)
async def outlive_the_sandbox(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    mark = _mark(sandbox)
    await sandbox.exec(_HIDE.format(mark=mark))
    pids = await _seen(mark)
    await sandbox.destroy()
    return await in_thread(_judge_processes, pids, mark)


@outside_probe(AREA, "a process that hides outlives a program that is killed", is_own_control=True)
async def outlive_the_program(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    mark = _mark(sandbox)
    pids = await in_thread(_kill_a_program, mark)
    try:
        return await in_thread(_judge_processes, pids, mark)
    finally:
        await in_thread(_collect)


@outside_probe(AREA, "a program that is killed leaves directories that nobody removes", is_own_control=True)
async def leave_directories_for_ever(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    before = await in_thread(_names, default_home() / "sandboxes")
    pids = await in_thread(_kill_a_program, _mark(sandbox))
    left = await in_thread(_names, default_home() / "sandboxes") - before
    if not left:
        raise NothingToSee("it left none")
    with suppress(Blocked):
        await in_thread(_judge_processes, pids, _mark(sandbox))
    await in_thread(_collect)
    if not left & await in_thread(_names, default_home() / "sandboxes"):
        raise Blocked("the next program removes them")
    return ", ".join(sorted(left))


def _collect() -> None:
    """Do what the next program does when it starts."""
    Home(default_home()).collect(find_hierarchies())


def _kill_a_program(mark: str) -> list[int]:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, _HIDE.format(mark=mark)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        pids = _processes(mark)
        program.kill()
    if not pids:
        raise NothingToSee("no process was seen")
    return pids


async def _leave(what: Callable[[], set[str]], **options: Limits) -> str:
    """Look for what was there while a sandbox lived, and is still there after its end."""
    before = await in_thread(what)
    async with AsyncSandbox.create(**options):  # type: ignore[arg-type]  # only limits are given
        during = await in_thread(what) - before
    if not during:
        raise NothingToSee("there is none to leave on this machine")
    left = during & await in_thread(what)
    if not left:
        raise Blocked("nothing is left")
    return ", ".join(sorted(left))


def _names(path: Path) -> set[str]:
    return set(os.listdir(path)) if path.is_dir() else set()


@outside_probe(AREA, "a sandbox leaves its directories", is_own_control=True)
async def leave_directories(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return await _leave(lambda: _names(default_home() / "sandboxes"))


@outside_probe(AREA, "a sandbox leaves its user", is_own_control=True)
async def leave_a_user(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return await _leave(lambda: _names(default_home() / "users"))


@outside_probe(AREA, "a sandbox leaves its control groups", is_own_control=True)
async def leave_control_groups(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    trees = (await in_thread(find_hierarchies)).all
    keys: set[str] = set()

    def groups() -> set[str]:
        """Those of this state directory's sandboxes: other programs have theirs in the same trees."""
        keys.update(_names(default_home() / "sandboxes"))
        return {f"{tree}/{key}" for tree in trees for key in keys if os.path.isdir(f"{tree}/{key}")}

    return await _leave(groups, limits=Limits(memory=256 << 20, pids=100))


@outside_probe(AREA, "a sandbox leaves its file system mounted", is_own_control=True)
async def leave_mounts(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    home = str(default_home().resolve())
    return await _leave(
        lambda: {point for point in _mount_points() if point.startswith(home)}, limits=Limits(disk=16 << 20)
    )


def _mount_points() -> set[str]:
    return {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
