"""Files and trees between the host and the sandbox."""

import asyncio
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from cove import AsyncSandbox, CoveError, FileExists, IsDirectory, NotDirectory, PermissionDenied
from cove.runtime.files import Files as LivingFiles

pytestmark = [pytest.mark.anyio, pytest.mark.pure]


def fill(top: Path) -> None:
    """A tree with what trees have."""
    (top / "deep/er").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "deep/er/data").write_bytes(bytes(range(256)) * 1000)
    (top / "nothing").write_bytes(b"")
    (top / "script").write_text("#!/bin/sh\n")
    (top / "script").chmod(0o751)
    os.utime(top / "script", (1_000_000_000, 1_000_000_000))
    (top / "deep/link").symlink_to("er/data")
    (top / ("long" * 50)).write_text("long name")
    (top / "deep").chmod(0o711)


def snapshot(top: Path) -> list[tuple[str, int, int, bytes]]:
    found = []
    for path in sorted(top.rglob("*")):
        facts = path.lstat()
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        is_plain = path.is_file() and not path.is_symlink()
        found.append((str(path.relative_to(top)), facts.st_mode, int(facts.st_mtime) if is_plain else 0, content))
    return found


async def test_a_tree_goes_in_and_comes_out_as_it_was(tmp_path: Path) -> None:
    fill(tmp_path / "in")
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.upload(tmp_path / "in", "a/tree")
        assert (await sandbox.exec("cat a/tree/deep/link | wc -c")).stdout == "256000\n"
        await sandbox.files.download("a/tree", tmp_path / "b/out")
    assert snapshot(tmp_path / "b/out") == snapshot(tmp_path / "in")


async def test_a_file_goes_in_and_comes_out_with_its_mode(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "in").write_bytes(data)
    (tmp_path / "in").chmod(0o750)
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.upload(tmp_path / "in", "a/file")
        assert await sandbox.files.read("a/file") == data
        assert (await sandbox.files.stat("a/file")).mode == 0o750
        await sandbox.files.download("a/file", tmp_path / "b/out")
    assert (tmp_path / "b/out").read_bytes() == data
    assert (tmp_path / "b/out").stat().st_mode & 0o7777 == 0o750
    assert os.listdir(tmp_path / "b") == ["out"]


async def test_what_is_uploaded_belongs_to_the_sandboxs_user(tmp_path: Path) -> None:
    fill(tmp_path / "in")
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.upload(tmp_path / "in", ".")
        await sandbox.files.upload(tmp_path / "in/script", "file")
        result = await sandbox.exec("find . -not -user user; rm -r deep file; echo changed > script")
        assert result.check().stdout == ""


async def test_trees_are_merged_in_both_directions(tmp_path: Path) -> None:
    fill(tmp_path / "in")
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("deep/er/old", b"old")
        await sandbox.files.write("script", b"old")
        await sandbox.files.upload(tmp_path / "in", ".")
        assert await sandbox.files.read("deep/er/old") == b"old"
        assert await sandbox.files.read("script") == b"#!/bin/sh\n"
        assert not [info for info in await sandbox.files.list(recursive=True) if info.name.startswith(".cove")]
        (tmp_path / "out/deep").mkdir(parents=True)
        (tmp_path / "out/deep/mine").write_bytes(b"mine")
        await sandbox.files.download(".", tmp_path / "out")
    assert (tmp_path / "out/deep/mine").read_bytes() == b"mine"
    assert (tmp_path / "out/deep/er/old").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("before", "error"),
    [("mkdir -p script/x", IsDirectory), ("echo > deep", NotDirectory), ("ln -s /tmp deep", NotDirectory)],
)
async def test_what_is_in_the_way_is_seen_before_anything_changes(
    before: str, error: type[CoveError], tmp_path: Path
) -> None:
    fill(tmp_path / "in")
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(before)).check()
        with pytest.raises(error):
            await sandbox.files.upload(tmp_path / "in", ".")
        assert len(await sandbox.files.list()) == 1


async def test_a_tree_does_not_replace_a_file_nor_a_file_a_directory(tmp_path: Path) -> None:
    fill(tmp_path / "in")
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("file", b"1")
        await sandbox.files.write("tree/x", b"1")
        with pytest.raises(NotDirectory):
            await sandbox.files.upload(tmp_path / "in", "file")
        with pytest.raises(IsDirectory):
            await sandbox.files.upload(tmp_path / "in/script", "tree")
        with pytest.raises(IsDirectory):
            await sandbox.files.download("file", tmp_path / "in/deep")
        with pytest.raises((NotDirectory, FileExists)):
            await sandbox.files.download("tree", tmp_path / "in/script")


