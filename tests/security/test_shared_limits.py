"""What the machine, or the user, has for all sandboxes: one that takes all it can get leaves enough to the others."""

import ctypes
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cove import AsyncSandbox
from cove.core.limits import USER_SHARES
from cove.runtime import shared_limits

pytestmark = pytest.mark.anyio

# Each takes what it is about until the kernel gives no more, prints how much it has, and holds it.
PROLOGUE = """
import ctypes, os, resource, socket, sys, time
library = ctypes.CDLL(None, use_errno=True)
def say(count):
    print(count, flush=True)
    time.sleep(1000)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
"""
DESCRIPTORS_ON_THEIR_WAY = """
null, count = os.open("/dev/null", os.O_RDONLY), 0
try:
    while True:
        held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        for _ in range(8):
            socket.send_fds(held[-1][0], [b"x"], [null] * 253)
            count += 253
except OSError:
    say(count)
"""
TERMINALS = """
try:
    while True:
        held.append(os.openpty())
except OSError:
    say(len(held))
"""
INOTIFY = """
while library.inotify_init() >= 0:
    held.append(1)
say(len(held))
"""
SIGNALS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
while library.sigqueue(os.getpid(), signal.SIGRTMIN, 0) == 0:
    held.append(1)
say(len(held))
"""


@asynccontextmanager
async def taken(what: str) -> AsyncIterator[tuple[AsyncSandbox, int]]:
    """A neighbour of a sandbox that holds all it could get, and how much that is."""
    async with AsyncSandbox.create() as neighbour, AsyncSandbox.create() as greedy:
        process = await greedy.start_process(["python3", "-c", PROLOGUE + what])
        async for event in process.logs(follow=True):
            yield neighbour, int(event.data)  # type: ignore[union-attr]
            break
        await process.kill("KILL")


async def count(sandbox: AsyncSandbox, what: str) -> int:
    code = PROLOGUE + what.replace("say(", "print(")
    return int((await sandbox.exec(["python3", "-c", code], timeout=60)).check().stdout)


async def test_descriptors_on_their_way_leave_everything_of_a_neighbour_working() -> None:
    async with taken(DESCRIPTORS_ON_THEIR_WAY) as (neighbour, held):
        assert held > 100
        assert (await neighbour.exec("echo 1")).stdout == "1\n"
        session = await neighbour.create_session()
        assert (await session.exec("echo 2")).stdout == "2\n"
        await neighbour.files.write("large", b"x" * (3 << 20))
        assert len(await neighbour.files.read("large")) == 3 << 20
        await neighbour.terminal()
        async with AsyncSandbox.create() as third:
            assert (await third.exec("echo 3")).stdout == "3\n"
        assert (await neighbour.info()).status == "running"


async def test_what_runs_inside_has_half_the_descriptors_that_we_have() -> None:
    async with AsyncSandbox.create() as sandbox:
        inside = int((await sandbox.exec("ulimit -Hn")).stdout)
    assert inside == resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


async def test_terminals_are_left_to_a_neighbour_and_to_the_host() -> None:
    async with taken(TERMINALS) as (neighbour, held):
        assert 200 < held <= 256
        assert await count(neighbour, TERMINALS) > 200
        await neighbour.terminal()
        for descriptor in os.openpty():
            os.close(descriptor)


async def test_inotify_is_left_to_a_neighbour_and_to_the_host() -> None:
    of_the_user = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    async with taken(INOTIFY) as (neighbour, held):
        assert held <= (of_the_user if os.geteuid() == 0 else of_the_user // USER_SHARES)
        assert await count(neighbour, INOTIFY) == held
        descriptor = ctypes.CDLL(None).inotify_init()
        assert descriptor >= 0
        os.close(descriptor)


async def test_signals_that_wait_leave_room_for_those_of_a_neighbour() -> None:
    async with taken(SIGNALS) as (neighbour, held):
        assert 0 < held <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] // USER_SHARES
        assert await count(neighbour, SIGNALS) == held


@pytest.mark.parametrize("folder", ["/", "/dev/shm", "/run"])
async def test_files_in_memory_are_few(folder: str) -> None:
    make = f"cd {folder}; mkdir x; cd x; seq 20000 | xargs touch 2>&1 | tail -1; ls | wc -l"
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(make, timeout=60)
        assert "No space left" in result.stdout
        assert int(result.stdout.split()[-1]) < 16384
        assert (await sandbox.exec(f"rm -r {folder}/x && touch {folder}/y && echo 1")).stdout == "1\n"


async def test_the_mounts_keep_their_other_options() -> None:
    async with AsyncSandbox.create() as sandbox:
        mounts = (await sandbox.exec("cat /proc/self/mounts")).stdout
    options = {line.split()[1]: line.split()[3].split(",") for line in mounts.splitlines()}
    assert {"nosuid", "nodev", "size=262144k", "nr_inodes=16384"} <= set(options["/dev/shm"])
    assert {"nosuid", "noexec", "mode=620", "ptmxmode=666", "max=256"} <= set(options["/dev/pts"])


async def test_a_machine_that_cannot_hold_them_is_told_of_and_has_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_limits, "MOUNT_OPTIONS", {"/": "no_such_option=1"})
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.exec("echo 1")).stdout == "1\n"
        assert any("can be used up" in warning for warning in (await sandbox.info()).warnings)
    monkeypatch.undo()
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.info()).warnings == ()
