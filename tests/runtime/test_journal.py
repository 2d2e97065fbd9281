"""The journal on disk: bounded, with explicit gaps, whoever is killed and however slow or full the disk is."""

import asyncio
import os
import threading
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cove import JournalDetail, JournalEvent, JournalKind
from cove.core.journal import NOBODY, Document, make_document
from cove.linux.inotify import watched
from cove.runtime import journal as journals
from cove.runtime import journal_files
from cove.runtime.journal import Journal
from cove.runtime.journal_files import JournalFiles, JournalReader
from cove.runtime.kept_journals import forget_journals, keep_journal, kept_path, list_kept

pytestmark = pytest.mark.anyio


def write(files: JournalFiles, number: int) -> None:
    files.append(number, [make_document(number, datetime.now(UTC), JournalKind.EXEC, NOBODY, {"text": "x" * 1000})])


def make(path: Path) -> Journal:
    return Journal(path, lambda: JournalDetail.COMMANDS)


async def read(journal: Journal, since: str | None = None) -> list[JournalEvent]:
    return [each async for each in journal.read(since, follow=False)]


def texts(events: list[JournalEvent]) -> list[str | int | None]:
    return [each.lost if each.kind is JournalKind.GAP else each.text for each in events]


async def test_a_journal_goes_on_where_it_was_closed(tmp_path: Path) -> None:
    first = make(tmp_path / "journal")
    first.record(JournalKind.EXEC, text="a")
    await first.close()
    first.record(JournalKind.EXEC, text="too late")
    second = make(tmp_path / "journal")
    second.record(JournalKind.EXEC, text="b")
    events = await read(second)
    assert (texts(events), [each.cursor for each in events]) == (["a", "b"], ["1", "2"])
    await second.close()


async def test_a_writer_that_was_killed_leaves_one_gap(tmp_path: Path) -> None:
    killed = make(tmp_path / "journal")
    killed.record(JournalKind.EXEC, text="a")
    await killed.flush()
    (segment,) = (tmp_path / "journal").glob("*.jsonl")
    with segment.open("ab") as file:
        file.write(b'{"cursor":"2","at":"20')  # torn by a crash of the machine
    after = make(tmp_path / "journal")
    after.record(JournalKind.EXEC, text="b")
    events = await read(after)
    assert [each.kind.value for each in events] == ["exec", "gap", "exec"]
    assert texts(events) == ["a", None, "b"]
    assert texts(await read(after, events[0].cursor)) == [None, "b"]
    assert texts(await read(after, events[1].cursor)) == ["b"]
    await after.close()


def test_the_oldest_segment_goes_first_and_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_files, "SEGMENT_BYTES", 5000)
    monkeypatch.setattr(journal_files, "MOST_SEGMENTS", 3)
    files = JournalFiles(tmp_path / "journal")
    files.open()
    slow = JournalReader((tmp_path / "journal",), 0)
    write(files, 1)
    assert [each.cursor for each in slow.read() or ()] == ["1"]
    for number in range(2, 41):
        write(files, number)
    files.close()
    assert sum(each.stat().st_size for each in (tmp_path / "journal").iterdir()) < 20_000
    seen = []
    while batch := slow.read():
        seen += batch
    assert seen[0].kind is JournalKind.GAP
    assert seen[0].lost == int(seen[1].cursor) - 2
    assert [int(each.cursor) for each in seen[1:]] == list(range(int(seen[1].cursor), 41))


async def test_a_disk_that_hangs_holds_up_nobody_and_what_does_not_fit_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MOST_QUEUED", 10)
    disk, append = threading.Event(), JournalFiles.append

    def hang(self: JournalFiles, first: int, events: Sequence[Document]) -> None:
        assert disk.wait(60)
        append(self, first, events)

    monkeypatch.setattr(JournalFiles, "append", hang)
    journal = make(tmp_path / "journal")
    journal.record(JournalKind.EXEC, text="first")
    writing = asyncio.ensure_future(journal.flush())
    await asyncio.sleep(0)
    for number in range(25):
        journal.record(JournalKind.EXEC, text=str(number))
    disk.set()
    await writing
    await journal.flush()
    journal.record(JournalKind.EXEC, text="last")
    assert texts(await read(journal)) == ["first", *map(str, range(10)), 15, "last"]
    await journal.close()


async def test_a_full_disk_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = make(tmp_path / "journal")
    journal.record(JournalKind.EXEC, text="a")
    await journal.flush()
    monkeypatch.setattr(os, "write", _refuse)
    journal.record(JournalKind.EXEC, text="b")
    await journal.flush()
    monkeypatch.undo()
    journal.record(JournalKind.EXEC, text="c")
    assert texts(await read(journal)) == ["a", 1, "c"]
    await journal.close()


def _refuse(descriptor: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


async def test_a_follower_sees_the_end(tmp_path: Path) -> None:
    journal = make(tmp_path / "journal")
    journal.record(JournalKind.EXEC, text="a")
    async with aclosing(journal.read(None, follow=True)) as events, asyncio.timeout(60):
        assert (await anext(events)).text == "a"
        journal.record(JournalKind.EXEC, text="b")
        assert (await anext(events)).text == "b"
        journal.record(JournalKind.EXEC, text="c")
        await journal.close()
        assert [each.text async for each in events] == ["c"]


async def test_a_change_of_a_directory_is_noticed(tmp_path: Path) -> None:
    async with watched(tmp_path) as one, watched(tmp_path) as two, asyncio.timeout(60):
        assert not one.is_set()
        (tmp_path / "new").write_bytes(b"x")
        await one.wait()
        await two.wait()
    with pytest.raises(FileNotFoundError):
        async with watched(tmp_path / "missing"):
            pass


def test_only_so_many_journals_are_kept_and_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"):
        place = tmp_path / name
        (place / "journal").mkdir(parents=True)
        (place / "sandbox.json").write_bytes(b'{"id":"box"}')
        keep_journal(tmp_path, place, place / "sandbox.json")
        keep_journal(tmp_path, place, place / "sandbox.json")  # as after a crash
    assert [each.id for each in list_kept(tmp_path)] == ["box"] * 3
    ended = JournalReader((kept_path(tmp_path, "aaaaaaaaaaaa"),), 0).read() or []
    assert [each.kind for each in ended] == [JournalKind.DESTROYED]
    monkeypatch.setattr("cove.runtime.kept_journals.MOST_KEPT", 2)
    forget_journals(tmp_path, 3600)
    assert [each.key for each in list_kept(tmp_path)] == ["bbbbbbbbbbbb", "cccccccccccc"]
    forget_journals(tmp_path, 0)
    assert list_kept(tmp_path) == []
