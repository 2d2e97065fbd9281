"""A disk that gets full in the middle of a change of state: a clear error, the old state, and nothing left."""

import json
from pathlib import Path

import pytest
from support.full_disk import run_on_small_disk

# Tries the change with more and more room, from none to what it needs.
PROGRAM = """
import asyncio, json, os
from pathlib import Path
from cove import AsyncSandbox, AsyncSnapshot
from cove.errors import CoveError

home = Path(os.environ["COVE_HOME"])
PAGE = 4096

def fill(pages):
    free = os.statvfs(home).f_bfree - pages
    with open(home / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free, 1) * PAGE)

def left():
    names = ["layers", "snapshots", "sandboxes", "users", "backups"]
    found = [str(path.relative_to(home)) for name in names for path in (home / name).glob("*")]
    uppers = [str(path.relative_to(home)) for path in home.glob("sandboxes/*/uppers/*")]
    hidden = [str(path.relative_to(home)) for path in home.glob("**/.*") if "workspace" not in path.parts]
    used = {"backups/lock"}
    for path in home.glob("sandboxes/*/layers.json"):
        stack = json.loads(path.read_text())
        names = [stack["upper"], *stack.get("layers", []), *stack.get("base", [])]
        uppers_there = path.parent.relative_to(home) / "uppers"
        used |= {f"layers/{name}" for name in names} | {str(uppers_there / name) for name in names}
    return sorted({*found, *uppers, *hidden} - used)

async def main():
    sandbox = await AsyncSandbox.create()
    await sandbox.exec("echo 1 > f; head -c 4M /dev/urandom > large")
    first = await sandbox.snapshot(name="1")
    await sandbox.exec("echo 2 > f; cp large other")
    PREPARE
    await settled()
    codes, before = [], left()
    for pages in (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 128, 512, 1024, 1500, 2200, 3000, 4000):
        fill(pages)
        try:
            made = await CHANGE
        except CoveError as error:
            codes.append(error.code)
            (home / "filler").unlink()
            assert left() == before, (pages, set(left()) ^ set(before))
            assert (await sandbox.exec("cat f")).stdout == "2\\n", pages
        else:
            (home / "filler").unlink()
            break
    else:
        raise SystemExit("there was never room enough")
    print(json.dumps([codes, await RESULT]))
    await sandbox.destroy()

async def settled():
    # what was replaced is removed beside the calls
    async with asyncio.timeout(20):
        while any("/uppers/" in name for name in left()):
            await asyncio.sleep(0.01)

async def content(snapshot):
    async with AsyncSandbox.create(snapshot=snapshot) as copy:
        return (await copy.exec("cat f; stat -c %s large other")).stdout.split()

async def of_copy(copies):
    found = (await copies[0].exec("cat f; stat -c %s large other")).stdout.split()
    await copies[0].destroy()
    return found

async def of_itself(sandbox):
    return (await sandbox.exec("cat f; stat -c %s large other")).stdout.split()

async def of_backup(sandbox, saved):
    await sandbox.backups.restore(saved.id, "/workspace/back")
    return (await sandbox.exec("cd back; cat f; stat -c %s large other")).stdout.split()

asyncio.run(main())
"""
SIZE = str(4 << 20)
NEW, OLD = ["2", SIZE, SIZE], ["1", SIZE]
HOLD = "held = await sandbox.start_process('exec 3>> large; echo held; sleep 1000'); await held.wait_for_log('held')"
EXPORT = "await first.export(home / 'sandboxes/../export.tar')"
CHANGES = {
    "snapshot": ("", "sandbox.snapshot()", "content(made)", NEW),
    "copying snapshot": (HOLD, "sandbox.snapshot()", "content(made)", NEW),
    "restore": ("", "sandbox.restore(first)", "of_itself(sandbox)", OLD),
    "fork": ("", "sandbox.fork()", "of_copy(made)", NEW),
    "transaction": ("", "sandbox.begin_transaction()", "of_itself(sandbox)", NEW),
    "export": ("", "first.export(home / 'export.tar')", "content(first)", OLD),
    "load": (
        "await first.export(home / 'export.tar'); await first.delete(); await sandbox.reset(); "
        "await sandbox.exec('echo 2 > f')",
        "AsyncSnapshot.load(home / 'export.tar')",
        "content(made)",
        OLD,
    ),
    "backup": ("", "sandbox.backups.create('.')", "of_backup(sandbox, made)", NEW),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_disk_that_is_full_in_the_middle_leaves_the_old_state(change: str, other_home: Path) -> None:
    prepare, action, result, expected = CHANGES[change]
    text = PROGRAM.replace("PREPARE", prepare or "pass").replace("CHANGE", action).replace("RESULT", result)
    codes, found = json.loads(run_on_small_disk(text, other_home))
    assert found == expected
    assert codes, "it was never full"
    assert set(codes) <= {"SANDBOX_UNAVAILABLE", "NO_SPACE"}
