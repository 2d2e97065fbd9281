"""A program that is killed anywhere in a change of state leaves the old one or the new one, whole, and no garbage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.crash import program_text, run_to_its_death
from support.leaks import control_groups, processes_below
from support.programs import mounts_below, places, wait_until_gone

PROGRAM = """
import asyncio, sys
from support.crash import arm_changes
from cove import AsyncSandbox, AsyncSnapshot, AsyncVolume, VolumeMount

async def main():
    sandbox = await AsyncSandbox.create()
    await sandbox.exec("echo 1 > f")
    first = await sandbox.snapshot(name="1")
    await sandbox.exec("echo 2 > f")
    {prepare}
    print("ready", flush=True)
    sys.stdin.readline()
    count = arm_changes({last})
    {change}
    print(count(), flush=True)

asyncio.run(main())
"""
# What each snapshot and each volume has, what is loaded from an export, and nothing is left of them.
NEXT = """
import asyncio, json, os
from cove import AsyncSandbox, AsyncSnapshot, AsyncVolume, VolumeMount
from cove.errors import CoveError

async def content(**options):
    async with AsyncSandbox.create(**options) as sandbox:
        return (await sandbox.exec("cat f /data/f 2>/dev/null; echo more > /data/g")).stdout

async def main():
    export = os.path.join(os.environ["COVE_HOME"], "..", os.environ["EXPORT"])
    found = {"snapshots": [], "volumes": [], "backups": []}
    await content()
    if os.path.exists(export):
        await AsyncSnapshot.load(export)
    for info in await AsyncSnapshot.list():
        found["snapshots"].append([info.name, await content(snapshot=info.id)])
        await (await AsyncSnapshot.get(info.id)).delete()
    for info in await AsyncVolume.list():
        found["volumes"].append([info.name, await content(mounts=[VolumeMount(volume=info.name, target="/data")])])
        await (await AsyncVolume.get(info.name)).delete()
    async with AsyncSandbox.create() as sandbox:
        for info in await sandbox.backups.list():
            await sandbox.backups.restore(info.id, "/workspace/restored")
            found["backups"].append((await sandbox.exec("cat restored/f")).stdout)
            await sandbox.backups.delete(info.id)
    print(json.dumps(found))

asyncio.run(main())
"""
HOLD = "held = await sandbox.start_process('exec 3>> f; echo held; sleep 1000'); await held.wait_for_log('held')"
VOLUME = "volume = await AsyncVolume.create('v', size=16 << 20)"
MOUNT = "await sandbox.mounts.add(VolumeMount(volume='v', target='/data', read_only=False))"
OPEN = "id = await sandbox.begin_transaction(); await sandbox.exec('echo 3 > f')"
CHANGES = {
    "snapshot": ("", "await sandbox.snapshot(name='2')"),
    "copying snapshot": (HOLD, "await sandbox.snapshot(name='2')"),
    "delete": ("other = await sandbox.snapshot(name='2')", "await other.delete()"),
    "restore": ("", "await sandbox.restore(first)"),
    "reset": ("", "await sandbox.reset()"),
    "fork": ("", "await sandbox.fork(2)"),
    "copying fork": (HOLD, "await sandbox.fork(2)"),
    "transaction": ("", OPEN),
    "commit": (OPEN, "await sandbox.commit_transaction(id)"),
    "rollback": (OPEN, "await sandbox.rollback_transaction(id)"),
    "export": ("", "await first.export({export!r})"),
    "load": (
        "await first.export({export!r}); await first.delete(); await sandbox.destroy()",
        "await AsyncSnapshot.load({export!r})",
    ),
    "create a volume": ("", VOLUME),
    "delete a volume": (VOLUME, "await volume.delete()"),
    "add a mount": (VOLUME, MOUNT),
    "remove a mount": (
        f"{VOLUME}; {MOUNT}; await sandbox.exec('echo v > /data/f')",
        "await sandbox.mounts.remove('/data')",
    ),
    "create a backup": ("", "await sandbox.backups.create('.')"),
    "delete a backup": ("saved = await sandbox.backups.create('.')", "await sandbox.backups.delete(saved.id)"),
    "stop": ("session = await sandbox.create_session()", "await sandbox.stop()"),
    "start": ("session = await sandbox.create_session(); await sandbox.stop()", "await sandbox.start()"),
    "pause": ("", "await sandbox.pause()"),
    "resume": ("await sandbox.pause()", "await sandbox.resume()"),
    "destroy": ("", "await sandbox.destroy()"),
}


def text(change: str, last: int, export: Path) -> str:
    prepare, action = (each.format(export=str(export)) for each in CHANGES[change])
    return PROGRAM.format(prepare=prepare, change=action, last=last)


def run(text: str, home: Path, export: Path) -> str:
    environment = {**os.environ, "COVE_HOME": str(home), "EXPORT": export.name}
    done = subprocess.run(
        [sys.executable, "-c", program_text(text)],
        input="\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
        env=environment,
    )
    return done.stdout


def changes_of(change: str, home: Path, export: Path) -> int:
    """How many changes there are when nobody is killed."""
    count = int(run(text(change, 0, export), home, export).split()[-1])
    check(change, home, export)
    return count


def check(change: str, home: Path, export: Path) -> None:
    """The next program finds whole things, and leaves nothing when it has removed them."""
    found = json.loads(run(NEXT, home, export))
    assert all(text == f"{name}\n" for name, text in found["snapshots"]), found
    assert found["volumes"] in ([], [["v", ""]], [["v", "v\n"]]), found
    if change == "remove a mount":
        assert found["volumes"] == [["v", "v\n"]]
    if change != "load":
        assert ["1", "1\n"] in found["snapshots"]
    assert found["backups"] in ([], ["2\n"])
    assert places(home) == []
    for name in ("layers", "snapshots", "volumes", "users"):
        assert not (home / name).exists() or os.listdir(home / name) == [], name
    assert mounts_below(home) == []
    if export.exists():
        export.unlink()


def kill_at(change: str, last: int, home: Path, export: Path) -> None:
    before = set(processes_below(os.getpid()))
    run_to_its_death(text(change, last, export), home)
    left = places(home)
    check(change, home, export)
    assert wait_until_gone([pid for pid in processes_below(os.getpid()) if pid not in before]) == []
    assert not [group for group in control_groups() if os.path.basename(group) in left]


@pytest.fixture
def export(other_home: Path) -> Path:
    return other_home.with_suffix(".tar")


# Every change has more than so many steps. Those of `QUICK` are for every run.
STEPS = {
    "snapshot": 20,
    "copying snapshot": 12,
    "fork": 40,
    "rollback": 24,
    "load": 5,
}
QUICK = ["copying snapshot", "fork", "rollback"]
MOST_KILLS = 8


@pytest.mark.parametrize("change", QUICK)
def test_a_change_that_is_killed_in_the_middle_is_recovered(change: str, other_home: Path, export: Path) -> None:
    kill_at(change, STEPS[change], other_home, export)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.timeout(600)
def test_a_change_that_is_killed_anywhere_is_recovered(change: str, other_home: Path, export: Path) -> None:
    count = changes_of(change, other_home, export)
    chosen = {*range(1, count + 1, max(1, -(-count // MOST_KILLS))), STEPS.get(change, 1)}
    for last in sorted(chosen):
        kill_at(change, last, other_home, export)
