"""Records of sandboxes that are being moved between nodes of a cluster: small files, one for each. Blocks.

`moves/out-…` is at the node that a sandbox leaves: while it is there, nobody starts or changes the sandbox here.
`moves/in-…` is at the node that it comes to: its place is no garbage, and nobody finds it yet. Both are locked by
whoever does the move: one that is not locked was left by a process that was killed. `moves/gone-…` says for a moment
that a sandbox has just left, and `moves/named-…` that an id which needs no claim has one.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

import msgspec

from cove.core.identifier import new_identifier
from cove.errors import SandboxUnavailable
from cove.linux.file_lock import is_locked, make_locked, try_lock
from cove.local.state import sync_directory
from cove.server.sandboxes.directory import MOVES, Directory, arrival_path

_OUT, _GONE, _NAMED, _NEW = "out-", "gone-", "named-", ".new-"
_GONE_SECONDS = 5.0
_TRIES = 5


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One move: from which node to which, under which key, and the epoch of the claim that the target takes over."""

    id: str
    key: str
    source: str
    target: str
    epoch: int
    tenant: str = ""


class MoveFile:
    """The record of a move that this process does: locked until `close`."""

    def __init__(self, path: Path, lock: FileIO, move: Move) -> None:
        self._path = path
        self._lock = lock
        self.move = move

    def remove(self) -> None:
        """End the move: it is as if it had never begun, or done."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)
        self.close()

    def close(self) -> None:
        """Let go: whoever recovers goes on. Idempotent."""
        self._lock.close()


def begin_out(directory: Directory, move: Move) -> MoveFile:
    """Note that a sandbox leaves; SandboxUnavailable while another move of it is under way."""
    return _begin(_path(directory, _OUT, move.id), move)


def begin_in(directory: Directory, move: Move) -> MoveFile:
    """Note that a sandbox comes."""
    return _begin(arrival_path(directory.home, move.key), move)


def _begin(path: Path, move: Move) -> MoveFile:
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # whoever clears up met the file in the moment before it was locked
            return _try_to_begin(path, move)
    raise SandboxUnavailable(f"the move of sandbox {move.id} cannot be noted: nothing was started; try again")


def _try_to_begin(path: Path, move: Move) -> MoveFile:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = path.with_name(_NEW + new_identifier())
    lock = make_locked(new)
    try:
        lock.write(msgspec.json.encode(move))
        os.fsync(lock.fileno())
        os.link(new, path)
        sync_directory(path.parent)
    except FileExistsError:
        lock.close()
        raise _being_moved(move.id) from None
    except BaseException:
        lock.close()
        raise
    finally:
        new.unlink(missing_ok=True)
    return MoveFile(path, lock, move)


def find_out(directory: Directory, id: str) -> Move | None:
    """Return the move of a sandbox that leaves this node."""
    return _read(_path(directory, _OUT, id))


def check_stays(directory: Directory, id: str) -> None:
    """Raise SandboxUnavailable while a sandbox is being moved: nothing is started, and nothing changed."""
    if _path(directory, _OUT, id).exists():
        raise _being_moved(id)


def check_gone(directory: Directory, id: str) -> None:
    """Raise SandboxUnavailable for one that has left in this moment: the next call finds it where it is."""
    with suppress(FileNotFoundError):
        if time.time() - _path(directory, _GONE, id).stat().st_mtime < _GONE_SECONDS:
            raise SandboxUnavailable(f"sandbox {id} was just moved to another node: nothing was started; try again")


def _being_moved(id: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"sandbox {id} is being moved to another node: nothing was started; try again", id=id)


def note_gone(directory: Directory, id: str) -> None:
    """Note that a sandbox has just left."""
    path = _path(directory, _GONE, id)
    path.touch(mode=0o600)
    os.utime(path)


def forget_gone(directory: Directory, id: str) -> None:
    """Forget that it had left: it is here."""
    _path(directory, _GONE, id).unlink(missing_ok=True)


def note_named(directory: Directory, id: str) -> None:
    """Note that there is a claim on an id, wherever it was made."""
    path = _path(directory, _NAMED, id)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)


def is_named(directory: Directory, id: str) -> bool:
    """Return whether there is a claim on an id that was made here."""
    return _path(directory, _NAMED, id).exists()


def forget_named(directory: Directory, id: str) -> None:
    """Forget the claim: it is freed."""
    _path(directory, _NAMED, id).unlink(missing_ok=True)


def left_out(directory: Directory) -> Iterator[MoveFile]:
    """Take over departures of processes that are gone, one after the other."""
    return _left(directory, _OUT)


def left_in(directory: Directory) -> Iterator[MoveFile]:
    """Take over arrivals of processes that are gone, one after the other."""
    return _left(directory, arrival_path(directory.home, "").name)


def _left(directory: Directory, prefix: str) -> Iterator[MoveFile]:
    for path in sorted((directory.home / MOVES).glob(f"{prefix}*")):
        lock = try_lock(path)
        move = None if lock is None else _read(path)
        if lock is not None and move is not None:
            yield MoveFile(path, lock, move)
        elif lock is not None:
            lock.close()


def take_arrival(directory: Directory, key: str) -> MoveFile | None:
    """Take over one arrival, if nobody else is at it."""
    path = arrival_path(directory.home, key)
    lock = try_lock(path)
    move = None if lock is None else _read(path)
    if lock is None or move is None:
        return None
    return MoveFile(path, lock, move)


def has_moves(directory: Directory) -> bool:
    """Return whether there is anything to recover, or to tidy."""
    with suppress(FileNotFoundError):
        return any(not name.startswith(_NAMED) for name in os.listdir(directory.home / MOVES))
    return False


def tidy(directory: Directory) -> None:
    """Remove what holds no more: of departures long ago, and of whoever was killed while it wrote a record."""
    oldest = time.time() - _GONE_SECONDS
    for path in (directory.home / MOVES).iterdir():
        with suppress(FileNotFoundError):
            is_new = path.name.startswith(_NEW) and not is_locked(path)
            if is_new or (path.name.startswith(_GONE) and path.stat().st_mtime < oldest):
                path.unlink()


def _path(directory: Directory, prefix: str, id: str) -> Path:
    return directory.home / MOVES / f"{prefix}{directory.entry(id).name}"


def _read(path: Path) -> Move | None:
    with suppress(FileNotFoundError):
        return msgspec.json.decode(path.read_bytes(), type=Move)
    return None
