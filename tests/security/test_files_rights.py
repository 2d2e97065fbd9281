"""What the code inside may not write, a file call does not write; what is written keeps its owner, mode and names."""

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loop_time import bounded_callbacks

from cove import AsyncSandbox, FileTooLarge, Mount, NoSpace, PermissionDenied, ValidationFailed
from cove.api import Files
from cove.runtime import file_content

pytestmark = pytest.mark.anyio

OLD = b"old text\n"
LARGE = b"large text\n" * 10_000


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data[:1000]
    yield data[1000:]


async def replace_large(files: Files, path: str) -> None:
    await files.replace(path, "old", "new " * 100_000)


async def upload(files: Files, path: str) -> None:
    with tempfile.NamedTemporaryFile() as local:
        local.write(LARGE)
        local.flush()
        await files.upload(local.name, path)


async def copy(files: Files, path: str) -> None:
    await files.write("/tmp/source", LARGE)
    await files.copy("/tmp/source", path)


WRITES: dict[str, Callable[[Files, str], Awaitable[object]]] = {
    "write": lambda files, path: files.write(path, b"new"),
    "write nothing": lambda files, path: files.write(path, b""),
    "write large": lambda files, path: files.write(path, LARGE),
    "write_stream": lambda files, path: files.write_stream(path, pieces(LARGE)),
    "replace": lambda files, path: files.replace(path, "old", "new"),
    "replace large": replace_large,
}
REPLACES = {**WRITES, "upload": upload, "copy": copy}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of the host that every user may write to."""
    with tempfile.TemporaryDirectory(prefix="cove-shared-", dir="/tmp") as path:
        os.chmod(path, 0o777)
        yield Path(path)


@pytest.mark.parametrize("verb", ["append", *REPLACES])
@pytest.mark.parametrize("path", ["file", "link"])
async def test_a_read_only_file_is_not_written(verb: str, path: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("file", OLD, mode=0o444)
        (await sandbox.exec("ln -s file link")).check()
        call = REPLACES[verb](sandbox.files, path) if verb in REPLACES else sandbox.files.append(path, b"new")
        with pytest.raises(PermissionDenied):
            await call
        assert await sandbox.files.read("file") == OLD
        assert [info.name for info in await sandbox.files.list()] == ["file", "link"]


@pytest.mark.parametrize("verb", WRITES)
async def test_a_file_with_several_names_is_written_under_all_of_them(verb: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("file", OLD, mode=0o640)
        (await sandbox.exec("ln file other; ln -s file link")).check()
        before = (await sandbox.exec("stat -c '%i %a' file")).stdout
        await WRITES[verb](sandbox.files, "link")
        assert (await sandbox.exec("stat -c '%i %a' other")).stdout == before
        written = await sandbox.files.read("other")
        assert written != OLD
        assert await sandbox.files.read("file") == written
        assert [info.name for info in await sandbox.files.list()] == ["file", "link", "other"]


async def test_a_full_disk_leaves_a_file_with_several_names_as_it_was() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/dev/shm/x", OLD)
        (await sandbox.exec("ln /dev/shm/x /dev/shm/y")).check()
        await sandbox.exec("head -c 1G /dev/zero > /dev/shm/full")
        for data in (bytes(32_000), bytes(200_000)):
            with pytest.raises(NoSpace):
                await sandbox.files.write("/dev/shm/x", data)
            assert await sandbox.files.read("/dev/shm/y") == OLD


@pytest.mark.parametrize("verb", WRITES)
async def test_what_is_replaced_keeps_its_mode_and_attributes(verb: str) -> None:
    attribute = "import os, sys; os.setxattr('file', 'user.note', b'kept')"
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("file", OLD, mode=0o751)
        if not (await sandbox.exec(["python3", "-ISc", attribute])).ok:
            pytest.skip("this file system has no extended attributes")
        await WRITES[verb](sandbox.files, "file")
        shown = "import os; print(os.getxattr('file', 'user.note'), oct(os.stat('file').st_mode))"
        assert (await sandbox.exec(["python3", "-ISc", shown])).stdout == "b'kept' 0o100751\n"


async def test_a_program_that_runs_is_replaced() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("cp $(readlink -f $(which sleep)) own; chmod 755 own")).check()
        process = await sandbox.start_process(["/workspace/own", "1000"])
        await sandbox.files.write("own", b"#!/bin/sh\necho new\n")
        assert (await sandbox.exec("./own")).stdout == "new\n"
        await sandbox.files.write("own", LARGE)
        await process.kill()


@pytest.mark.parametrize("verb", WRITES)
async def test_a_file_is_written_where_nothing_new_may_be_made(verb: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("directory/file", OLD)
        (await sandbox.exec("chmod 555 directory")).check()
        await WRITES[verb](sandbox.files, "directory/file")
        assert await sandbox.files.read("directory/file") != OLD
        assert (await sandbox.exec("ls -A directory /tmp")).stdout == "/tmp:\n\ndirectory:\nfile\n"
        with pytest.raises(PermissionDenied):
            await sandbox.files.write("directory/new", LARGE)


@pytest.mark.parametrize("verb", WRITES)
async def test_a_file_that_is_a_mount_is_written(verb: str, shared: Path) -> None:
    (shared / "file").write_bytes(OLD)
    (shared / "file").chmod(0o666)
    mounts = [Mount(source=str(shared / "file"), target="/workspace/file", read_only=False)]
    async with AsyncSandbox.create(mounts=mounts) as sandbox:
        await WRITES[verb](sandbox.files, "file")
        assert (shared / "file").read_bytes() == await sandbox.files.read("file") != OLD


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that a sandbox's user does not own")
@pytest.mark.parametrize("verb", REPLACES)
async def test_a_file_of_the_host_that_the_sandbox_may_not_write_stays(verb: str, shared: Path) -> None:
    (shared / "file").write_bytes(OLD)
    (shared / "file").chmod(0o644)
    before = identity(shared / "file")
    mounts = [Mount(source=str(shared), target="/data", read_only=False)]
    async with AsyncSandbox.create(mounts=mounts) as sandbox:
        with pytest.raises(PermissionDenied):
            await REPLACES[verb](sandbox.files, "/data/file")
        with pytest.raises(PermissionDenied):
            await sandbox.files.write_archive("/data", sandbox.files.read_archive("/data"))
        assert identity(shared / "file") == before
        assert (shared / "file").read_bytes() == OLD
        assert os.listdir(shared) == ["file"]


def identity(path: Path) -> tuple[int, ...]:
    """Which file it is and what it says of itself; not when it was read."""
    found = path.stat()
    return found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that a sandbox's user does not own")
@pytest.mark.parametrize("verb", WRITES)
async def test_a_file_of_the_host_that_the_sandbox_may_write_keeps_its_owner(verb: str, shared: Path) -> None:
    (shared / "file").write_bytes(OLD)
    (shared / "file").chmod(0o666)
    mounts = [Mount(source=str(shared), target="/data", read_only=False)]
    async with AsyncSandbox.create(mounts=mounts) as sandbox:
        await WRITES[verb](sandbox.files, "/data/file")
        found = (shared / "file").stat()
        assert (found.st_uid, found.st_mode & 0o777) == (0, 0o666)
        assert (shared / "file").read_bytes() != OLD
        assert os.listdir(shared) == ["file"]


async def test_a_file_that_becomes_read_only_meanwhile_is_not_replaced() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("file", OLD)

        async def closing() -> AsyncIterator[bytes]:
            yield b"new"
            await sandbox.files.chmod("file", 0o444)

        with pytest.raises(PermissionDenied):
            await sandbox.files.write_stream("file", closing())
        assert await sandbox.files.read("file") == OLD
        assert [info.name for info in await sandbox.files.list()] == ["file"]


async def test_a_tree_is_not_copied_over_a_read_only_file_but_unpacked_over_ones_own() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("from/file", b"new")
        await sandbox.files.write("to/file", OLD, mode=0o444)
        (await sandbox.exec("mkdir over; cp -r from over/to; chmod 444 over/to/file; mv to over/from")).check()
        with pytest.raises(PermissionDenied, match="from/file"):
            await sandbox.files.copy("from", "over")
        assert await sandbox.files.read("over/from/file") == OLD
        await sandbox.files.write_archive("over/from", sandbox.files.read_archive("from"))
        assert await sandbox.files.read("over/from/file") == b"new"


@given(
    data=st.text("ab", max_size=40).map(str.encode),
    old=st.text("ab", min_size=1, max_size=6).map(str.encode),
    new=st.text("abc", max_size=3).map(str.encode),
    window=st.integers(1, 7),
)
def test_a_text_is_replaced_in_windows_as_in_one(data: bytes, old: bytes, new: bytes, window: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as write:
        patch.setattr(file_content, "_WINDOW_BYTES", window)
        read.write(data)
        read.flush()
        assert file_content.count_text(read.fileno(), old) == data.count(old)
        assert file_content.replace_text(read.fileno(), write.fileno(), old, new) == data.count(old)
        write.seek(0)
        assert write.read() == data.replace(old, new)


async def test_a_large_file_is_replaced_in_little_memory_and_small_steps() -> None:
    async with AsyncSandbox.create() as sandbox:
        for attempt in bounded_callbacks():
            (await sandbox.exec("truncate -s 256M holes; printf needle >> holes; truncate -s 300M holes")).check()
            before = memory_bytes()
            with attempt:
                assert await sandbox.files.replace("holes", "needle", "pin") == 1
                with pytest.raises(ValidationFailed, match="does not contain"):
                    await sandbox.files.replace("holes", "needle", "pin")
            assert memory_bytes() - before < 30 << 20
            assert (await sandbox.exec("stat -c %s holes; grep -c pin -a holes")).stdout == f"{(300 << 20) - 3}\n1\n"


async def test_what_would_be_too_large_to_replace_is_refused() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("truncate -s 5G holes; truncate -s 20K small; truncate -s 20M large")).check()
        with pytest.raises(FileTooLarge):
            await sandbox.files.replace("holes", "x", "y", count=None)
        for path in ("small", "large"):
            with pytest.raises(FileTooLarge):
                await sandbox.files.replace(path, "\0", "y" * 100_000, count=None)


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
