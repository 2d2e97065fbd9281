"""What a watcher sees, and what it never misses without saying so."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.leaks import processes_below

from cove import (
    AsyncSandbox,
    ChangesStatus,
    FileEvent,
    FileEventKind,
    FileNotFound,
    ProcessExitedBeforeReady,
    SandboxDestroyed,
    ValidationFailed,
)

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

# A file system without a disk, where many changes take little time.
MEMORY = "/dev/shm"

CREATE, MODIFY, DELETE, MOVE = (
    FileEventKind.CREATE,
    FileEventKind.MODIFY,
    FileEventKind.DELETE,
    FileEventKind.MOVE,
)


class Seen:
    """Events of one watcher, with paths relative to what it watches."""

    def __init__(self, sandbox: AsyncSandbox, path: str = ".", **options: object) -> None:
        self.sandbox = sandbox
        self.events = sandbox.files.watch(path, **options)  # type: ignore[arg-type]  # as the test says
        self.first: FileEvent | None = None

    async def until(self, last: str) -> list[tuple[FileEventKind, str]]:
        """What happens up to the creation of that file, without it."""
        found: list[tuple[FileEventKind, str]] = []
        async with asyncio.timeout(30):
            async for event in self.events:
                assert self.first is not None
                path = event.path.removeprefix(f"{self.first.path}/")
                if (event.kind, path) == (CREATE, last):
                    return found
                found.append((event.kind, path))
        raise AssertionError(f"the watcher ended after {found}")


@asynccontextmanager
async def watching(path: str = ".", prepare: str = ":", **options: object) -> AsyncIterator[Seen]:
    """A watcher that is established in a fresh sandbox."""
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(prepare)).check()
        seen = Seen(sandbox, path, **options)
        seen.first = await anext(seen.events)
        assert seen.first.kind is FileEventKind.WATCHING
        try:
            yield seen
        finally:
            await seen.events.aclose()


async def test_the_first_event_says_that_it_watches() -> None:
    async with watching("d", "mkdir d") as seen:
        assert seen.first == FileEvent(kind=FileEventKind.WATCHING, path="/workspace/d", is_directory=True)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (": > new", [(CREATE, "new")]),
        ("mkdir new", [(CREATE, "new")]),
        ("echo more >> old", [(MODIFY, "old")]),
        ("chmod 600 old", [(MODIFY, "old")]),
        ("rm old", [(DELETE, "old")]),
        ("rmdir d/e", [(DELETE, "d/e")]),
        ("mv old d/young", [(MOVE, "d/young")]),
        ("mv d f", [(MOVE, "f")]),
        ("mv d f; : > f/e/x", [(MOVE, "f"), (CREATE, "f/e/x")]),
        ("mv old ../out/old", [(DELETE, "old")]),
        ("mv d ../out/d; : > ../out/d/e/x", [(DELETE, "d")]),
        ("mv ../out in", [(CREATE, "in"), (CREATE, "in/x")]),
        ("mv ../out/x old", [(MODIFY, "old")]),
        ("ln -s old link", [(CREATE, "link")]),
        (": > d/e/x; rm d/e/x", [(CREATE, "d/e/x"), (DELETE, "d/e/x")]),
    ],
)
async def test_a_change_is_told_as_what_it_is(command: str, expected: list[tuple[FileEventKind, str]]) -> None:
    async with watching("w", "mkdir -p w/d/e out; echo 1 > w/old; echo > out/x") as seen:
        (await seen.sandbox.exec(f"{command}; mkdir end", cwd="w")).check()
        assert await seen.until("end") == expected


async def test_a_move_names_both_places() -> None:
    async with watching(prepare="mkdir a b; echo > a/x") as seen:
        (await seen.sandbox.exec("mv a/x b/y; mv a c")).check()
        first, second = await anext(seen.events), await anext(seen.events)
        assert (first.old_path, first.path, first.is_directory) == ("/workspace/a/x", "/workspace/b/y", False)
        assert (second.old_path, second.path, second.is_directory) == ("/workspace/a", "/workspace/c", True)


async def test_our_own_writes_are_one_event_each_and_show_no_temporary_file() -> None:
    async with watching() as seen:
        files = seen.sandbox.files
        await files.write("x", b"1")
        await files.write("x", b"2")
        await files.append("x", b"3")
        await files.write("a/b", b"1")
        await files.mkdir("end")
        found = await seen.until("end")
        assert found == [(CREATE, "x"), (MODIFY, "x"), (MODIFY, "x"), (CREATE, "a"), (CREATE, "a/b")]


async def test_directories_that_are_filled_at_once_are_not_missed() -> None:
    script = "for i in $(seq 100); do mkdir -p $i/a/b; : > $i/x; : > $i/a/y; : > $i/a/b/z; done; mkdir end"
    async with watching() as seen:
        (await seen.sandbox.exec(script)).check()
        found = await seen.until("end")
        created = [path for kind, path in found if kind is CREATE]
        expected = {f"{i}{path}" for i in range(1, 101) for path in ("", "/a", "/a/b", "/x", "/a/y", "/a/b/z")}
        assert set(created) == expected
        assert len(created) == len(expected)


async def test_a_directory_that_is_made_and_removed_again_and_again_does_no_harm() -> None:
    script = "for i in $(seq 300); do mkdir -p t/u; : > t/u/x; rm -r t; done; mkdir t; : > t/last; mkdir end"
    async with watching(MEMORY) as seen:
        (await seen.sandbox.exec(script, cwd=MEMORY)).check()
        found = await seen.until("end")
        assert found[-1] == (CREATE, "t/last") or (CREATE, "t/last") in found


async def test_a_watch_that_is_not_recursive_stays_at_the_top() -> None:
    async with watching(prepare="mkdir d", recursive=False) as seen:
        (await seen.sandbox.exec(": > d/below; mkdir e; : > e/below; : > top; mkdir end")).check()
        assert await seen.until("end") == [(CREATE, "e"), (CREATE, "top")]


async def test_excluded_directories_are_not_watched() -> None:
    async with watching(prepare="mkdir .git node_modules") as seen:
        script = ": > .git/x; mkdir -p d/node_modules/y; : > node_modules/z; mv .git/x seen; mv seen .git/x; mkdir end"
        (await seen.sandbox.exec(script)).check()
        assert await seen.until("end") == [(CREATE, "d"), (CREATE, "seen"), (DELETE, "seen")]


async def test_only_what_is_included_is_told() -> None:
    include = ["*.py", "end", "docs/**/*.md"]
    async with watching(prepare="mkdir -p d docs/a", include=include, exclude=["skip*"]) as seen:
        script = ": > d/x.py; : > d/x.txt; : > docs/a/y.md; : > d/y.md; : > skipped.py; "
        (await seen.sandbox.exec(script + "mv d/x.txt d/z.py; mv d/z.py d/z.txt; mkdir end")).check()
        assert await seen.until("end") == [
            (CREATE, "d/x.py"),
            (CREATE, "docs/a/y.md"),
            (CREATE, "d/z.py"),
            (DELETE, "d/z.py"),
        ]


async def test_one_file_is_watched_also_when_it_is_replaced() -> None:
    async with watching("d/x", "mkdir d; echo > d/x") as seen:
        assert seen.first is not None
        assert seen.first.path == "/workspace/d/x"
        await seen.sandbox.exec("echo > d/other")
        await seen.sandbox.files.write("d/x", b"new")
        event = await anext(seen.events)
        assert (event.kind, event.path) == (MODIFY, "/workspace/d/x")
        await seen.sandbox.exec("rm d/x; echo > d/x")
        assert [(await anext(seen.events)).kind for _ in range(2)] == [DELETE, CREATE]


@pytest.mark.parametrize("command", ["rm -r d", "mv d e"])
async def test_the_watcher_of_a_directory_that_goes_away_says_so_and_ends(command: str) -> None:
    async with watching("d", "mkdir -p d/e; : > d/e/x") as seen:
        (await seen.sandbox.exec(command)).check()
        events = [event async for event in seen.events]
        assert (events[-1].kind, events[-1].path) == (DELETE, "/workspace/d")


async def test_ten_thousand_events_come_without_loss_or_say_resync() -> None:
    async with watching(MEMORY) as seen:
        (await seen.sandbox.exec("seq 10000 | xargs touch; mkdir end", cwd=MEMORY)).check()
        found = []
        async with asyncio.timeout(60):
            async for event in seen.events:
                found.append(event)
                if event.path == f"{MEMORY}/end" or event.kind is FileEventKind.RESYNC:
                    break
        created = {event.path for event in found if event.kind is CREATE}
        assert len(created) == 10_001 or found[-1].kind is FileEventKind.RESYNC


async def test_events_that_were_lost_are_a_resync_and_the_watch_goes_on() -> None:
    async with watching(MEMORY) as seen:
        # Nobody reads what the watch says: it waits, and the kernel's queue of events overflows.
        many = "import os; os.mkdir('late')\nfor i in range(60000): open(f'x{i % 2}', 'w').write('1')"
        (await seen.sandbox.exec(["python3", "-c", many], cwd=MEMORY)).check()
        async with asyncio.timeout(60):
            async for event in seen.events:
                if event.kind is FileEventKind.RESYNC:
                    break
        (await seen.sandbox.exec(": > late/after; mkdir end", cwd=MEMORY)).check()
        assert (CREATE, "late/after") in await seen.until("end")


async def test_a_slow_reader_loses_nothing_silently() -> None:
    async with watching(MEMORY) as seen:
        (
            await seen.sandbox.exec(
                "for i in $(seq 12); do seq $((i*1000)) $((i*1000+999)) | xargs touch; done; mkdir end",
                cwd=MEMORY,
            )
        ).check()
        names, resync = set(), False
        async for event in seen.events:
            await asyncio.sleep(0)
            names.add(event.path)
            resync = resync or event.kind is FileEventKind.RESYNC
            if event.path == f"{MEMORY}/end" or resync:
                break
        assert resync or len(names) == 12_001


async def test_watching_what_is_not_there_raises() -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(FileNotFound):
            await anext(sandbox.files.watch("missing"))
        with pytest.raises(ValidationFailed):
            await anext(sandbox.files.watch(include="*.py"))


def inotify_descriptors() -> int:
    """How many there are in all processes below this one, that is in its sandboxes."""
    count = 0
    for pid in processes_below(os.getpid()):
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        count += links.count("anon_inode:inotify")
    return count


@pytest.mark.parametrize("how", ["aclose", "break", "cancel"])
async def test_a_watcher_that_is_left_leaves_no_process_and_no_descriptor(how: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        events = sandbox.files.watch()
        await anext(events)
        assert inotify_descriptors() == 1
        if how == "cancel":
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        elif how == "break":
            await sandbox.exec("touch x")
            async for _ in events:
                break
        await events.aclose()
        assert inotify_descriptors() == 0
        assert not (await sandbox.exec(["pgrep", "-f", "errand[.]pyc"])).ok


async def test_destroying_the_sandbox_ends_its_watchers() -> None:
    async with AsyncSandbox.create() as sandbox:
        events = sandbox.files.watch()
        await anext(events)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await sandbox.destroy()
        with pytest.raises(SandboxDestroyed):
            await waiting


MOVES_INTO_NEW_DIRECTORIES = """
import os
for number in range(300):
    os.rename(f"../prepared/{number}", f"{number}")
    for name in range(20):
        os.rename(f"../prepared/{number}-{name}", f"{number}/{name}")
