"""Ending a process ends everything it started: by control group, and without one."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from support.inside import commands_inside
from support.leaks import GONE, describe, processes_below

from cove import AsyncSandbox
from cove.api import Process
from cove.linux.cgroup import Hierarchies, find_hierarchies
from cove.model import Outcome
from cove.runtime import machine

pytestmark = pytest.mark.anyio

DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setpgid(0, 0)
        print("up", flush=True)
        os.execvp("sleep", ["sleep", "1001"])
    os._exit(0)
os.wait()
os.execvp("sleep", ["sleep", "1002"])
"""

# Each generation forks the next and leaves; the number is bounded, so that a survivor cannot fill the machine.
COMET = """
import os, time
count = os.open("count", os.O_RDWR | os.O_CREAT, 0o600)
until = time.monotonic() + 60
if os.fork() == 0:
    while time.monotonic() < until:
        os.write(count, b"x")
        if os.fork():
            os._exit(0)
while not os.fstat(count).st_size:
    pass
print("up", flush=True)
time.sleep(60)
"""

FORKS = """
import os, time
print("up", flush=True)
for _ in range(3000):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    time.sleep(0.0005)
time.sleep(60)
"""

TREES = {
    "a script with workers": "for n in 1 2 3 4; do sleep 100$n & done; echo up; wait",
    "five levels": 'bash -c \'bash -c "bash -c \\"bash -c \\\\\\"echo up; sleep 1000; :\\\\\\"; :\\"; :"; :\'; :',
    "one that ignores TERM": "trap '' TERM; sleep 1000 & echo up; while :; do sleep 1000; done",
    "a daemon": ["python3", "-I", "-S", "-c", DAEMON],
    "orphans": "(setsid bash -c 'sleep 1000 & sleep 1001 & exec sleep 1002' &) ; echo up; sleep 1003",
    "one that forks": ["python3", "-I", "-S", "-c", FORKS],
    "a stopped one": "sleep 1000 & kill -STOP $!; echo up; kill -STOP $$; :",
}

OTHERS: set[int] = set()


@pytest.fixture(params=["cgroup", "subreaper"])
def tree_kill(request: pytest.FixtureRequest) -> str:
    """How trees are killed; where the machine has no control group that we may use there is only one way."""
    if request.param == "cgroup" and find_hierarchies().unified is None:
        pytest.skip("no control group that this user may use")
    return str(request.param)


@asynccontextmanager
async def sandbox_with(tree_kill: str) -> AsyncIterator[AsyncSandbox]:
    """A sandbox of a program that finds no control group, or finds one."""
    with pytest.MonkeyPatch.context() as patch:
        if tree_kill == "subreaper":
            patch.setattr(machine, "find_hierarchies", lambda: Hierarchies(None))
        embedded = fresh_provider(patch)
        next(embedded)
        async with AsyncSandbox.create() as sandbox:
            assert (await sandbox.info()).tree_kill == tree_kill
            yield sandbox


