"""Journals of destroyed sandboxes, which a server keeps for a while: moved out of a place before it goes. Blocks.

Only sandboxes with a record are remembered: those of a server. The journal of one in your own program goes with it.
"""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.identifier import KEY_LENGTH
from cove.core.journal import NOBODY, Actor, make_document
from cove.errors import SandboxNotFound
from cove.local.state import replace_file
from cove.model import DestroyedSandbox, JournalKind
from cove.runtime.journal_files import JOURNAL, JournalFiles

MOST_KEPT = 10_000
_DIRECTORY = "journals"
_END = "end.json"
_ASKED_BY = "asked-by.json"
_KEY = re.compile(rf"[a-z2-7]{{{KEY_LENGTH}}}")


class _Id(msgspec.Struct):
    """The part of a record that is read."""

    id: str


class _End(msgspec.Struct):
    """The facts that are kept beside a journal."""

    id: str
    destroyed_at: datetime


def note_destroyer(place: Path, actor: Actor) -> None:
    """Write down who has asked for the end of a sandbox, before it ends."""
    with suppress(OSError):
        replace_file(place / JOURNAL / _ASKED_BY, msgspec.json.encode(actor))


def keep_journal(home: Path, place: Path, record: Path) -> None:
    """Move the journal of a sandbox with a record to where it is kept, with its end in it. Repeatable.

    On a full disk it is lost: the sandbox is removed all the same.
    """
    if not record.exists() or not (place / JOURNAL).is_dir():
        return
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        id = msgspec.json.decode(record.read_bytes(), type=_Id).id
        kept = kept_path(home, place.name)
        kept.parent.mkdir(mode=0o700, exist_ok=True)
        end = _End(id, datetime.now(UTC))
        _write_end(place / JOURNAL, end.destroyed_at)
        replace_file(place / JOURNAL / _END, msgspec.json.encode(end))
        (place / JOURNAL).rename(kept)


def _write_end(path: Path, at: datetime) -> None:
    if (path / _END).exists():
        return
    actor = NOBODY
    with suppress(OSError, msgspec.DecodeError):
        actor = msgspec.json.decode((path / _ASKED_BY).read_bytes(), type=Actor)
    files = JournalFiles(path)
    files.open()
    files.append(files.next, [make_document(files.next, at, JournalKind.DESTROYED, actor, {})])
    files.close()


def kept_path(home: Path, key: str) -> Path:
    """Return where the journal of that place is kept when its sandbox is destroyed."""
    return home / _DIRECTORY / key


def find_kept(home: Path, key: str) -> Path:
    """Return the journal that is kept under that key. Raises SandboxNotFound."""
    path = kept_path(home, key)
    if not _KEY.fullmatch(key) or not (path / _END).exists():
        raise SandboxNotFound(f"no journal is kept under {key[:80]!r}: `cove journal --destroyed` lists them")
    return path


def list_kept(home: Path) -> list[DestroyedSandbox]:
    """List the journals that are kept, oldest first."""
    found = []
    for path, end in _ends(home):
        with suppress(FileNotFoundError):
            size = sum(file.stat().st_size for file in path.iterdir())
            found.append(DestroyedSandbox(id=end.id, key=path.name, destroyed_at=end.destroyed_at, size=size))
    return sorted(found, key=lambda each: each.destroyed_at)


def forget_journals(home: Path, seconds: float) -> None:
    """Remove those that were kept for so long, and the oldest of too many."""
    kept = list_kept(home)
    oldest = time.time() - seconds
    for number, each in enumerate(kept):
        if each.destroyed_at.timestamp() <= oldest or number < len(kept) - MOST_KEPT:
            remove_tree(str(kept_path(home, each.key)))


def _ends(home: Path) -> Iterator[tuple[Path, _End]]:
    with suppress(FileNotFoundError):
        for path in (home / _DIRECTORY).iterdir():
            with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                yield path, msgspec.json.decode((path / _END).read_bytes(), type=_End)