os.mkdir("end")
"""


async def test_what_is_moved_into_a_new_directory_is_told_once() -> None:
    prepare = "mkdir w; mkdir -p prepared/{0..299}; touch prepared/{0..299}-{0..19}"
    async with watching("w", prepare) as seen:
        (await seen.sandbox.exec(["python3", "-c", MOVES_INTO_NEW_DIRECTORIES], cwd="w")).check()
        found = await seen.until("end")
        assert {kind for kind, _ in found} == {CREATE}
        assert len(found) == len({path for _, path in found}) == 300 * 21


async def test_a_watch_whose_process_inside_is_killed_says_how_that_ended() -> None:
    async with AsyncSandbox.create() as sandbox:
        events = sandbox.files.watch()
        await anext(events)
        waiting = asyncio.ensure_future(anext(events))
        await sandbox.exec("kill -9 -1")
        with pytest.raises(ProcessExitedBeforeReady, match=r"/workspace: .*signaled") as caught:
            await waiting
        assert caught.value.exit_code == 137
        assert (await anext(sandbox.files.watch())).kind is FileEventKind.WATCHING


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (":", ChangesStatus.UNCHANGED),
        ("cat d/x > /dev/null", ChangesStatus.UNCHANGED),
        ("touch .git/x; mkdir -p d/node_modules/x", ChangesStatus.UNCHANGED),
        ("touch new; rm new", ChangesStatus.UNCHANGED),
        ("echo 2 > d/x", ChangesStatus.CHANGED),
        ("cp -p d/x y; echo 2 > d/x; cat y > d/x; touch -r y d/x; rm y", ChangesStatus.CHANGED),
        ("touch new", ChangesStatus.CHANGED),
        ("rm d/x", ChangesStatus.CHANGED),
        ("mv d e", ChangesStatus.CHANGED),
        ("chmod 600 d/x", ChangesStatus.CHANGED),
        ("chmod 700 d", ChangesStatus.CHANGED),
        ("ln -sf other link", ChangesStatus.CHANGED),
    ],
)
async def test_a_change_is_noticed_afterwards(command: str, status: ChangesStatus) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir d .git; echo 1 > d/x; chmod 755 d; chmod 644 d/x; ln -s nowhere link")).check()
        first = await sandbox.files.check_changes()
        assert first.status is ChangesStatus.UNCHANGED
        (await sandbox.exec(command)).check()
        second = await sandbox.files.check_changes(since=first.version)
        assert second.status is status
        assert (second.version == first.version) == (status is ChangesStatus.UNCHANGED)
        assert (await sandbox.files.check_changes(since=second.version)).status is ChangesStatus.UNCHANGED


async def test_a_version_of_something_else_is_a_resync() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir d; touch d/x y")).check()
        files = sandbox.files
        version = (await files.check_changes()).version
        others = [
            await files.check_changes("d", since=version),
            await files.check_changes(since=version, include=["*.py"]),
            await files.check_changes(since=version, recursive=False),
            await files.check_changes(since="nonsense"),
        ]
        assert {changes.status for changes in others} == {ChangesStatus.RESYNC}


async def test_only_what_is_looked_at_counts_as_a_change() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("mkdir d; touch d/x.py d/y")).check()
        files = sandbox.files
        flat = (await files.check_changes(recursive=False)).version
        python = (await files.check_changes(include=["*.py"])).version
        one = (await files.check_changes("d/y")).version
        (await sandbox.exec("echo 1 > d/y")).check()
        assert (await files.check_changes(since=flat, recursive=False)).status is ChangesStatus.UNCHANGED
        assert (await files.check_changes(since=python, include=["*.py"])).status is ChangesStatus.UNCHANGED
        assert (await files.check_changes("d/y", since=one)).status is ChangesStatus.CHANGED
