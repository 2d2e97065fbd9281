"""A sandbox that makes snapshots or transactions in a loop stands on few layers, and every snapshot stays exact."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from support.crash import run_to_its_death
from support.layers import layers_of_sandboxes
from support.programs import run_program

from cove import AsyncSandbox, AsyncSnapshot
from cove.core import squash as choice
from cove.layers.store import LayerStore
from cove.local.threads import in_thread
from cove.runtime import squash
from cove.runtime.sandbox import Sandbox

pytestmark = pytest.mark.anyio

# Changes of every kind, so that each layer has what hides the ones below it.
STEP = """
echo {n} > changed; echo {n} > new{n}; rm -f new{before}
rm -rf again; mkdir again; echo {n} > again/only{n}
rm -rf kind; if [ $(({n} % 2)) = 0 ]; then mkdir -m 750 kind; echo {n} > kind/f; else ln -s {n} kind; fi
mkdir -p deep/a/b; touch deep/a/b/{n}; chmod 000 new{n}; echo {n} > ~/h; mkfifo /tmp/p{n}; ln changed link{n}
"""
TELL = r"""
cat changed again/* ~/h; cat kind/f 2>/dev/null
find . ~ /tmp \( -type f -printf '%p %m %s %T@\n' -o -printf '%p %y %m %l\n' \) | sort
"""


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge early, so that few snapshots are enough."""
    for name, value in (("DEEP", 5), ("TOO_DEEP", 6)):
        monkeypatch.setattr(squash, name, value)
    monkeypatch.setattr(choice, "_RUN", 4)


def depth(sandbox: AsyncSandbox) -> int:
    assert isinstance(sandbox, Sandbox)
    stack = sandbox.layers.place.stack
    return 0 if stack is None else len(stack.layers)


async def make_snapshots(sandbox: AsyncSandbox, numbers: range) -> list[tuple[AsyncSnapshot, str]]:
    """Make snapshots, each with what the files looked like."""
    made = []
    for n in numbers:
        (await sandbox.exec(STEP.format(n=n, before=n - 2))).check()
        told = (await sandbox.exec(TELL)).stdout
        made.append((await sandbox.snapshot(name=str(n)), told))
        assert (await sandbox.exec(TELL)).stdout == told
    return made


async def check_snapshots(sandbox: AsyncSandbox, made: list[tuple[AsyncSnapshot, str]]) -> None:
    for snapshot, told in reversed(made):
        await sandbox.restore(snapshot)
        assert (await sandbox.exec(TELL)).stdout == told, snapshot.name


async def no_layers(home: LayerStore) -> bool:
    return not await in_thread(layers_of_sandboxes, home.path.parent)


@pytest.mark.usefixtures("shallow")
async def test_a_long_chain_is_merged_and_every_snapshot_stays_as_it_was() -> None:
    async with AsyncSandbox.create() as sandbox:
        made = await make_snapshots(sandbox, range(20))
        assert depth(sandbox) <= 8
        digests = [await snapshot.digest() for snapshot, _ in made[::6]]
        await check_snapshots(sandbox, made[::3])
        (copy,) = await sandbox.fork()
        await copy.destroy()
        assert [await snapshot.digest() for snapshot, _ in made[::6]] == digests
        latest, told = made[-1]
        async with AsyncSandbox.create(snapshot=latest) as other:
            assert (await other.exec(TELL)).stdout == told
            more = await make_snapshots(other, range(20, 28))
            assert depth(other) <= 8 + 7, "what it was created on and what it has added are merged apart"
            await check_snapshots(other, more[::3])
            report = await other.reset()
            assert report.method == "layers"
            assert (await other.exec(TELL)).stdout == told
        for snapshot, _ in (*made, *more):
            await snapshot.delete()
        assert isinstance(sandbox, Sandbox)
        store = sandbox.layers.store
    assert await no_layers(store)


@pytest.mark.usefixtures("shallow")
async def test_changes_are_found_across_merged_layers() -> None:
    async with AsyncSandbox.create() as sandbox:
        made = await make_snapshots(sandbox, range(12))
        await sandbox.exec("echo x > last; rm changed")
        assert [each.path for each in await sandbox.changes(since=made[-1][0])] == [
            "/workspace/changed",
            "/workspace/last",
        ]
        paths = {each.path for each in await sandbox.changes(since=made[2][0])}
        assert {"/workspace/new11", "/workspace/new2", "/workspace/last", "/tmp/p3"} <= paths
        assert "/workspace/deep/a/b/1" not in paths
        assert "/workspace/deep/a/b/1" in {each.path for each in await sandbox.changes()}
        for snapshot, _ in made:
            await snapshot.delete()


@pytest.mark.usefixtures("shallow")
async def test_transactions_in_a_loop_do_not_deepen_the_chain() -> None:
    async with AsyncSandbox.create() as sandbox:
        for n in range(14):
            async with sandbox.transaction() as change:
                await sandbox.exec(f"echo {n} >> kept; echo {n} > n{n}")
                if n % 3:
                    await change.commit()
        assert depth(sandbox) <= 8
        assert (await sandbox.exec("echo $(cat kept)")).stdout == "1 2 4 5 7 8 10 11 13\n"


@pytest.mark.usefixtures("shallow")
async def test_a_merge_goes_on_beside_calls_and_ends_with_its_sandbox() -> None:
    async with AsyncSandbox.create() as sandbox:
        await make_snapshots(sandbox, range(6))
        await asyncio.gather(*(sandbox.exec("cat changed; echo more >> own") for _ in range(10)), sandbox.snapshot())
        await sandbox.restart()
        assert (await sandbox.exec("wc -l < own")).stdout == "10\n"
        await make_snapshots(sandbox, range(6, 9))
        for info in await AsyncSnapshot.list():
            await (await AsyncSnapshot.get(info.id)).delete()


@pytest.mark.usefixtures("shallow")
async def test_what_cannot_be_merged_is_left_and_said_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from cove.errors import LimitExceeded
    from cove.layers import merging
    from cove.runtime import layers

    monkeypatch.setattr(merging, "MOST_ENTRIES", 1)
    monkeypatch.setattr(layers, "MOST_LAYERS", 9)
    async with AsyncSandbox.create() as sandbox:
        made = [await sandbox.snapshot() for _ in range(9)]
        with pytest.raises(LimitExceeded):
            await sandbox.snapshot()
        assert (await sandbox.exec("echo fine")).stdout == "fine\n"
        await sandbox.restore(made[0])
        made.append(await sandbox.snapshot())
        for snapshot in made:
            await snapshot.delete()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_hundred_snapshots_are_all_as_they_were() -> None:
    async with AsyncSandbox.create() as sandbox:
        made = await make_snapshots(sandbox, range(100))
        assert depth(sandbox) <= 47
        await check_snapshots(sandbox, made[::7])
        for snapshot, _ in made:
            await snapshot.delete()


PROGRAM = """
import asyncio, sys
from support.crash import arm_step
from cove import AsyncSandbox
from cove.core import squash as choice
from cove.runtime import squash
squash.DEEP, squash.TOO_DEEP, choice._RUN = 3, 3, 3

async def main():
    arm_step({step!r}, {moment!r})
    sandbox = await AsyncSandbox.create()
    for n in range(9):
        await sandbox.exec(f"echo {{n}} > f; echo {{n}} > f{{n}}; rm -f f{{n - 2}}")
        await sandbox.snapshot(name=str(n))

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(main())
"""
NEXT = """
import asyncio, json
from cove import AsyncSandbox, AsyncSnapshot

async def main():
    found = {}
    for info in await AsyncSnapshot.list():
        async with AsyncSandbox.create(snapshot=info.id) as sandbox:
            found[info.name] = (await sandbox.exec("echo $(cat f; ls)")).stdout.strip()
        await (await AsyncSnapshot.get(info.id)).delete()
    print(json.dumps(found))

asyncio.run(main())
"""
STEPS = [
    "cove.runtime.squash Squash._adopt before",
    pytest.param("cove.runtime.squash Squash._build before", marks=pytest.mark.slow),
    pytest.param("cove.runtime.squash merge_layers after", marks=pytest.mark.slow),
    pytest.param("cove.runtime.squash Squash._adopt after", marks=pytest.mark.slow),
    "cove.runtime.squash Squash._write_down before",
    pytest.param("cove.runtime.squash Squash._write_down after", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("step", STEPS)
def test_a_program_killed_at_any_step_leaves_its_snapshots_and_no_garbage(step: str, other_home: Path) -> None:
    where, _, moment = step.rpartition(" ")
    run_to_its_death(PROGRAM.format(step=where, moment=moment), other_home)
    found = json.loads(run_program(NEXT, other_home))
    assert len(found) >= 4
    for n, told in found.items():
        assert told == f"{n} f f{n}" if n == "0" else f"{n} f f{int(n) - 1} f{n}"
    assert os.listdir(other_home / "layers") == []
