"""Trees that code inside has made to hurt: kept, restored, compared, copied, exported and removed all the same."""

from contextlib import suppress
from pathlib import Path

import pytest
from support.layers import layers_of_sandboxes

from cove import AsyncSandbox, AsyncSnapshot
from cove.errors import LimitExceeded, SandboxUnavailable, ValidationFailed
from cove.runtime.sandbox import Sandbox

pytestmark = pytest.mark.anyio

# Deeper than a path can be long, sparse, with links, attributes, odd names and modes, fifos and sockets.
MAKE = r"""
import os, socket
os.chdir("/workspace")
for name in (b"con", b"nul.txt", b"COM1", b"line\nbreak", b"\xff\xfe invalid", b"-rf", b" ", b"*", b"a" * 255):
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
os.mkfifo("fifo")
with socket.socket(socket.AF_UNIX) as s:
    s.bind("socket")
with open("sparse", "wb") as file:
    file.seek(1 << 40)
    file.write(b"end")
open("linked", "w").write("linked")
for number in range(50):
    os.link("linked", f"link{number}")
os.symlink("/etc/passwd", "absolute")
os.symlink("../" * 40 + "etc/shadow", "climbing")
os.symlink("loop", "loop")
open("attributes", "w").close()
os.setxattr("attributes", "user.mine", b"\x00\xff" * 500)
os.mkdir("shut")
open("shut/in", "w").close()
for name, mode in (("shut/in", 0), ("shut", 0), ("linked", 0), ("fifo", 0)):
    os.chmod(name, mode)
os.mkdir("deep")
os.chdir("deep")
for _ in range(300):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
open("bottom", "w").write("reached")
"""
LOOK = r"""
import hashlib, os, stat
def look(descriptor, found, top):
    for entry in sorted(os.scandir(descriptor), key=lambda entry: os.fsencode(entry.name)):
        facts = entry.stat(follow_symlinks=False)
        kind, text = stat.S_IFMT(facts.st_mode), b""
        if stat.S_ISLNK(facts.st_mode):
            text = os.fsencode(os.readlink(entry.name, dir_fd=descriptor))
        found.update(b"%s %o %o %d %d %s\n" % (os.fsencode(entry.name), kind, facts.st_mode & 0o7777,
            0 if kind == stat.S_IFDIR else facts.st_size, 0 if kind == stat.S_IFDIR else facts.st_nlink, text))
        if stat.S_ISDIR(facts.st_mode) and facts.st_mode & 0o500:
            below = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            try:
                look(below, found, top)
            finally:
                os.close(below)
import sys
sys.setrecursionlimit(5000)
found = hashlib.sha256()
look(os.open("/workspace", os.O_RDONLY), found, True)
print(found.hexdigest(), os.getxattr("/workspace/attributes", "user.mine").hex()[:8])
"""


async def look(sandbox: AsyncSandbox) -> str:
    result = await sandbox.exec(["python3", "-I", "-c", LOOK])
    assert result.ok, result.stderr
    return result.stdout


@pytest.mark.parametrize("is_held", [False, True], ids=["swapped", "copied"])
async def test_a_hostile_tree_is_kept_copied_and_restored(is_held: bool) -> None:
    async with AsyncSandbox.create() as sandbox:
        made = await sandbox.exec(["python3", "-I", "-c", MAKE])
        assert made.ok, made.stderr
        before = await look(sandbox)
        if is_held:
            await sandbox.exec("rm -r deep")  # a copy has no deeper paths than the kernel takes
            before = await look(sandbox)
            writer = await sandbox.start_process("exec 3>> ~/held; echo held; sleep 1000", cwd="/")
            await writer.wait_for_log("held")
        snapshot = await sandbox.snapshot()
        assert isinstance(sandbox, Sandbox)
        stack = sandbox.layers.place.stack
        assert stack is not None
        assert bool(stack.layers) is not is_held
        assert await look(sandbox) == before
        (copy,) = await sandbox.fork()
        assert await look(copy) == before
        await copy.destroy()
        await sandbox.exec("chmod -R u+rwX . ; rm -rf ./* ; touch only")
        if is_held:
            changes = await sandbox.changes(since=snapshot)
            assert any("line\nbreak" in change.path for change in changes)
            await sandbox.diff(since=snapshot)
        else:
            with pytest.raises(LimitExceeded):  # deeper than the longest path
                await sandbox.changes(since=snapshot)
        await sandbox.restore(snapshot)
        assert await look(sandbox) == before
        await snapshot.delete()


