"""What each file operation promises."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from cove import (
    AsyncSandbox,
    FileExists,
    FileKind,
    FileNotFound,
    FileTooLarge,
    IsDirectory,
    LimitExceeded,
    NoSpace,
    NotDirectory,
    PermissionDenied,
    ProcessExitedBeforeReady,
    SandboxDestroyed,
    SessionNotFound,
    SessionTerminated,
    ValidationFailed,
)
from cove.local.threads import close_in_thread
from cove.runtime.directory_listing import sort_by_path
from cove.runtime.file_access import SMALL_BYTES, make_info

pytestmark = pytest.mark.anyio

EVERY_BYTE = bytes(range(256)) * 1000
MEGABYTE = 1 << 20


async def test_what_is_written_is_read_back_byte_for_byte() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("data", EVERY_BYTE)
        assert await sandbox.files.read("data") == EVERY_BYTE
        assert (await sandbox.exec("cat data")).stdout_bytes == EVERY_BYTE
        await sandbox.files.write("text", "Grüße\n")
        assert await sandbox.files.read_text("text") == "Grüße\n"
        assert await sandbox.files.read_text("text", encoding="latin-1") == "GrÃ¼Ã\x9fe\n"
        await sandbox.files.write("empty", b"")
        assert await sandbox.files.read("empty") == b""


@pytest.mark.parametrize("size", [1, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 3 * SMALL_BYTES])
@pytest.mark.parametrize("pattern", [b"\0", EVERY_BYTE])
async def test_small_and_large_contents_arrive_alike(size: int, pattern: bytes) -> None:
    content = (pattern * (size // len(pattern) + 1))[:size]
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("a/b/data", content, mode=0o640)
        assert await sandbox.files.read("a/b/data") == content
        assert (await sandbox.files.stat("a/b/data")).mode == 0o640
        await sandbox.files.write("a/b/data", b"x" + content)
        assert await sandbox.files.read("a/b/data") == b"x" + content
        assert (await sandbox.files.stat("a/b/data")).mode == 0o640
        assert [info.name for info in await sandbox.files.list("a/b")] == ["data"]


async def test_a_file_of_holes_alone_is_read_as_zeros() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("truncate -s 1000 holes")
        assert await sandbox.files.read("holes") == bytes(1000)


async def test_text_in_another_encoding_is_refused_not_mangled() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("data", b"\xff\xfe")
        with pytest.raises(ValidationFailed, match="not utf-8"):
            await sandbox.files.read_text("data")
        with pytest.raises(ValidationFailed, match="nosuch"):
            await sandbox.files.read_text("data", encoding="nosuch")


async def test_a_relative_path_starts_at_the_working_directory() -> None:
    async with AsyncSandbox.create(workdir="/tmp") as sandbox:
        await sandbox.files.write("./a//b", b"1")
        assert await sandbox.files.read("/tmp/a/b") == b"1"
        assert (await sandbox.files.stat("a/b")).path == "/tmp/a/b"


async def test_a_session_has_files_relative_to_its_directory_also_while_a_command_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(cwd="/tmp")
        await session.files.write("here", b"1")
        await session.exec("mkdir -p deep/er; cd deep/er")
        await session.files.write("there", b"2")
        assert await sandbox.files.read("/tmp/deep/er/there") == b"2"
        (await sandbox.exec("mkfifo /tmp/fifo")).check()
        running = asyncio.create_task(session.exec("cd /; read x < /tmp/fifo", timeout=20))
        assert [info.name for info in await session.files.list()] == ["there"]
        await sandbox.exec("echo > /tmp/fifo", timeout=20)
        await running
        await session.delete()
        with pytest.raises(SessionNotFound):
            await session.files.exists("there")


async def test_the_files_of_a_session_that_ended_are_refused() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        with pytest.raises(SessionTerminated):
            await session.exec("exit 3")
        with pytest.raises(SessionTerminated):
            await session.files.list()


async def test_files_of_a_destroyed_sandbox_are_refused() -> None:
    async with AsyncSandbox.create() as sandbox:
        pass
    with pytest.raises(SandboxDestroyed):
        await sandbox.files.read("x")


REFUSALS: dict[str, list[tuple[str, type[Exception]]]] = {
    "read": [
        ("read('missing')", FileNotFound),
        ("read('directory')", IsDirectory),
        ("read('file/below')", NotDirectory),
        ("read('secret')", PermissionDenied),
        ("read('/proc/self/status')", ValidationFailed),
        ("read('/dev/zero')", ValidationFailed),
        ("read('fifo')", ValidationFailed),
        ("read('')", ValidationFailed),
        ("read('a\\0b')", ValidationFailed),
        ("read('loop')", ValidationFailed),
    ],
    "write": [
        ("write('directory', b'')", IsDirectory),
        ("write('directory/', b'')", IsDirectory),
        ("write('file/below', b'')", NotDirectory),
        ("write('/usr/x', b'')", PermissionDenied),
        ("write('fifo', b'')", ValidationFailed),
        ("write('x', 5)", ValidationFailed),
        ("write('x', '\\ud800')", ValidationFailed),
        ("write('x', b'', mode=0o10000)", ValidationFailed),
        ("write('x', b'', mode=-1)", ValidationFailed),
    ],
    "append": [
        ("append('directory', b'')", IsDirectory),
        ("append('/usr/x', b'')", PermissionDenied),
        ("append('fifo', b'')", ValidationFailed),
    ],
    "mkdir": [
        ("mkdir('file')", FileExists),
        ("mkdir('file/below')", NotDirectory),
        ("mkdir('directory', parents=False)", FileExists),
        ("mkdir('no/such', parents=False)", FileNotFound),
        ("mkdir('/usr/x')", PermissionDenied),
    ],
    "remove": [
        ("remove('directory')", IsDirectory),
        ("remove('missing')", FileNotFound),
        ("remove('/usr/bin/env')", PermissionDenied),
    ],
    "remove_tree": [
        ("remove_tree('missing')", FileNotFound),
        ("remove_tree('file')", NotDirectory),
        ("remove_tree('link')", NotDirectory),
        ("remove_tree('/usr/lib')", PermissionDenied),
    ],
    "rename": [
        ("rename('missing', 'x')", FileNotFound),
        ("rename('file', 'directory')", IsDirectory),
        ("rename('directory', 'full')", FileExists),
    ],
    "move": [
        ("move('missing', 'x')", FileNotFound),
        ("move('directory', 'directory/below')", ValidationFailed),
    ],
    "copy": [
        ("copy('missing', 'x')", FileNotFound),
        ("copy('fifo', 'x')", ValidationFailed),
        ("copy('full', 'full/below')", ValidationFailed),
        ("copy('full', 'file')", NotDirectory),
    ],
    "list": [
        ("list('missing')", FileNotFound),
        ("list('file')", NotDirectory),
        ("list('missing', recursive=True)", FileNotFound),
        ("list('file', recursive=True)", NotDirectory),
        ("list('closed')", PermissionDenied),
    ],
    "stat": [
        ("stat('missing')", FileNotFound),
        ("stat('file/below')", NotDirectory),
    ],
    "chmod": [
        ("chmod('missing', 0o600)", FileNotFound),
        ("chmod('/usr/bin/env', 0o600)", PermissionDenied),
        ("chmod('file', None)", ValidationFailed),
    ],
    "glob": [
        ("glob('*', root='missing')", FileNotFound),
        ("glob('/etc/*')", ValidationFailed),
    ],
    "search": [
        ("search('x', 'missing')", FileNotFound),
        ("search('(')", ValidationFailed),
        ("search('x', limit=0)", ValidationFailed),
    ],
    "replace": [
        ("replace('missing', 'a', 'b')", FileNotFound),
        ("replace('file', '', 'b')", ValidationFailed),
        ("replace('file', 'absent', 'b')", ValidationFailed),
    ],
    "upload": [
        ("upload('/no/such/file', 'x')", FileNotFound),
        ("upload('/dev/null', 'x')", ValidationFailed),
    ],
    "download": [
        ("download('missing', '/tmp/x')", FileNotFound),
        ("download('fifo', '/tmp/x')", ValidationFailed),
    ],
    "check_changes": [
        ("check_changes('missing')", FileNotFound),
        ("check_changes(include='*.py')", ValidationFailed),
    ],
}


@pytest.mark.parametrize("verb", REFUSALS)
async def test_what_cannot_be_done_says_why(verb: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        prepare = "mkdir directory full; touch file full/x secret; chmod 0 secret; mkfifo fifo; ln -s loop loop; "
        prepare += "ln -s full link; mkdir -m 0 closed"
        (await sandbox.exec(prepare)).check()
        before = (await sandbox.exec("find . | sort")).stdout
        for call, error in REFUSALS[verb]:
            with pytest.raises(error) as raised:
                await eval(f"files.{call}", {"files": sandbox.files})
            assert type(raised.value) is error, call
            assert str(raised.value), call
            assert (await sandbox.exec("find . | sort")).stdout == before, call


async def test_a_write_makes_directories_and_replaces_the_file_at_once() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("a/b/c", b"old")
        reader = await sandbox.start_process("exec 3< a/b/c; echo open; read; cat <&3", stdin=True)
        await reader.wait_for_log("open")
        await sandbox.files.write("a/b/c", b"new")
        await reader.close_stdin()
        assert (await reader.output()).stdout == "open\nold"
        assert await sandbox.files.read("a/b/c") == b"new"
        assert [info.name for info in await sandbox.files.list("a/b")] == ["c"]


async def test_readers_never_see_half_a_write() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"a" * MEGABYTE)
        reader = await sandbox.start_process("for i in $(seq 300); do head -c 1 x; tail -c 1 x; wc -c < x; done")
        for letter in b"bcdefghij":
            await sandbox.files.write("x", bytes([letter]) * MEGABYTE)
        output = (await reader.output()).stdout.splitlines()
        assert {line[2:] for line in output} == {str(MEGABYTE)}


async def test_a_file_keeps_its_mode_unless_one_is_given() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("echo > script; chmod 751 script")).check()
        await sandbox.files.write("script", b"1")
        assert (await sandbox.files.stat("script")).mode == 0o751
        await sandbox.files.write("script", b"2", mode=0o600)
        assert (await sandbox.files.stat("script")).mode == 0o600
        await sandbox.files.write("fresh", b"", mode=0o777)
        assert (await sandbox.files.stat("fresh")).mode == 0o777
        await sandbox.files.write("plain", b"")
        assert (await sandbox.files.stat("plain")).mode & 0o600 == 0o600


async def test_a_write_follows_a_link_and_keeps_it() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir d; ln -s d/real one; ln -s one two; ln -s d dir")).check()
        await sandbox.files.write("two", b"1")
        assert await sandbox.files.read("d/real") == b"1"
        await sandbox.files.write("dir/other", b"2")
        assert await sandbox.files.read("d/other") == b"2"
        assert (await sandbox.files.stat("two")).target == "one"


async def test_the_disk_full_in_the_middle_of_a_write_leaves_the_old_file() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/dev/shm/x", b"old")
        with pytest.raises(NoSpace):
            await sandbox.files.write("/dev/shm/x", bytes(300 * MEGABYTE))
        assert await sandbox.files.read("/dev/shm/x") == b"old"
        assert [info.name for info in await sandbox.files.list("/dev/shm")] == ["x"]


async def test_a_full_disk_leaves_the_old_file_also_when_the_new_one_is_small() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/dev/shm/x", b"old")
        await sandbox.exec("head -c 1G /dev/zero > /dev/shm/full")
        with pytest.raises(NoSpace):
            await sandbox.files.write("/dev/shm/x", bytes(20_000))
        assert await sandbox.files.read("/dev/shm/x") == b"old"
        assert [info.name for info in await sandbox.files.list("/dev/shm")] == ["full", "x"]


async def test_a_stream_is_written_in_pieces_and_counted() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%03d" % number

    async with AsyncSandbox.create() as sandbox:
        assert await sandbox.files.write_stream("new/x", pieces(), mode=0o640) == 300
        assert await sandbox.files.read("new/x") == b"".join(b"%03d" % number for number in range(100))
        assert (await sandbox.files.stat("new/x")).mode == 0o640


@pytest.mark.parametrize("sizes", [[], [0], [1, 0, 2], [30_000, 2768], [30_000, 2769], [32_768], [32_769], [1] * 9])
async def test_a_stream_of_any_size_is_written_whole(sizes: list[int]) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number, size in enumerate(sizes):
            yield bytes([number]) * size

    expected = b"".join(bytes([number]) * size for number, size in enumerate(sizes))
    async with AsyncSandbox.create() as sandbox:
        assert await sandbox.files.write_stream("new/x", pieces(), mode=0o640) == len(expected)
        assert await sandbox.files.read("new/x") == expected
        assert (await sandbox.files.stat("new/x")).mode == 0o640
        assert [info.name for info in await sandbox.files.list("new")] == ["x"]


async def test_a_stream_that_fails_leaves_the_old_file() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"new"
        raise OSError("the source is gone")

    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"old")
        with pytest.raises(OSError, match="the source is gone"):
            await sandbox.files.write_stream("x", pieces())
        assert await sandbox.files.read("x") == b"old"
        assert [info.name for info in await sandbox.files.list()] == ["x"]


@pytest.mark.parametrize("times", [1, 100_000])
@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_write_leaves_the_old_file_or_the_new_one_and_nothing_else(steps: int, times: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"old")
        writing = asyncio.create_task(sandbox.files.write("x", b"new" * times))
        for _ in range(steps):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        assert await sandbox.files.read("x") in (b"old", b"new" * times)
        assert [info.name for info in await sandbox.files.list()] == ["x"]


@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_write_cancelled_between_its_pieces_leaves_the_old_file(pieces: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"old")
        reached = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(pieces):
                yield b"new"
            reached.set()
            await asyncio.Event().wait()

        writing = asyncio.create_task(sandbox.files.write_stream("x", endless()))
        await reached.wait()
        writing.cancel()
        await asyncio.wait([writing])
        assert writing.cancelled()
        assert await sandbox.files.read("x") == b"old"
        assert [info.name for info in await sandbox.files.list()] == ["x"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, slice(None)),
        (100, None, slice(100, None)),
        (0, 100, slice(0, 100)),
        (MEGABYTE - 1, MEGABYTE + 1, slice(MEGABYTE - 1, MEGABYTE + 1)),
        (5, 5, slice(0, 0)),
        (3 * MEGABYTE, None, slice(0, 0)),
        (0, 1 << 60, slice(None)),
    ],
)
async def test_a_stream_gives_exactly_the_range(start: int, end: int | None, expected: slice) -> None:
    data = os.urandom(2 * MEGABYTE + 17)
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", data)
        chunks = [chunk async for chunk in sandbox.files.read_stream("x", start=start, end=end)]
        assert b"".join(chunks) == data[expected]


@pytest.mark.parametrize(("start", "end"), [(-1, None), (5, 4)])
async def test_a_range_that_makes_no_sense_is_refused(start: int, end: int | None) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"data")
        with pytest.raises(ValidationFailed):
            await anext(sandbox.files.read_stream("x", start=start, end=end))


async def test_a_stream_that_is_left_early_frees_its_descriptor() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", bytes(3 * MEGABYTE))
        before = len(os.listdir("/proc/self/fd"))
        stream = sandbox.files.read_stream("x")
        await anext(stream)
        assert len(os.listdir("/proc/self/fd")) == before + 1
        await stream.aclose()
        await close_in_thread([])  # behind what is being closed
        assert len(os.listdir("/proc/self/fd")) == before


async def test_a_file_beyond_what_memory_should_hold_is_refused_at_once() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("truncate -s 8E- x 2>/dev/null || truncate -s 10T x || truncate -s 2G x")).check()
        with pytest.raises(FileTooLarge, match="read_stream"):
            await sandbox.files.read("x")


async def test_append_adds_to_the_end_and_makes_what_is_missing() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.append("logs/today", "one\n")
        await sandbox.files.append("logs/today", b"two\n")
        assert await sandbox.files.read("logs/today") == b"one\ntwo\n"
        await asyncio.gather(*(sandbox.files.append("many", f"{number:04}\n") for number in range(200)))
        lines = (await sandbox.files.read_text("many")).split()
        assert sorted(lines) == [f"{number:04}" for number in range(200)]


async def test_mkdir_makes_parents_and_does_not_mind_what_is_there() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.mkdir("a/b/c")
        await sandbox.files.mkdir("a/b/c")
        await sandbox.files.mkdir("a/b/d", parents=False)
        (await sandbox.exec("ln -s a link")).check()
        await sandbox.files.mkdir("link/e/f")
        assert (await sandbox.files.stat("a/e/f")).kind is FileKind.DIRECTORY


async def test_remove_takes_the_link_and_leaves_what_it_points_to() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir d; touch d/x; ln -s d link; ln -s nowhere dangling")).check()
        await sandbox.files.remove("link")
        await sandbox.files.remove("dangling")
        await sandbox.files.remove("d/x")
        assert [info.name for info in await sandbox.files.list()] == ["d"]


async def test_remove_tree_takes_everything_whatever_its_modes_and_follows_no_link() -> None:
    async with AsyncSandbox.create() as sandbox:
        hostile = "mkdir keep; touch keep/x; mkdir -p t/a/b; touch t/a/b/y; ln -s /workspace/keep t/a/link; "
        hostile += (
            "mkfifo t/fifo; chmod 0 t/a/b t/a; cd t; for i in $(seq 400); do mkdir dddddddddd && cd dddddddddd; done"
        )
        (await sandbox.exec(hostile)).check()
        await sandbox.files.remove_tree("t")
        assert [info.path for info in await sandbox.files.list(recursive=True)] == [
            "/workspace/keep",
            "/workspace/keep/x",
        ]


async def test_rename_replaces_a_file() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("a", b"1")
        await sandbox.files.write("b", b"2")
        await sandbox.files.rename("a", "b")
        assert [info.name for info in await sandbox.files.list()] == ["b"]
        assert await sandbox.files.read("b") == b"1"


@pytest.mark.parametrize("place", ["/workspace/to", "/dev/shm/to"])
async def test_move_goes_into_a_directory_also_on_another_file_system(place: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(f"mkdir -p {place} d/e; echo 1 > d/e/x; chmod 711 d; ln -s e d/link; ln -s d l")).check()
        await sandbox.files.write("file", b"2", mode=0o640)
        await sandbox.files.move("file", place)
        await sandbox.files.move("d", place)
        await sandbox.files.move("l", f"{place}/renamed")
        assert [info.name for info in await sandbox.files.list()] == (["to"] if "workspace" in place else [])
        assert await sandbox.files.read(f"{place}/file") == b"2"
        assert (await sandbox.files.stat(f"{place}/file")).mode == 0o640
        assert await sandbox.files.read(f"{place}/d/link/x") == b"1\n"
        assert (await sandbox.files.stat(f"{place}/d")).mode == 0o711
        assert (await sandbox.files.stat(f"{place}/renamed")).target == "d"


async def test_copy_keeps_content_mode_time_and_links_and_merges_directories() -> None:
    async with AsyncSandbox.create() as sandbox:
        make = "mkdir -p s/deep to/s; echo 1 > s/deep/x; chmod 750 s/deep/x; touch -d 2001-02-03 s/deep/x; "
        make += "ln -s deep/x s/link; echo kept > to/s/old; mkdir -m 500 s/locked; chmod 700 s/locked; touch s/locked/y"
        (await sandbox.exec(f"{make}; chmod 500 s/locked")).check()
        await sandbox.files.copy("s", "to")
        await sandbox.files.copy("s/deep/x", "single")
        assert await sandbox.files.read("to/s/old") == b"kept\n"
        for path in ("to/s/deep/x", "single"):
            info = await sandbox.files.stat(path)
            assert (info.mode, info.modified_at) == (0o750, datetime(2001, 2, 3, tzinfo=UTC))
            assert await sandbox.files.read(path) == b"1\n"
        assert (await sandbox.files.stat("to/s/link")).target == "deep/x"
        assert (await sandbox.files.stat("to/s/locked")).mode == 0o500
        assert await sandbox.files.exists("to/s/locked/y")


async def test_a_copy_over_a_file_replaces_it_and_into_a_directory_goes_below() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("a", b"1")
        await sandbox.files.write("b", b"2")
        await sandbox.files.mkdir("d")
        await sandbox.files.copy("a", "b")
        await sandbox.files.copy("a", "d")
        assert await sandbox.files.read("b") == await sandbox.files.read("d/a") == b"1"


async def test_list_describes_every_kind_and_sorts() -> None:
    async with AsyncSandbox.create() as sandbox:
        (
            await sandbox.exec("mkdir b; echo 12 > a; ln -s nowhere c; mkfifo d; touch .hidden b/below; chmod 640 a")
        ).check()
        found = await sandbox.files.list()
        assert [(info.name, info.kind) for info in found] == [
            (".hidden", FileKind.FILE),
            ("a", FileKind.FILE),
            ("b", FileKind.DIRECTORY),
            ("c", FileKind.SYMLINK),
            ("d", FileKind.OTHER),
        ]
        (file,) = [info for info in found if info.name == "a"]
        assert (file.path, file.size, file.mode, file.target) == ("/workspace/a", 3, 0o640, None)
        assert datetime.now(UTC) - file.modified_at < timedelta(minutes=5)
        assert found == [await sandbox.files.stat(info.path) for info in found]
        deep = await sandbox.files.list(recursive=True)
        assert [info.path for info in deep if info not in found] == ["/workspace/b/below"]
        assert ".hidden" not in [info.name for info in await sandbox.files.list(hidden=False)]
        assert ".hidden" not in [info.name for info in await sandbox.files.list(recursive=True, hidden=False)]


async def test_a_deep_listing_enters_no_link_and_skips_what_it_may_not_read() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir -p a/b; ln -s .. a/up; ln -s /usr a/usr; mkdir -m 0 a/closed")).check()
        names = [info.path for info in await sandbox.files.list("a", recursive=True)]
        assert names == [f"/workspace/a/{name}" for name in ("b", "closed", "up", "usr")]


@pytest.mark.slow
async def test_too_many_entries_are_refused_by_name() -> None:
    async with AsyncSandbox.create() as sandbox:
        fill = "import os\nos.mkdir('d')\nfor n in range(201000): open(f'd/{n}', 'w').close()"
        (await sandbox.exec(["python3", "-c", fill])).check()
        with pytest.raises(LimitExceeded):
            await sandbox.files.list("d")
        with pytest.raises(LimitExceeded):
            await sandbox.files.list("d", recursive=True)


async def test_stat_describes_a_link_and_exists_follows_it() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("touch file; ln -s file good; ln -s nowhere bad")).check()
        assert (await sandbox.files.stat("good")).kind is FileKind.SYMLINK
        assert [await sandbox.files.exists(name) for name in ("file", "good", "bad", "no", "file/x", ".", "/")] == [
            *(True, True, False, False, False, True, True)
        ]
        root = await sandbox.files.stat("/")
        assert (root.name, root.path) == ("/", "/")


async def test_exists_starts_no_process() -> None:
    async with AsyncSandbox.create() as sandbox:
        count = "awk '/^processes/ {print $2}' /proc/stat; cat /proc/loadavg"
        before = (await sandbox.exec(count)).stdout.split()[-1]
        for _ in range(50):
            await sandbox.files.exists("x")
        after = (await sandbox.exec(count)).stdout.split()[-1]
        # The last number of loadavg is the newest pid of this pid namespace.
        assert int(after) - int(before) < 10


async def test_chmod_changes_what_a_link_points_to() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("touch file; ln -s file link")).check()
        await sandbox.files.chmod("link", 0o751)
        assert (await sandbox.files.stat("file")).mode == 0o751


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.py", ["a.py", "b.py"]),
        ("**/*.py", ["a.py", "b.py", "src/c.py", "src/deep/d.py"]),
        ("src/**", ["src", "src/c.py", "src/data.txt", "src/deep", "src/deep/d.py"]),
        ("src/*/d.py", ["src/deep/d.py"]),
        ("?.py", ["a.py", "b.py"]),
        ("[!a].py", ["b.py"]),
        ("[a-b].*", ["a.py", "b.py"]),
        (".hid*", [".hidden"]),
        ("src", ["src"]),
        ("./src/./c.py", ["src/c.py"]),
        ("**/deep", ["src/deep"]),
        ("nothing*", []),
        ("ü*", ["über"]),
        ("?ber", ["über"]),
    ],
)
async def test_glob_matches_as_a_shell_does(pattern: str, expected: list[str]) -> None:
    async with AsyncSandbox.create() as sandbox:
        make = (
            "mkdir -p src/deep .secret; touch a.py b.py src/c.py src/deep/d.py src/data.txt .hidden .secret/e.py über"
        )
        (await sandbox.exec(make)).check()
        assert await sandbox.files.glob(pattern) == expected
        assert await sandbox.files.glob(pattern, root="/workspace/.") == expected


async def test_glob_does_not_go_round_in_circles() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir -p a/b; ln -s .. a/b/up; touch a/x")).check()
        assert await sandbox.files.glob("**/x") == ["a/x"]


async def test_search_finds_lines_by_number_and_leaves_out_binary_files() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("a.py", "import os\n\ndef main():\n    return os.name  # Grüße\n")
        await sandbox.files.write("b.txt", "def other\r\nno end")
        await sandbox.files.write("binary", b"def \0 binary")
        await sandbox.files.write(".git/config", b"def git")
        found = await sandbox.files.search(r"^def \w+")
        assert [(match.path, match.line_number, match.line) for match in found] == [
            ("/workspace/a.py", 3, "def main():"),
            ("/workspace/b.txt", 1, "def other\r"),
        ]
        assert [match.line_number for match in await sandbox.files.search("os", "a.py")] == [1, 4]
        assert [match.path for match in await sandbox.files.search("Gr.ße")] == ["/workspace/a.py"]
        assert [match.line for match in await sandbox.files.search("end$")] == ["no end"]
        assert await sandbox.files.search("zzz") == []


@pytest.mark.parametrize(
    ("glob", "expected"),
    [("*.py", ["s/a.py", "top.py"]), ("s/*.py", ["s/a.py"]), ("**/*.txt", ["s/t/b.txt"]), ("x", [])],
)
async def test_search_looks_only_at_the_files_of_a_pattern(glob: str, expected: list[str]) -> None:
    async with AsyncSandbox.create() as sandbox:
        for path in ("s/a.py", "s/t/b.txt", "top.py"):
            await sandbox.files.write(path, b"needle")
        found = await sandbox.files.search("needle", glob=glob)
        assert [match.path.removeprefix("/workspace/") for match in found] == expected


async def test_search_is_bounded_in_matches_and_in_the_length_of_a_line() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"needle\n" * 5000 + b"long" * MEGABYTE)
        assert len(await sandbox.files.search("needle", limit=7)) == 7
        assert len(await sandbox.files.search("needle")) == 1000
        (match,) = await sandbox.files.search("long")
        assert len(match.line) <= 2000


async def test_replace_wants_the_text_exactly_as_often_as_said() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", "one two two\n", mode=0o755)
        assert await sandbox.files.replace("x", "one", "1") == 1
        with pytest.raises(ValidationFailed, match="2 times"):
            await sandbox.files.replace("x", "two", "2")
        assert await sandbox.files.read_text("x") == "1 two two\n"
        assert await sandbox.files.replace("x", "two", "2", count=2) == 2
        assert await sandbox.files.replace("x", "2", "zwei", count=None) == 2
        assert await sandbox.files.read_text("x") == "1 zwei zwei\n"
        assert (await sandbox.files.stat("x")).mode == 0o755


async def test_replace_leaves_other_bytes_as_they_are() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"\xff\0a\r\n")
        await sandbox.files.replace("x", "a", "b")
        assert await sandbox.files.read("x") == b"\xff\0b\r\n"


async def test_a_cancelled_errand_is_gone_when_the_call_returns() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"a" * 40 + b"\n")
        searching = asyncio.create_task(sandbox.files.search(r"(a*)*b"))
        while not (await sandbox.exec(["pgrep", "-f", "errand[.]pyc"])).ok:
            await asyncio.sleep(0)
        searching.cancel()
        await asyncio.wait([searching])
        assert not (await sandbox.exec(["pgrep", "-f", "errand[.]pyc"])).ok


async def test_an_errand_that_is_killed_from_inside_is_an_error_not_a_hang() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"a" * 40 + b"\n")
        searching = asyncio.create_task(sandbox.files.search(r"(a*)*b"))
        while not (await sandbox.exec(["pkill", "-f", "errand[.]pyc"])).ok:
            await asyncio.sleep(0)
        ends = (
            r"before it had finished: (signaled, exit code 143|exited, exit code 1)"  # once it has begun, it cleans up
        )
        with pytest.raises(ProcessExitedBeforeReady, match=ends):
            await searching


async def test_modes_of_the_files_made_outside_are_ordinary() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"")
        result = await sandbox.exec("stat -c '%U %a' x; echo more >> x; rm x")
        assert result.check().stdout.split()[0] == "user"
        assert not stat.S_IFMT(int(result.stdout.split()[1], 8))


@pytest.mark.parametrize("count", [0, 1, 4096, 10_000])
def test_a_large_listing_that_is_sorted_in_runs_is_in_order(count: int) -> None:
    names = [f"{number * 7919 % 10_007:05}" for number in range(count)]
    infos = [make_info(f"/{name}".encode(), stat.S_IFREG, 0, 0, None) for name in names]
    assert [info.name for info in sort_by_path(infos)] == sorted(names)
