"""Everything is gone when the program that made a sandbox is gone, however it went."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.leaks import control_groups, processes_below
from support.programs import places, program, read_line, run_program, wait_until_gone

OPEN = """
import asyncio, sys
from cove import AsyncSandbox

async def main():
    sandbox = await AsyncSandbox.create(isolation={isolation!r})
    await sandbox.exec("setsid sleep 1000 & (trap '' TERM HUP INT; setsid sleep 2000 &)")
    print("ready", flush=True)
    {then}

asyncio.run(main())
"""
COLLECT = """
import asyncio
from cove import AsyncSandbox

async def main():
    async with AsyncSandbox.create() as sandbox:
        print((await sandbox.exec("echo ok")).stdout)

asyncio.run(main())
"""
ISOLATIONS = pytest.mark.parametrize("isolation", ["bubblewrap", "none"])


def below(pid: int) -> list[int]:
    found = processes_below(pid)
    assert len(found) >= 3
    return found


@ISOLATIONS
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_program_leaves_no_process_and_the_next_one_collects_its_files(
    isolation: str, number: int, other_home: Path
) -> None:
    with program(OPEN.format(isolation=isolation, then="sys.stdin.read()"), other_home) as process:
        assert read_line(process) == "ready"
        pids = below(process.pid)
        process.send_signal(number)
        process.wait()
        assert wait_until_gone(pids) == []
    left = places(other_home)
    assert len(left) == 1
    assert run_program(COLLECT, other_home) == "ok"
    assert places(other_home) == []
    assert not [group for group in control_groups() if os.path.basename(group) in left]
    assert list((other_home / "users").iterdir()) == []


@ISOLATIONS
def test_a_program_that_ends_without_destroy_leaves_no_process(isolation: str, other_home: Path) -> None:
    with program(OPEN.format(isolation=isolation, then="sys.stdin.readline()"), other_home) as process:
        assert read_line(process) == "ready"
        pids = below(process.pid)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(60) == 0
        assert wait_until_gone(pids) == []
    run_program(COLLECT, other_home)
    assert places(other_home) == []


@ISOLATIONS
def test_a_program_that_dies_of_an_exception_leaves_no_process(isolation: str, other_home: Path) -> None:
    text = OPEN.format(isolation=isolation, then="sys.stdin.readline(); raise RuntimeError")
    with program(text, other_home) as process:
        assert read_line(process) == "ready"
        pids = below(process.pid)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(60) != 0
        assert wait_until_gone(pids) == []
    run_program(COLLECT, other_home)
    assert places(other_home) == []


ENDING = """
import time
from concurrent.futures import ThreadPoolExecutor
from cove import Sandbox

kept = Sandbox.create(idle_timeout=600)
ThreadPoolExecutor().submit(time.sleep, 1)  # the end of the program waits for it, and Cove's executors are shut down
kept.exec("true")
"""


def test_a_program_that_ends_without_destroy_says_nothing(other_home: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING],
        capture_output=True,
        check=True,
        env={**os.environ, "COVE_HOME": str(other_home)},
    )
    assert ended.stderr == b""
    run_program(COLLECT, other_home)
    assert places(other_home) == []


WORKER = """
import asyncio, sys, threading
from cove import AsyncSandbox

async def make():
    global sandbox
    sandbox = await AsyncSandbox.create()
    await sandbox.exec("sleep 1000 &")

def work():
    asyncio.run(make())

thread = threading.Thread(target=work)
thread.start()
thread.join()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_sandbox_made_in_a_thread_that_ended_lives_on_and_ends_with_the_program(other_home: Path) -> None:
    with program(WORKER, other_home) as process:
        assert read_line(process) == "ready"
        pids = below(process.pid)
        assert len(pids) >= 4
        process.kill()
        process.wait()
        assert wait_until_gone(pids) == []
    run_program(COLLECT, other_home)