async def test_a_tree_too_deep_to_be_copied_is_refused_and_goes_on(cove_home: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(["python3", "-I", "-c", MAKE])).check()
        writer = await sandbox.start_process("exec 3>> ~/held; echo held; sleep 1000", cwd="/")
        await writer.wait_for_log("held")
        with pytest.raises(SandboxUnavailable, match="could not be copied"):
            await sandbox.snapshot()
        await writer.kill("KILL")
        snapshot = await sandbox.snapshot()
        await snapshot.delete()
    assert layers_of_sandboxes(cove_home) == []


# Marks of overlayfs, where a plain directory takes them: on a file, on a directory, and as a device.
FORGE = r"""
import os, stat
os.chdir("/workspace")
for number, (name, value) in enumerate([
    ("opaque", b"y"), ("opaque", b"x"), ("redirect", b"/../../../../etc"), ("redirect", b"/home"),
    ("metacopy", b""), ("metacopy", b"\0" * 100), ("whiteout", b"y"), ("origin", b"\xff" * 200), ("impure", b"y"),
    ("nlink", b"U+999"), ("upper", b"\xff" * 200), ("protattr", b"ai"),
]):
    os.mkdir(f"d{number}")
    open(f"d{number}/in", "w").write("in")
    for path in (f"d{number}", f"d{number}/in"):
        try:
            os.setxattr(path, f"user.overlay.{name}", value)
        except OSError:
            pass
try:
    os.mknod("device", stat.S_IFCHR | 0o600, 0)
except OSError:
    pass
open("last", "w").write("mine")
"""


async def test_marks_of_overlayfs_that_code_inside_sets_cost_its_own_files_alone(
    tmp_path: Path, cove_home: Path
) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(["python3", "-I", "-c", FORGE])).check()
        snapshot = await sandbox.snapshot()
        for _ in range(2):
            seen = await sandbox.exec("cat last; find . | xargs cat 2>/dev/null; ls -A d2 d3 /etc/shadow 2>/dev/null")
            assert seen.stdout.startswith("mine")
            assert "passwd" not in seen.stdout
            await sandbox.changes()
            await sandbox.diff()
            (copy,) = await sandbox.fork()
            assert (await copy.exec("cat last")).stdout == "mine"
            await copy.destroy()
            await sandbox.restore(snapshot)
        with suppress(ValidationFailed):  # what no archive may bring
            await snapshot.export(tmp_path / "export.tar")
        await snapshot.delete()
    assert layers_of_sandboxes(cove_home) == []


async def test_a_hostile_tree_is_exported_and_loaded(tmp_path: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        # What lies deeper than a path can be long is refused by an archive: this one is without.
        script = MAKE.replace("range(300)", "range(20)")
        made = await sandbox.exec(["python3", "-I", "-c", script])
        assert made.ok, made.stderr
        await sandbox.exec("rm -f socket")  # no archive has one
        before = await look(sandbox)
        snapshot = await sandbox.snapshot()
        await snapshot.export(tmp_path / "export.tar")
        assert (tmp_path / "export.tar").stat().st_size < 1 << 20
        await snapshot.delete()
    loaded = await AsyncSnapshot.load(tmp_path / "export.tar")
    async with AsyncSandbox.create(snapshot=loaded) as copy:
        assert await look(copy) == before
    await loaded.delete()


FILL = """
import os, sys
for number in range(int(sys.argv[1])):
    folder = f"d{number // 1000}"
    number % 1000 or os.mkdir(folder)
    os.close(os.open(f"{folder}/{number}", os.O_CREAT))
"""


@pytest.mark.parametrize("files", [10_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_very_many_files_cost_a_snapshot_nothing_and_go_again(files: int, cove_home: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(["python3", "-I", "-c", FILL, str(files)], timeout=300)).check()
        snapshot = await sandbox.snapshot()
        assert isinstance(sandbox, Sandbox)
        stack = sandbox.layers.place.stack
        assert stack is not None
        assert len(stack.layers) == 1, "not copied"
        await sandbox.exec("rm -r d0")
        (copy,) = await sandbox.fork()
        assert (await copy.exec("ls | wc -l; ls d1 | wc -l")).stdout.split() == [str(files // 1000 - 1), "1000"]
        await copy.destroy()
        assert len(await sandbox.changes(since=snapshot)) == 1001
        await sandbox.restore(snapshot)
        assert (await sandbox.exec("ls | wc -l")).stdout.strip() == str(files // 1000)
        await snapshot.delete()
    assert layers_of_sandboxes(cove_home) == []
