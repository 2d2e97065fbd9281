"""What hostile code in a sandbox tries with files: to reach the host's, to hang us, or to confuse us."""

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from cove import AsyncSandbox, CoveError, FileNotFound, FileTooLarge, ValidationFailed
from cove.api import Files
from cove.archive.stream import Stream
from cove.runtime.file_transfer import upload_tree
from cove.runtime.files import Files as LivingFiles

pytestmark = pytest.mark.anyio

SECRET = b"the host's own secret"
SWAPS = [2_000, pytest.param(10_000, marks=pytest.mark.slow)]
MEMORY = "/dev/shm"


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A directory of the host with a file that must neither be read nor changed."""
    path = tmp_path / "host"
    path.mkdir()
    (path / "file").write_bytes(SECRET)
    (path / "file").chmod(0o644)
    for parent in (path, *path.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o755)
    yield path
    assert sorted(os.listdir(path)) == ["file"]
    assert (path / "file").read_bytes() == SECRET
    assert (path / "file").stat().st_mode & 0o777 == 0o644


async def drain(files: Files, path: str) -> bytes:
    return b"".join([chunk async for chunk in files.read_stream(path)])


async def first_event(files: Files, path: str) -> None:
    events = files.watch(path)
    await anext(events)
    await events.aclose()


async def pieces() -> AsyncIterator[bytes]:
    yield b"evil"


VERBS: dict[str, Callable[[Files, str, Path], Awaitable[object]]] = {
    "read": lambda files, path, local: files.read(path),
    "read_text": lambda files, path, local: files.read_text(path),
    "read_stream": lambda files, path, local: drain(files, path),
    "write": lambda files, path, local: files.write(path, b"evil"),
    "write_stream": lambda files, path, local: files.write_stream(path, pieces()),
    "append": lambda files, path, local: files.append(path, b"evil"),
    "mkdir": lambda files, path, local: files.mkdir(f"{path}/evil"),
    "remove": lambda files, path, local: files.remove(f"{path}/file"),
    "remove_tree": lambda files, path, local: files.remove_tree(path),
    "rename": lambda files, path, local: files.rename(f"{path}/file", "stolen"),
    "rename to": lambda files, path, local: files.rename("own", f"{path}/evil"),
    "move": lambda files, path, local: files.move(f"{path}/file", "stolen"),
    "move to": lambda files, path, local: files.move("own", f"{path}/evil"),
    "copy": lambda files, path, local: files.copy(path, "stolen"),
    "copy to": lambda files, path, local: files.copy("own", f"{path}/evil"),
    "list": lambda files, path, local: files.list(path),
    "list recursive": lambda files, path, local: files.list(path, recursive=True),
    "chmod": lambda files, path, local: files.chmod(path, 0o777),
    "glob": lambda files, path, local: files.glob("*", root=path),
    "search": lambda files, path, local: files.search("secret", path),
    "replace": lambda files, path, local: files.replace(path, "secret", "evil"),
    "upload": lambda files, path, local: files.upload(local, f"{path}/evil"),
    "download": lambda files, path, local: files.download(path, local / "stolen"),
    "watch": lambda files, path, local: first_event(files, path),
    "check_changes": lambda files, path, local: files.check_changes(path),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("target", ["", "/file"])
async def test_a_link_to_the_host_leads_nowhere(verb: str, target: str, secret: Path, tmp_path: Path) -> None:
    """The path of the host does not exist inside, so that what is made is made inside."""
    local = tmp_path / "local"
    local.mkdir()
    (local / "x").write_bytes(b"evil")
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(["ln", "-s", f"{secret}{target}", "link"])).check()
        await sandbox.files.write("own", b"evil")
        try:
            result = await VERBS[verb](sandbox.files, "link", local)
        except CoveError:
            result = None
        assert not result or SECRET not in repr(result).encode()
        assert not (local / "stolen").exists()
        assert b"secret" not in (await sandbox.exec("cat stolen; cat stolen/*")).stdout_bytes


@pytest.mark.parametrize("verb", VERBS)
async def test_a_link_in_the_middle_of_a_path_leads_nowhere(verb: str, secret: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(["ln", "-s", str(secret.parent), "way"])).check()
        await sandbox.files.write("own", b"evil")
        try:
            result = await VERBS[verb](sandbox.files, "way/host", local)
        except CoveError:
            result = None
        assert not result or SECRET not in repr(result).encode()


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/root/etc/hostname",
        "/proc/1/root",
        "/proc/1/cwd",
        "/proc/1/environ",
        "/proc/self/fd/0",
        "/proc/self/fd/3",
        "/proc/self/exe",
        "/proc/self/mem",
        "/proc/self/ns/mnt",
        "/proc/sysrq-trigger",
        "/proc/kcore",
        "/dev/tty",
        "/dev/ptmx",
        "/dev/stdin",
    ],
)
async def test_magic_links_give_nothing_that_is_not_inside(path: str) -> None:
    """They mean what they mean to the agent, which stands inside and can be read by nobody."""
    async with AsyncSandbox.create() as sandbox:
        try:
            data = await sandbox.files.read(path)
        except CoveError:
            pass
        else:
            own = "$(readlink -f /usr/bin/python3)" if path == "/proc/self/exe" else path
            assert data == (await sandbox.exec(f"cat {own}", max_output=1 << 30)).stdout_bytes
        with pytest.raises(CoveError):
            await sandbox.files.write(path, b"b")
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


SWAPPING = """
import os
os.mkdir('a'); os.mkdir('b')
open('a/file', 'w').write('inside')
os.symlink({target!r}, 'link')
os.symlink('a', 'other')
while True:
    os.rename('link', 'spare'); os.rename('other', 'link'); os.rename('spare', 'other')