def fresh_provider(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the program knows of the machine is found out once: here it is found out anew."""
    from cove.api.provider import provider_for

    patch.setattr(provider_for(None, None), "_machine", None)
    yield


@pytest.fixture(autouse=True)
def others() -> None:
    """What runs below this program already, as a server that tests share does, is not the sandbox's."""
    OTHERS.clear()
    OTHERS.update(processes_below(os.getpid()))


def commands_outside() -> list[str]:
    """Every process below this program that is not one of Cove's own."""
    found = [describe(pid) for pid in processes_below(os.getpid()) if pid not in OTHERS]
    return [text for text in found if text and "init.pyc" not in text and "bwrap" not in text and text != GONE]


async def assert_gone(sandbox: AsyncSandbox) -> None:
    assert await commands_inside(sandbox) == []
    assert commands_outside() == []


@pytest.mark.parametrize("name", TREES)
async def test_kill_leaves_nothing_of_the_tree(name: str, tree_kill: str) -> None:
    async with sandbox_with(tree_kill) as sandbox:
        process = await sandbox.start_process(TREES[name])
        await process.wait_for_log("up", timeout=30)
        await process.kill("KILL")
        assert (process.outcome, process.exit_code) == (Outcome.KILLED, 137)
        await assert_gone(sandbox)


@pytest.mark.parametrize("name", TREES)
async def test_terminate_leaves_nothing_of_the_tree(name: str, tree_kill: str) -> None:
    async with sandbox_with(tree_kill) as sandbox:
        process = await sandbox.start_process(TREES[name])
        await process.wait_for_log("up", timeout=30)
        await process.terminate(grace=0.2)
        assert process.outcome is Outcome.KILLED
        await assert_gone(sandbox)


async def test_a_comet_is_caught(tree_kill: str) -> None:
    async with sandbox_with(tree_kill) as sandbox:
        process = await sandbox.start_process(["python3", "-I", "-S", "-c", COMET])
        await process.wait_for_log("up", timeout=30)
        async with asyncio.timeout(30):
            await process.kill("KILL")
        assert (await sandbox.exec("cmp <(stat -c %s count) <(sleep 0.1; stat -c %s count)")).exit_code == 0
        await assert_gone(sandbox)


async def test_term_reaches_every_process_of_the_tree(tree_kill: str) -> None:
    script = """
    for n in 1 2 3; do
        setsid bash -c 'trap "echo down; exit" TERM; echo up; while :; do sleep 0.01; done' &
    done
    trap 'wait; echo last; exit 3' TERM
    while :; do sleep 0.01; done
    """
    async with sandbox_with(tree_kill) as sandbox:
        process = await sandbox.start_process(script)
        await lines(process, "up", 3)
        await process.kill()
        assert (await process.wait(timeout=30)).exit_code == 3
        assert (await process.output()).stdout.split() == ["up"] * 3 + ["down"] * 3 + ["last"]
        await assert_gone(sandbox)


async def test_term_reaches_what_is_forked_while_the_tree_is_signalled(tree_kill: str) -> None:
    script = "for n in {1..400}; do sleep 1000 & [ $n != 20 ] || echo up; done; wait"
    async with sandbox_with(tree_kill) as sandbox:
        for _ in range(20):
            process = await sandbox.start_process(script)
            await process.wait_for_log("up")
            await process.kill()
            assert (await process.wait(timeout=30)).exit_code == 143
            await assert_gone(sandbox)


async def test_what_a_process_starts_because_of_a_signal_does_not_get_that_signal(tree_kill: str) -> None:
    script = """
    trap 'bash -c "sleep 0.2; echo tidied up"; exit 3' TERM
    echo up
    while :; do sleep 0.01; done
    """
    async with sandbox_with(tree_kill) as sandbox:
        for _ in range(5):
            process = await sandbox.start_process(script)
            await process.wait_for_log("up")
            await process.kill()
            assert (await process.wait(timeout=30)).exit_code == 3
            assert (await process.output()).stdout == "up\ntidied up\n"


async def lines(process: Process, line: str, count: int) -> None:
    text = ""
    async for event in process.logs():
        text += getattr(event, "data", b"").decode()
        if text.split().count(line) == count:
            return


async def test_a_hundred_processes_are_killed_at_once(tree_kill: str) -> None:
    async with sandbox_with(tree_kill) as sandbox:
        command = "trap '' TERM; setsid sleep 1000 & sleep 1001 & echo up; wait; sleep 1002"
        started = await asyncio.gather(*(sandbox.start_process(command) for _ in range(100)))
        await asyncio.gather(*(process.wait_for_log("up") for process in started))
        assert await sandbox.kill_all_processes("KILL") == 100
        assert {(process.outcome, process.exit_code) for process in started} == {(Outcome.KILLED, 137)}
        await assert_gone(sandbox)
        assert (await sandbox.exec("echo still works")).stdout == "still works\n"


async def test_killing_one_tree_leaves_its_neighbours_alone(tree_kill: str) -> None:
    async with sandbox_with(tree_kill) as sandbox:
        command = "setsid sleep 1000 & sleep 1001 & until [ $(pgrep -cx sleep -P $$) = 2 ]; do :; done; echo up; wait"
        one, other = [await sandbox.start_process(command) for _ in range(2)]
        for process in (one, other):
            await process.wait_for_log("up")
        await one.kill("KILL")
        assert sorted(await commands_inside(sandbox)) == [f"/bin/bash -c {command} bash", "sleep 1000", "sleep 1001"]
        await other.kill("KILL")
        await assert_gone(sandbox)


async def test_a_process_that_ends_while_it_is_killed_spoils_nothing_for_the_next(tree_kill: str) -> None:
    """Its launcher is on the way out: whoever comes next must not get it."""
    async with sandbox_with(tree_kill) as sandbox:
        for turns in range(40):
            process = await sandbox.start_process("read", stdin=True)
            await process.close_stdin()
            for _ in range(turns % 8):
                await asyncio.sleep(0)
            kill = asyncio.ensure_future(process.kill("KILL"))
            results = await asyncio.gather(*(sandbox.exec("echo ok") for _ in range(3)))
            await kill
            assert [(result.stdout, result.exit_code) for result in results] == [("ok\n", 0)] * 3


async def test_what_the_tree_held_open_is_free_afterwards(tree_kill: str) -> None:
    async with sandbox_with(tree_kill) as sandbox:
        server = "import socket, os; s = socket.create_server(('127.0.0.1', 5000)); os.fork(); print('up'); s.accept()"
        for _ in range(5):
            process = await sandbox.start_process(["python3", "-uISc", server])
            await process.wait_for_log("up")
            await process.terminate(grace=0)
            assert process.exit_code == 137
        await assert_gone(sandbox)
