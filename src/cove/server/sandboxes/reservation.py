"""Reserve an id: a small file that names the key, locked while the sandbox is made, started or stopped.

Whoever makes or starts a sandbox holds the lock, so that any number of them, in any number of processes, do it one
after the other. Whoever makes one offers it, and holds the lock until it is taken: an offer that nobody holds was left
by a process that was killed. Whoever destroys waits for nobody: the file is renamed away, and its owner finds that out.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

from cove.core.identifier import new_identifier
from cove.errors import SandboxNotFound, SandboxUnavailable
from cove.local.state import replace_file, sync_directory
from cove.server.sandboxes.directory import ENTRY_BYTES, Directory, Entry, Record
from cove.server.sandboxes.moves import check_gone, check_stays

_FREED = "freed-"
_GIVEN = "given-"


class Reservation:
    """The file of one id, held from `hold` to `let_go`. Calls block."""

    def __init__(self, directory: Directory, id: str, file: FileIO) -> None:
        self.id = id
        self._path = directory.entry(id)
        self._file = file

    @classmethod
    def hold(cls, directory: Directory, id: str) -> "Reservation":
        """Take the id, or wait for whoever has it to let go."""
        while True:
            descriptor = os.open(directory.entry(id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            reservation = cls(directory, id, FileIO(descriptor, "r+"))
            reservation.hold_again()
            if reservation.is_current:
                return reservation
            reservation._file.close()

    def hold_again(self) -> None:
        """Wait until nobody else makes, starts or stops the sandbox."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    @property
    def is_current(self) -> bool:
        """Return whether the id is still ours: nobody has destroyed the sandbox."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    @property
    def entry(self) -> Entry:
        """Return which sandbox has the id; none when it is new."""
        return Entry.read(os.pread(self._file.fileno(), ENTRY_BYTES, 0))

    def offer(self, key: str) -> None:
        """Say which sandbox has the id, as soon as somebody takes it."""
        self._file.truncate(0)
        os.pwrite(self._file.fileno(), Entry(key, is_offered=True).encode(), 0)

    def take(self) -> None:
        """Let the sandbox that was offered have the id, whatever becomes of its process."""
        self._file.truncate(len(Entry(self.entry.key).encode()))

    def let_go(self) -> None:
        """Release the lock: whoever waits may go on."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def remove(self) -> None:
        """Free the id, if it is still ours. Only while it is held, or for good."""
        if self.is_current:
            self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Forget about it; the id stays as it is."""
        self._file.close()


def rewrite(directory: Directory, id: str, change: Callable[[Record], Record]) -> None:
    """Change the record of a sandbox that has no runtime, which would write it itself.

    Raises SandboxNotFound, or SandboxUnavailable where one has begun to run it. Blocks.
    """
    reservation = Reservation.hold(directory, id)
    try:
        record = directory.find(id)
        if record is None:
            if not reservation.entry.key:
                reservation.remove()
            check_gone(directory, id)
            raise SandboxNotFound(f"there is no sandbox {id}", id=id)
        check_stays(directory, id)
        if directory.is_held(record.key):
            raise SandboxUnavailable(f"sandbox {id} is just being started or stopped: try again", id=id)
        directory.write(change(record), durable=True)
    finally:
        reservation.close()


def give_id(directory: Directory, id: str, key: str) -> bool:
    """Let the sandbox at that place have an id that nobody has, at once and on disk; False if another has it."""
    new = directory.server / f"{_GIVEN}{new_identifier()}"
    replace_file(new, Entry(key).encode(), durable=True)
    try:
        os.link(new, directory.entry(id))
        sync_directory(directory.ids)
    except FileExistsError:
        return directory.look_up(id).key == key
    finally:
        new.unlink()
    return True


def free(directory: Directory, id: str) -> str:
    """Free the id at once, whoever holds it; returns the key that had it, or nothing."""
    gone = directory.server / f"{_FREED}{new_identifier()}"
    with suppress(FileNotFoundError):
        directory.entry(id).rename(gone)
        key = Entry.read(gone.read_bytes()).key
        gone.unlink()
        return key
    return ""


def free_unknown(directory: Directory, record: Record) -> bool:
    """Free the id of what is left of a sandbox; False while somebody makes or starts one by that id, or has."""
    directory = directory.of(record.tenant)
    path = directory.entry(record.id)
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if directory.is_known(record):
            return False
        if directory.look_up(record.id).key == record.key:
            path.unlink()  # who waits for this lock finds that it is not current
    return True


def forget_stale(directory: Directory) -> None:
    """Remove what is left of ids that were being taken or freed by somebody who was killed then."""
    for gone in directory.server.glob(f"{_FREED}*"):
        gone.unlink(missing_ok=True)
    for path in directory.ids.iterdir():
        with suppress(FileNotFoundError, BlockingIOError, SandboxUnavailable), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if directory.read(Entry.read(file.read(ENTRY_BYTES)).key) is None:
                path.unlink()  # who waits for this lock finds that it is not current