"""


async def _swap(call: Callable[[Files], Awaitable[object]], secret: Path, tries: int) -> list[object]:
    """Call again and again while a link is swapped between a place inside and one of the host."""
    results: list[object] = []
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write(f"{MEMORY}/own", b"evil")
        await sandbox.start_process(["python3", "-c", SWAPPING.format(target=str(secret))], cwd=MEMORY)
        while not await sandbox.files.exists(f"{MEMORY}/other"):
            await asyncio.sleep(0)
        for _ in range(tries):
            try:
                results.append(await call(sandbox.files))
            except CoveError:
                continue
    return results


@pytest.mark.parametrize("tries", SWAPS)
async def test_a_link_that_is_swapped_in_a_loop_never_shows_the_hosts_file(tries: int, secret: Path) -> None:
    results = await _swap(lambda files: files.read(f"{MEMORY}/link/file"), secret, tries)
    assert set(results) == {b"inside"}


@pytest.mark.parametrize("tries", SWAPS)
async def test_a_link_that_is_swapped_in_a_loop_never_lets_a_write_out(tries: int, secret: Path) -> None:
    await _swap(lambda files: files.write(f"{MEMORY}/link/file", b"inside"), secret, tries)


@pytest.mark.parametrize("verb", ["append", "chmod", "remove", "mkdir", "list", "stat", "copy", "rename"])
async def test_a_link_that_is_swapped_in_a_loop_changes_nothing_outside(verb: str, secret: Path) -> None:
    calls: dict[str, Callable[[Files], Awaitable[object]]] = {
        "append": lambda files: files.append(f"{MEMORY}/link/file", b"x"),
        "chmod": lambda files: files.chmod(f"{MEMORY}/link/file", 0o666),
        "remove": lambda files: files.remove(f"{MEMORY}/link/file"),
        "mkdir": lambda files: files.mkdir(f"{MEMORY}/link/evil"),
        "list": lambda files: files.list(f"{MEMORY}/link"),
        "stat": lambda files: files.stat(f"{MEMORY}/link/file"),
        "copy": lambda files: files.copy(f"{MEMORY}/own", f"{MEMORY}/link/evil"),
        "rename": lambda files: files.rename(f"{MEMORY}/own", f"{MEMORY}/link/own"),
    }
    await _swap(calls[verb], secret, 500)


async def test_a_swapped_link_never_gets_a_host_file_into_a_download(secret: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with AsyncSandbox.create() as sandbox:
        await sandbox.start_process(["python3", "-c", SWAPPING.format(target=str(secret))], cwd=MEMORY)
        while not await sandbox.files.exists(f"{MEMORY}/other"):
            await asyncio.sleep(0)
        for _ in range(20):
            try:
                await sandbox.files.download(f"{MEMORY}/link", out)
            except CoveError:
                continue
            assert (out / "file").read_bytes() == b"inside"


@pytest.mark.parametrize(
    "kind",
    [
        "mkfifo x",
        "ln -s /dev/zero x",
        "ln -s /dev/tty x",
        "python3 -c \"import socket as s; s.socket(s.AF_UNIX).bind('x')\"",
    ],
)
async def test_what_would_block_or_never_end_is_an_error(kind: str, tmp_path: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(kind)).check()
        for verb in ("read", "read_stream", "append", "write", "copy", "download", "replace", "search"):
            async with asyncio.timeout(20):
                try:
                    result = await VERBS[verb](sandbox.files, "x", tmp_path)
                except CoveError:
                    result = []
            assert result == [], verb


async def test_a_file_that_grows_without_end_is_read_to_where_it_ended(tmp_path: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        writer = await sandbox.start_process("while :; do echo growing; done > x")
        while not await sandbox.files.exists("x") or not (await sandbox.files.stat("x")).size:
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            assert await sandbox.files.read("x")
            assert await drain(sandbox.files, "x")
            await sandbox.files.copy("x", "y")
            await sandbox.files.download("x", tmp_path / "x")
            await sandbox.files.download(".", tmp_path / "all")
        await writer.kill("KILL")


async def test_a_file_that_shrinks_ends_early() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", bytes(3 << 20))
        stream = sandbox.files.read_stream("x")
        size = len(await anext(stream))
        (await sandbox.exec("truncate -s 100 x")).check()
        rest = [len(chunk) async for chunk in stream]
        assert size + sum(rest) < 3 << 20


ODD_NAMES = [
    "new\nline",
    "100%",
    "a%23b",
    "a#b",
    "quote'\"`",
    "$(reboot)",
    "-rf",
    "--help",
    " space ",
    "*",
    "[a]",
    "back\\slash",
    "x" * 255,
    "ü" * 127,
    b"\xff\xfe\x80".decode("utf-8", "surrogateescape"),
    "\x1b[31m",
    "\r",
    "..x",
    "CON",
    "\u202egnp.exe",
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
async def test_an_odd_name_is_only_a_name(name: str, tmp_path: Path) -> None:
    raw = name.encode("utf-8", "surrogateescape")
    async with AsyncSandbox.create() as sandbox:
        files = sandbox.files
        await files.write(f"d/{name}", b"1")
        assert (await sandbox.exec("cd d; printf '%s\\0' * .[!.]*")).stdout_bytes.split(b"\0")[
            0
        ] == raw or name == "..x"
        assert await files.read(f"d/{name}") == b"1"
        assert [info.name for info in await files.list("d")] == [name]
        assert [info.name for info in await files.list("d", recursive=True)] == [name]
        assert [match.path for match in await files.search("1", "d")] == [f"/workspace/d/{name}"]
        if not name.startswith("."):
            assert await files.glob("*", root="d") == [name]
        await files.copy(f"d/{name}", "e")
        await files.copy("d", "f")
        await files.download("f", tmp_path / "f")
        assert os.listdir(os.fsencode(tmp_path / "f")) == [raw]
        await files.upload(tmp_path / "f", "g")
        await files.rename(f"g/{name}", f"g/{name[:-1]}y")
        await files.remove(f"g/{name[:-1]}y")
        await files.remove(f"d/{name}")
        assert await files.list("d") == await files.list("g") == []


async def test_a_name_that_is_too_long_is_refused() -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(ValidationFailed):
            await sandbox.files.write("x" * 256, b"")
        with pytest.raises(ValidationFailed):
            await sandbox.files.read("x/" * 2000 + "x" * 200)
        for call in (sandbox.files.read, sandbox.files.stat, sandbox.files.mkdir, sandbox.files.remove_tree):
            with pytest.raises(ValidationFailed):
                await call("x/" * 100_000)
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_a_tree_beyond_the_longest_path_is_listed_searched_and_removed() -> None:
    deep = "for i in $(seq 60); do mkdir {0} && cd {0} || exit 1; done; echo needle > x".format("d" * 100)
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(f"mkdir top; cd top; {deep}; echo needle > /workspace/top/x")).check()
        found = await sandbox.files.list("top", recursive=True)
        assert 30 < len(found) <= 61
        assert len(await sandbox.files.search("needle", "top")) == 1
        assert await sandbox.files.glob("**/x", root="top") == ["x"]
        await sandbox.files.check_changes("top")
        await sandbox.files.remove_tree("top")
        assert not await sandbox.files.exists("top")


async def test_neighbours_that_write_into_an_errands_pipe_spoil_only_that_call() -> None:
    forge = """