FORKING = """
import asyncio, multiprocessing, os, sys
from cove import AsyncSandbox

def child():
    os.write(1, b"child %d\\n" % os.getpid())  # at once: the parent prints too
    sys.stdin = open(0)
    os.read(0, 1)

async def main():
    sandbox = await AsyncSandbox.create(isolation={isolation!r})
    await sandbox.exec("sleep 1000 &")
    {fork}
    os.write(1, (await sandbox.exec("echo still here")).stdout_bytes)
    await asyncio.sleep(1000)

asyncio.run(main())
"""
FORKS = {
    "os.fork": "if not os.fork(): child(); os._exit(0)",
    "multiprocessing": "multiprocessing.get_context('fork').Process(target=child).start()",
}


@ISOLATIONS
@pytest.mark.parametrize("fork", FORKS)
def test_a_forked_child_that_lives_on_does_not_keep_the_sandbox_alive(
    isolation: str, fork: str, other_home: Path
) -> None:
    with program(FORKING.format(isolation=isolation, fork=FORKS[fork]), other_home) as process:
        lines = {read_line(process), read_line(process)}
        assert "still here" in lines
        (child,) = [int(line.split()[1]) for line in lines if line.startswith("child")]
        pids = [pid for pid in below(process.pid) if pid != child]
        process.kill()
        process.wait()
        assert wait_until_gone(pids) == []
        os.kill(child, signal.SIGKILL)
        assert wait_until_gone([child]) == []
    run_program(COLLECT, other_home)
    assert places(other_home) == []


CHILD_WITH_OWN = """
import asyncio, os, sys
from cove import AsyncSandbox
from cove.errors import SandboxNotFound

async def child(id):
    assert await AsyncSandbox.list() == []
    try:
        await AsyncSandbox.connect(id)
    except SandboxNotFound:
        pass
    async with AsyncSandbox.create(id=id) as own:
        return (await own.exec("echo own")).stdout.strip()

async def main():
    async with AsyncSandbox.create(id="shared") as sandbox:
        running = asyncio.ensure_future(sandbox.exec("echo begun > /tmp/begun; sleep 0.5; echo done"))
        await sandbox.exec("until [ -e /tmp/begun ]; do :; done")
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            asyncio._set_running_loop(None)
            os.write(write, asyncio.run(child("shared")).encode())
            os._exit(0)
        os.close(write)
        said = await asyncio.to_thread(os.read, read, 100)
        _, status = os.waitpid(pid, 0)
        print(said.decode(), status, (await running).stdout.strip(), (await sandbox.exec("echo parent")).stdout.strip())

asyncio.run(main())
"""


def test_a_forked_child_makes_its_own_sandboxes_and_cannot_disturb_its_parents(other_home: Path) -> None:
    assert run_program(CHILD_WITH_OWN, other_home) == "own 0 done parent"
    assert places(other_home) == []


TWO = """
import asyncio
from cove import AsyncSandbox

async def main():
    async with AsyncSandbox.create() as sandbox:
        print("ready", flush=True)
        import sys
        await asyncio.to_thread(sys.stdin.readline)
        print((await sandbox.exec("echo mine; cat /workspace/f", stdin="")).stdout.split()[0], flush=True)

asyncio.run(main())
"""


def test_a_program_that_starts_does_not_collect_the_sandboxes_of_one_that_lives(other_home: Path) -> None:
    with program(TWO, other_home) as process:
        assert read_line(process) == "ready"
        assert run_program(COLLECT, other_home) == "ok"
        assert len(places(other_home)) == 1
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert read_line(process) == "mine"
        assert process.wait(60) == 0
    assert places(other_home) == []


def test_a_directory_whose_program_was_killed_while_it_destroyed_is_collected(other_home: Path) -> None:
    run_program(COLLECT, other_home)
    half = other_home / "sandboxes" / "halfremoved"
    (half / "workspace" / "deep").mkdir(parents=True)
    assert run_program(COLLECT, other_home) == "ok"
    assert places(other_home) == []