async def test_what_the_sandbox_may_not_write_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "in")
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(PermissionDenied):
            await sandbox.files.upload(tmp_path / "in", "/usr/new")
        with pytest.raises(PermissionDenied):
            await sandbox.files.upload(tmp_path / "in/script", "/usr/new")


async def test_a_file_that_may_not_be_read_inside_fails_the_download_by_name(tmp_path: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir t; echo > t/secret; chmod 0 t/secret")).check()
        with pytest.raises(PermissionDenied, match="secret"):
            await sandbox.files.download("t", tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_cancelled_transfer_leaves_nothing(direction: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/big").open("wb") as file:  # no hole, which would take no time
        for _ in range(300):
            file.write(bytes(1 << 20))
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir t; head -c 300M /dev/zero > t/big")).check()
        if direction == "up":
            work = sandbox.files.upload(tmp_path / "in", "new")
        else:
            work = sandbox.files.download("t", tmp_path / "new")
        transfer = asyncio.create_task(work)
        while not (await sandbox.exec(["pgrep", "-f", "errand[.]pyc"])).ok:
            await asyncio.sleep(0)
        transfer.cancel()
        await asyncio.wait([transfer])
        assert transfer.cancelled()
        assert not (await sandbox.exec(["pgrep", "-f", "errand[.]pyc"])).ok
        assert [info.name for info in await sandbox.files.list()] == ["t"]
    assert os.listdir(tmp_path) == ["in"]


async def test_a_cancelled_copy_of_one_file_leaves_nothing(tmp_path: Path) -> None:
    with (tmp_path / "in").open("wb") as file:
        for _ in range(1024):
            file.write(b"x" * (1 << 20))
    async with AsyncSandbox.create() as sandbox:
        transfer = asyncio.create_task(sandbox.files.upload(tmp_path / "in", "new"))
        while not await sandbox.files.list():
            await asyncio.sleep(0)
        transfer.cancel()
        await asyncio.wait([transfer])
        assert await sandbox.files.list() == []


@pytest.mark.parametrize("kind", ["file", "tree"])
def test_a_large_transfer_costs_little_memory(kind: str, tmp_path: Path) -> None:
    program = f"""
import asyncio, os, resource
from cove import AsyncSandbox
async def main():
    os.makedirs({str(tmp_path)!r} + "/in")
    path = {str(tmp_path)!r} + "/in/big"
    with open(path, "wb") as file:
        for _ in range(200):
            file.write(os.urandom(1 << 20))
    local = path if {kind!r} == "file" else os.path.dirname(path)
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("warm", b"up")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await sandbox.files.upload(local, "new")
        await sandbox.files.download("new", {str(tmp_path)!r} + "/out")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
asyncio.run(main())
"""
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(grown) < 40_000
    out = tmp_path / "out" if kind == "file" else tmp_path / "out/big"
    assert out.read_bytes() == (tmp_path / "in/big").read_bytes()


async def test_many_small_files_go_through(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2000):
        (tmp_path / f"in/{number}").write_bytes(b"%d" % number * number)
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.upload(tmp_path / "in", "new")
        await sandbox.files.download("new", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "in")


async def test_transfers_that_are_stuck_do_not_keep_other_sandboxes_from_their_files(tmp_path: Path) -> None:
    async with AsyncSandbox.create() as hostile, AsyncSandbox.create() as other:
        await hostile.files.mkdir("t")
        await hostile.files.write("stuck", "#!/bin/sh\nexec sleep 1000\n", mode=0o755)
        assert isinstance(hostile.files, LivingFiles)
        hostile.files._errands._command[:] = [b"/workspace/stuck"]
        stuck = [asyncio.create_task(hostile.files.download("t", tmp_path / str(number))) for number in range(12)]
        async with asyncio.timeout(60):
            while (await hostile.exec(["pgrep", "-c", "sleep"])).stdout != "12\n":
                await asyncio.sleep(0)
            await other.files.write("x", b"1")
            assert await other.files.read("x") == b"1"
        for task in stuck:
            task.cancel()
        await asyncio.wait(stuck)
    assert os.listdir(tmp_path) == []


async def test_without_isolation_files_work_the_same_way(tmp_path: Path) -> None:
    fill(tmp_path / "in")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        async with AsyncSandbox.create(isolation="none") as sandbox:
            await sandbox.files.upload(tmp_path / "in", "tree")
            assert await sandbox.files.glob("**/data", root="tree") == ["deep/er/data"]
            await sandbox.files.download("tree", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "in")