import os, sys
while True:
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if b'errand.pyc' in open(f'/proc/{pid}/cmdline', 'rb').read():
                with open(f'/proc/{pid}/fd/1', 'wb', buffering=0) as pipe:
                    pipe.write(b'\\xff' * 100)
                    print('wrote', flush=True)
        except OSError:
            pass
"""
    async with AsyncSandbox.create() as sandbox:
        forger = await sandbox.start_process(["python3", "-c", forge])
        await sandbox.files.write("x", b"a" * 40 + b"\n")
        with pytest.raises(CoveError):
            await sandbox.files.search(r"(a*)*b")
        await forger.kill("KILL")
        assert len(await sandbox.files.search("aaa")) == 1


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"evil", **facts: object
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    for key, value in facts.items():
        setattr(info, key, value)
    return info, data if kind == tarfile.REGTYPE else b""


def archive(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def with_pax(headers: dict[str, str], name: str = "x") -> bytes:
    info, data = member(name)
    info.pax_headers = headers
    return archive((info, data), format=tarfile.PAX_FORMAT)


def damaged(at: int, value: int) -> bytes:
    data = bytearray(archive(member("x")))
    data[at] = value
    return bytes(data)


REFUSED_ARCHIVES: dict[str, bytes] = {
    "an absolute name": archive(member("/tmp/evil")),
    "an absolute name after a dot": archive(member("//tmp/evil")),
    "a way up": archive(member("../evil")),
    "a way up in the middle": archive(member("a/../../evil")),
    "a way up at the end": archive(member("a/..", tarfile.DIRTYPE)),
    "a pax name that goes up": with_pax({"path": "../evil"}),
    "an absolute pax name": with_pax({"path": "/tmp/evil"}),
    "a long name that goes up": archive(member("a/" * 80 + "../" * 81 + "evil")),
    "an absolute link": archive(member("a", tarfile.SYMTYPE, linkname="/tmp")),
    "a link that goes up": archive(member("a", tarfile.SYMTYPE, linkname="..")),
    "a link that goes up in the middle": archive(member("a/b", tarfile.SYMTYPE, linkname="c/../../../x")),
    "a link over a link": archive(
        member("d/e/f/up", tarfile.SYMTYPE, linkname="../../.."), member("out", tarfile.SYMTYPE, linkname="d/e/f/up/..")
    ),
    "an empty link": archive(member("a", tarfile.SYMTYPE, linkname="")),
    "a file through a link": archive(member("a", tarfile.SYMTYPE, linkname="b"), member("a/evil")),
    "a file through a link to a directory": archive(
        member("b", tarfile.DIRTYPE), member("a", tarfile.SYMTYPE, linkname="b"), member("a/evil")
    ),
    "a directory over a link": archive(
        member("b", tarfile.DIRTYPE), member("a", tarfile.SYMTYPE, linkname="b"), member("a", tarfile.DIRTYPE)
    ),
    "a file through a file": archive(member("a"), member("a/evil")),
    "a file over a directory": archive(member("a", tarfile.DIRTYPE), member("a")),
    "a hard link out": archive(member("a", tarfile.LNKTYPE, linkname="/etc/passwd")),
    "a hard link up": archive(member("a", tarfile.LNKTYPE, linkname="../x")),
    "a hard link to nothing": archive(member("a", tarfile.LNKTYPE, linkname="b")),
    "a hard link to a link": archive(
        member("l", tarfile.SYMTYPE, linkname="b"), member("a", tarfile.LNKTYPE, linkname="l")
    ),
    "a hard link to a directory": archive(member("d", tarfile.DIRTYPE), member("a", tarfile.LNKTYPE, linkname="d")),
    "a character device": archive(member("a", tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "a block device": archive(member("a", tarfile.BLKTYPE, devmajor=8)),
    "a named pipe": archive(member("a", tarfile.FIFOTYPE)),
    "a sparse file": archive(member("a", b"S")),
    "a pax sparse file": with_pax({"GNU.sparse.major": "1", "GNU.sparse.size": "9999999999999"}),
    "a volume": archive(member("a", b"V")),
    "no name": archive(member(".")),
    "a name beyond the longest path": archive(member("x/" * 3000 + "y")),
    "a name beyond the deepest": archive(member("x/" * 500 + "y")),
    "a damaged header": damaged(0, 0x41),
    "a size that is no number": damaged(130, 0x7A),
    "a negative size": damaged(124, 0xFF),
    "a pax size that is no number": with_pax({"size": "-5"}),
    "the end in a header": archive(member("x"))[:300],
    "the end in the content": archive(member("x", data=b"e" * 5000))[:2000],
    "no end mark": archive(member("x"))[:1024],
    "nothing": b"",
    "no archive": os.urandom(20_000),
    "extended headers without end": with_pax({"path": "y"})[:1024] * 100,
    "a huge extended header": archive(member("y" * 70_000)),
}


@pytest.mark.parametrize("name", REFUSED_ARCHIVES)
async def test_a_hostile_archive_is_refused_and_the_old_tree_stays(name: str) -> None:
    good = archive(member("before", data=b"good"), member("old", data=b"changed"))[:1536]
    data = good[:1024] + REFUSED_ARCHIVES[name] if REFUSED_ARCHIVES[name] else b""
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("target/old", b"old")
        await sandbox.files.write("x", b"1")
        before = (await sandbox.exec("find / -xdev -newer x 2>/dev/null; find . /tmp | sort")).stdout
        with pytest.raises(CoveError) as raised:
            await unpack(sandbox, data, "target")
        assert raised.value.code in ("VALIDATION_FAILED", "FILE_TOO_LARGE")
        assert await sandbox.files.read("target/old") == b"old"
        assert (await sandbox.exec("find / -xdev -newer x 2>/dev/null; find . /tmp | sort")).stdout == before


async def unpack(
    sandbox: AsyncSandbox, data: bytes, path: str, most_bytes: int = 1 << 30, most_entries: int = 1000
) -> None:
    """Unpack these very bytes inside."""
    files = sandbox.files
    assert isinstance(files, LivingFiles)

    def write(stream: Stream) -> None:
        stream.write(data)

    await upload_tree(files._errands, write, files._path(path), most_bytes, most_entries)


async def test_a_good_archive_is_unpacked_with_all_that_is_harmless() -> None:
    data = archive(
        member("./", tarfile.DIRTYPE, mode=0o750),
        member("long/" * 60 + "name", data=b"1"),
        member("set", mode=0o6755),
        member("one", data=b"first"),
        member("one", data=b"second"),
        member("two", tarfile.LNKTYPE, linkname="one"),
        member("dir/locked", tarfile.DIRTYPE, mode=0o500),
        member("dir/locked/x", data=b"2"),
        member("dir/up", tarfile.SYMTYPE, linkname="../one"),
        member(b"\xff".decode("utf-8", "surrogateescape"), data=b"3"),
    )
    async with AsyncSandbox.create() as sandbox:
        files = sandbox.files
        await unpack(sandbox, data, "new")
        assert await files.read("new/" + "long/" * 60 + "name") == b"1"
        assert (await files.stat("new/set")).mode == 0o755
        assert (await files.stat("new")).mode == 0o750
        assert await files.read("new/one") == await files.read("new/two") == await files.read("new/dir/up") == b"second"
        assert (await files.stat("new/dir/locked")).mode == 0o500
        assert await files.read("new/dir/locked/x") == b"2"
        assert await files.read("new/" + b"\xff".decode("utf-8", "surrogateescape")) == b"3"


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
async def test_long_names_of_every_format_are_understood(format: int) -> None:
    name = "d" * 90 + "/" + "n" * (90 if format == tarfile.USTAR_FORMAT else 200)
    async with AsyncSandbox.create() as sandbox:
        await unpack(sandbox, archive(member(name, data=b"1"), format=format), "new")
        assert await sandbox.files.read(f"new/{name}") == b"1"


async def test_an_archive_beyond_the_limits_is_refused() -> None:
    async with AsyncSandbox.create() as sandbox:
        big = archive(*(member(f"x{number}", data=bytes(1000)) for number in range(100)))
        with pytest.raises(FileTooLarge):
            await unpack(sandbox, big, "new", most_bytes=99_999)
        with pytest.raises(FileTooLarge):
            await unpack(sandbox, big, "new", most_entries=99)
        claims = archive(member("x"))
        header = bytearray(claims[:512])
        header[124:136] = b"77777777777\0"
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:512]))
        with pytest.raises(FileTooLarge):
            await unpack(sandbox, bytes(header) + claims[512:], "new")
        assert await sandbox.files.list() == []
        await unpack(sandbox, big, "new", most_bytes=100_000, most_entries=100)
        assert len(await sandbox.files.list("new")) == 100


async def test_a_full_disk_in_the_middle_of_an_archive_leaves_the_old_tree() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/dev/shm/t/old", b"old")
        with pytest.raises(CoveError) as raised:
            await unpack(sandbox, archive(member("old"), member("big", data=bytes(300 << 20))), "/dev/shm/t")
        assert raised.value.code == "NO_SPACE"
        assert [info.name for info in await sandbox.files.list("/dev/shm/t")] == ["old"]
        assert await sandbox.files.read("/dev/shm/t/old") == b"old"


HOSTILE_TREES = {
    "an absolute link": "ln -s /etc/passwd t/evil",
    "a link up": "ln -s ../../../../etc/passwd t/evil",
    "a link over a link": "mkdir -p t/a/b; ln -s ../.. t/a/b/up; ln -s a/b/up/../x t/evil",
}


@pytest.mark.parametrize("name", HOSTILE_TREES)
async def test_a_planted_link_does_not_come_to_the_host(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_bytes(b"old")
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(f"mkdir t; echo 1 > t/file; {HOSTILE_TREES[name]}")).check()
        with pytest.raises(ValidationFailed, match="lead out"):
            await sandbox.files.download("t", out)
    assert os.listdir(out) == ["old"]


async def test_a_download_does_not_follow_links_that_are_on_the_host_already(secret: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "way").symlink_to(secret)
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("t/way/file", b"evil")
        with pytest.raises(CoveError):
            await sandbox.files.download("t", out)
    assert (out / "way").is_symlink()


async def test_a_download_brings_no_device_and_no_set_user_id_bit(tmp_path: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir t; echo 1 > t/x; chmod 6755 t/x; mkfifo t/fifo; echo 1 > y; chmod 6755 y")).check()
        await sandbox.files.download("t", tmp_path / "t")
        await sandbox.files.download("y", tmp_path / "y")
    assert os.listdir(tmp_path / "t") == ["x"]
    assert (tmp_path / "t/x").stat().st_mode & 0o7777 == (tmp_path / "y").stat().st_mode & 0o7777 == 0o755


async def test_a_sparse_bomb_does_not_fill_the_hosts_disk(tmp_path: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir t; truncate -s 5T t/bomb; cp --sparse=always t/bomb bomb")).check()
        for path in ("t", "bomb"):
            with pytest.raises(FileTooLarge):
                await sandbox.files.download(path, tmp_path / "out")
    assert os.listdir(tmp_path) == []


async def test_an_upload_reads_no_link_of_the_host(secret: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    (local / "link").symlink_to(secret)
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(ValidationFailed, match="lead out"):
            await sandbox.files.upload(local, "new")
        with pytest.raises(FileNotFound):
            await sandbox.files.stat("new")
