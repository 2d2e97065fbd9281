"""Files and git, whatever way the sandbox is reached."""

import asyncio
import hashlib
import os
import tarfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from io import BytesIO
from pathlib import Path

import pytest
from support.serving import MakeSandbox

from cove import (
    ChangesStatus,
    CoveError,
    FileEventKind,
    FileExists,
    FileKind,
    FileNotFound,
    GitFailed,
    GitNotFound,
    IsDirectory,
    NotDirectory,
    PermissionDenied,
    ValidationFailed,
)

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20
ODD_NAMES = ["a b", "ü", "%23#?&=+", "a%2fb", "'\"$\\", "new\nline", "-n", "\udcff\udcfe", "x" * 255, " "]


async def test_any_bytes_go_in_and_come_out(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        files = sandbox.files
        for data in (b"", bytes(range(256)), b"\xff" * MEGABYTE, os.urandom(5 * MEGABYTE)):
            await files.write("file", data)
            assert await files.read("file") == data
        await files.write("text", "grüße\r\n")
        assert await files.read_text("text") == "grüße\r\n"
        assert await files.read_text("text", "latin-1") == "grÃ¼Ã\x9fe\r\n"
        with pytest.raises(ValidationFailed):
            await files.read_text("text", "ascii")
        await files.append("text", b"\xff")
        await files.append("new/log", "line\n")
        assert await files.read("text") == "grüße\r\n".encode() + b"\xff"


async def test_any_name_can_be_used_everywhere(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        files = sandbox.files
        for name in ODD_NAMES:
            await files.write(f"d/{name}", name.encode("utf-8", "surrogateescape"))
        assert sorted(info.name for info in await files.list("d")) == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            assert await files.read(f"/workspace/d/{name}") == name.encode("utf-8", "surrogateescape")
            assert (await files.stat(f"d/{name}")).path == f"/workspace/d/{name}"
            assert await files.exists(f"d/{name}")
        assert sorted(await files.glob("*", root="d")) == sorted(ODD_NAMES)
        assert {Path(match.path).name for match in await files.search("ü", "d")} == {"ü"}
        await files.rename("d/\udcff\udcfe", "d/\udcfe")
        await files.copy("d/\udcfe", "d/copy")
        await files.remove("d/\udcfe")
        assert await files.read("d/copy") == b"\xff\xfe"
        assert (await sandbox.exec("ls -A d | wc -l")).stdout != "0\n"


async def test_a_stream_gives_exactly_the_range(make_sandbox: MakeSandbox) -> None:
    data = os.urandom(3 * MEGABYTE)
    async with make_sandbox() as sandbox:
        await sandbox.files.write("file", data)
        for start, end in (
            (0, None),
            (100, None),
            (0, 100),
            (5, 5),
            (MEGABYTE - 1, MEGABYTE + 1),
            (4 * MEGABYTE, None),
        ):
            chunks = [chunk async for chunk in sandbox.files.read_stream("file", start=start, end=end)]
            assert b"".join(chunks) == data[start:end]
        for start, end in ((-1, None), (5, 4), (0, -1)):
            with pytest.raises(ValidationFailed):
                await anext(sandbox.files.read_stream("file", start=start, end=end))


async def test_a_stream_that_is_left_early_does_no_harm(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec(f"head -c {30 * MEGABYTE} /dev/zero > file")
        for _ in range(5):
            async with aclosing(sandbox.files.read_stream("file")) as chunks:
                await anext(chunks)
        assert (await sandbox.files.stat("file")).size == 30 * MEGABYTE


async def test_a_stream_is_written_in_pieces_and_counted(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        pieces = [os.urandom(size) for size in (0, 1, 1000, MEGABYTE, 3 * MEGABYTE)]

        async def chunks() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        assert await sandbox.files.write_stream("file", chunks(), mode=0o640) == sum(map(len, pieces))
        assert await sandbox.files.read("file") == b"".join(pieces)
        assert (await sandbox.files.stat("file")).mode & 0o777 == 0o640


async def test_a_stream_that_fails_or_is_cancelled_leaves_the_old_file(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.files.write("file", b"old")
        reached = asyncio.Event()

        async def failing() -> AsyncIterator[bytes]:
            yield b"new"
            raise LookupError("the source")

        async def endless() -> AsyncIterator[bytes]:
            yield b"new" * MEGABYTE
            reached.set()
            await asyncio.Event().wait()

        with pytest.raises(LookupError, match="the source"):
            await sandbox.files.write_stream("file", failing())
        writing = asyncio.create_task(sandbox.files.write_stream("file", endless()))
        await reached.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await sandbox.files.read("file") == b"old"
        async with asyncio.timeout(20):  # a server learns of it a moment later
            while [info.name for info in await sandbox.files.list()] != ["file"]:
                await asyncio.sleep(0.01)


async def test_a_write_makes_directories_keeps_modes_and_follows_links(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.files.write("a/b/script", "one", mode=0o755)
        await sandbox.files.write("a/b/script", "two")
        assert (await sandbox.files.stat("a/b/script")).mode & 0o777 == 0o755
        await sandbox.exec("ln -s a/b/script link")
        await sandbox.files.write("link", "three")
        assert await sandbox.files.read("a/b/script") == b"three"
        assert (await sandbox.files.stat("link")).kind is FileKind.SYMLINK
        await sandbox.files.chmod("link", 0o600)
        assert (await sandbox.files.stat("a/b/script")).mode & 0o777 == 0o600


async def test_directories_are_listed_and_described(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec(
            "mkdir -p d/sub; echo 12345 > d/file; ln -s file d/link; mkfifo d/pipe; touch d/.hidden d/sub/x"
        )
        infos = {info.name: info for info in await sandbox.files.list("d")}
        assert [infos[name].kind for name in ("sub", "file", "link", "pipe")] == [
            *(FileKind.DIRECTORY, FileKind.FILE, FileKind.SYMLINK, FileKind.OTHER)
        ]
        assert (infos["file"].size, infos["link"].target, infos["file"].path) == (6, "file", "/workspace/d/file")
        assert ".hidden" in infos
        assert ".hidden" not in {info.name for info in await sandbox.files.list("d", hidden=False)}
        assert "/workspace/d/sub/x" in {info.path for info in await sandbox.files.list("d", recursive=True)}
        assert (await sandbox.files.stat("d/file")) == infos["file"]


async def test_what_is_made_moved_copied_and_removed(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        files = sandbox.files
        await files.mkdir("a/b/c")
        await files.mkdir("a/b/c")
        await files.write("a/b/c/file", "x")
        await files.copy("a", "copy")
        await files.move("copy/b", "/tmp")
        assert await files.read("/tmp/b/c/file") == b"x"
        await files.rename("a/b/c/file", "file")
        assert not await files.exists("a/b/c/file")
        await files.remove("file")
        await sandbox.exec("chmod 0 a/b")
        await files.remove_tree("a")
        assert [info.name for info in await files.list()] == ["copy"]


async def test_text_is_searched_and_replaced_exactly(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        files = sandbox.files
        await files.write("src/one.py", "def one():\n    return 1\n")
        await files.write("src/two.txt", "return 2\n")
        await files.write("src/binary", b"return\0")
        (match,) = await files.search(r"return \d", "src", glob="*.py")
        assert (match.path, match.line_number, match.line) == ("/workspace/src/one.py", 2, "    return 1")
        assert len(await files.search("return", limit=1)) == 1
        assert await files.glob("**/*.py") == ["src/one.py"]
        assert [await files.glob(pattern) for pattern in ("", ".", "./", "[z-a]", "[", "[]")] == [[]] * 6
        assert await files.replace("src/one.py", "return 1", "return 'ü'") == 1
        assert await files.read_text("src/one.py") == "def one():\n    return 'ü'\n"
        assert await files.replace("src/two.txt", "r", "R", count=None) == 2
        with pytest.raises(ValidationFailed):
            await files.replace("src/two.txt", "absent", "x")


REFUSALS: list[tuple[str, type[CoveError]]] = [
    ("read('missing')", FileNotFound),
    ("read('missing \\udcff')", FileNotFound),
    ("read('directory')", IsDirectory),
    ("read('file/below')", NotDirectory),
    ("read('secret')", PermissionDenied),
    ("read('/dev/zero')", ValidationFailed),
    ("read('fifo')", ValidationFailed),
    ("read('')", ValidationFailed),
    ("read('a\\0b')", ValidationFailed),
    ("read(b'file')", ValidationFailed),
    ("read('\\ud800')", ValidationFailed),
    ("write('directory', b'')", IsDirectory),
    ("write('file/below', b'')", NotDirectory),
    ("write('/usr/x', b'')", PermissionDenied),
    ("write('x', 5)", ValidationFailed),
    ("write('x', '\\ud800')", ValidationFailed),
    ("write('x', b'', mode=0o10000)", ValidationFailed),
    ("write('x', b'', mode='7')", ValidationFailed),
    ("append('directory', b'')", IsDirectory),
    ("mkdir('file')", FileExists),
    ("mkdir('no/such', parents=False)", FileNotFound),
    ("remove('directory')", IsDirectory),
    ("remove('missing')", FileNotFound),
    ("remove_tree('missing')", FileNotFound),
    ("rename('missing', 'x')", FileNotFound),
    ("move('directory', 'directory/below')", ValidationFailed),
    ("copy('fifo', 'x')", ValidationFailed),
    ("list('file')", NotDirectory),
    ("list('closed')", PermissionDenied),
    ("stat('missing')", FileNotFound),
    ("chmod('/usr/bin/env', 0o600)", PermissionDenied),
    ("glob('/etc/*')", ValidationFailed),
    ("search('(')", ValidationFailed),
    ("search('x', limit=0)", ValidationFailed),
    ("replace('file', '', 'b')", ValidationFailed),
    ("upload('/no/such/file', 'x')", FileNotFound),
    ("download('missing', '/tmp/x')", FileNotFound),
    ("check_changes(include='*.py')", ValidationFailed),
]


async def test_what_cannot_be_done_says_why(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        prepare = "mkdir directory; touch file secret; chmod 0 secret; mkfifo fifo; mkdir -m 0 closed; find . | sort"
        before = (await sandbox.exec(prepare)).stdout
        for call, error in REFUSALS:
            with pytest.raises(CoveError) as raised:
                await eval(f"files.{call}", {"files": sandbox.files})
            assert type(raised.value) is error, call
        assert (await sandbox.exec("find . | sort")).stdout == before


def fill(top: Path) -> None:
    (top / "deep/er").mkdir(parents=True)
    (top / "deep/er/data").write_bytes(bytes(range(256)) * 10_000)
    (top / "deep/link").symlink_to("er/data")
    (top / "script").write_text("#!/bin/sh\n")
    (top / "script").chmod(0o751)
    (top / os.fsdecode(b"odd \xff")).write_bytes(b"odd")


def snapshot(top: Path) -> list[tuple[bytes, int, bytes]]:
    found = []
    for path in sorted(top.rglob("*")):
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found.append((os.fsencode(path.relative_to(top)), path.lstat().st_mode, content))
    return found


async def test_trees_and_files_are_uploaded_and_downloaded(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    fill(tmp_path / "here")
    async with make_sandbox() as sandbox:
        await sandbox.files.upload(tmp_path / "here", "there")
        await sandbox.files.download("there", tmp_path / "back")
        assert snapshot(tmp_path / "back") == snapshot(tmp_path / "here")
        await sandbox.files.upload(tmp_path / "here/script", "one")
        await sandbox.files.download("one", tmp_path / "one")
        assert (tmp_path / "one").stat().st_mode & 0o777 == 0o751
        for path, local in (("there", tmp_path / "one"), ("one", tmp_path / "back")):
            with pytest.raises(CoveError):
                await sandbox.files.download(path, local)


async def test_a_large_file_is_transferred_whole(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    data = os.urandom(40 * MEGABYTE)
    (tmp_path / "large").write_bytes(data)
    async with make_sandbox() as sandbox:
        await sandbox.files.upload(tmp_path / "large", "large")
        expected = hashlib.sha256(data).hexdigest()
        assert (await sandbox.exec("sha256sum large")).stdout.split()[0] == expected
        await sandbox.files.download("large", tmp_path / "back")
        assert hashlib.sha256((tmp_path / "back").read_bytes()).hexdigest() == expected


async def test_a_tar_stream_goes_both_ways_and_hostile_ones_are_refused(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.files.write("d/file", "content")
        archive = b"".join([chunk async for chunk in sandbox.files.read_archive("d")])
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            assert [member.name for member in tar.getmembers() if member.isfile()] == ["./file"]

        async def chunks(data: bytes) -> AsyncIterator[bytes]:
            yield data

        await sandbox.files.write_archive("again", chunks(archive))
        assert await sandbox.files.read("again/file") == b"content"
        for name in ("../out", "/etc/out", "a/../../out"):
            made = BytesIO()
            with tarfile.open(fileobj=made, mode="w") as tar:
                tar.addfile(tarfile.TarInfo(name))
            with pytest.raises(ValidationFailed):
                await sandbox.files.write_archive("again", chunks(made.getvalue()))
        with pytest.raises(ValidationFailed):
            await sandbox.files.write_archive("again", chunks(b"not a tar archive" * 100))
        with pytest.raises(FileNotFound):
            await anext(sandbox.files.read_archive("missing"))
        assert (await sandbox.exec("ls again")).stdout == "file\n"


async def test_a_watcher_sees_changes_and_can_leave(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.files.mkdir("d")
        async with aclosing(sandbox.files.watch("d")) as events:
            assert (await anext(events)).kind is FileEventKind.WATCHING
            await sandbox.exec("mkdir d/\udcff; mv d/\udcff d/moved; rmdir d/moved")
            seen = [await anext(events) for _ in range(3)]
        assert [event.kind for event in seen] == [FileEventKind.CREATE, FileEventKind.MOVE, FileEventKind.DELETE]
        assert (seen[0].path, seen[1].old_path) == ("/workspace/d/\udcff", "/workspace/d/\udcff")
        with pytest.raises(FileNotFound):
            await anext(sandbox.files.watch("missing"))
        with pytest.raises(ValidationFailed):
            await anext(sandbox.files.watch(include="*.py"))


async def test_changes_are_told_afterwards(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.files.write("d/file", "1")
        first = await sandbox.files.check_changes("d")
        assert first.status is ChangesStatus.UNCHANGED
        assert (await sandbox.files.check_changes("d", since=first.version)).status is ChangesStatus.UNCHANGED
        await sandbox.files.write("d/file", "22")
        assert (await sandbox.files.check_changes("d", since=first.version)).status is ChangesStatus.CHANGED
        assert (await sandbox.files.check_changes("d", since="other")).status is ChangesStatus.RESYNC


async def test_many_file_calls_at_once_do_not_mix(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:

        async def work(number: int) -> None:
            data = os.urandom(50_000)
            await sandbox.files.write(f"d/{number}", data)
            assert await sandbox.files.read(f"d/{number}") == data

        await asyncio.gather(*map(work, range(40)))
        assert len(await sandbox.files.list("d")) == 40


async def test_a_repository_is_cloned_and_failures_are_told_apart(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        make = """set -e
        git config --global user.name T; git config --global user.email t@example.com
        git init -q -b main /tmp/origin; cd /tmp/origin; echo 1 > file; git add .; git commit -qm 1
        git rev-parse HEAD"""
        commit = (await sandbox.exec(make)).check().stdout.strip()
        clone = await sandbox.git.clone("file:///tmp/origin", "a/b", depth=1)
        assert (clone.path, clone.branch, clone.commit) == ("/workspace/a/b", "main", commit)
        for url, error in (("file:///tmp/missing", GitNotFound), ("/workspace/a", GitNotFound)):
            with pytest.raises((error, GitFailed)):
                await sandbox.git.clone(url, "c")
        with pytest.raises(FileExists):
            await sandbox.git.clone("file:///tmp/origin", "a/b")
        for arguments in ({"url": ""}, {"url": b"x"}, {"depth": 0}, {"timeout": -1}):
            with pytest.raises(ValidationFailed):
                await sandbox.git.clone(**{"url": "file:///tmp/origin", **arguments})  # type: ignore[arg-type]
