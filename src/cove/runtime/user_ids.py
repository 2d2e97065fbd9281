"""Allocate the host users that sandboxes run as when Cove is root's. Blocks.

Each state directory of a machine owns a range of ids: a register outside all of them says which. Within the range an id
is reserved by a file that names its sandbox, and given to nobody while a process runs as that user.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cove.errors import SandboxUnavailable
from cove.linux.file_lock import waiting_lock

FIRST_USER_ID = 2_000_000_000
USER_IDS = 65_536
RANGES = 2_000
# The first that can be written: files of stopped sandboxes outlive a restart of the machine, so should the register.
REGISTERS = (Path("/var/lib/cove-users"), Path("/run/cove-users"))
_NOTE = "users.range"


class UserIds:
    """Ids of one state directory. `_lock` is held while ids are given or taken back, and says which was the last."""

    def __init__(self, path: Path, registers: tuple[Path, ...] = REGISTERS) -> None:
        self._path = path
        self._lock = path.with_name("users.lock")
        self._registers = registers
        self._first: int | None = None

    def of_volumes(self) -> int:
        """Return the id that owns what is in volumes on disk: no sandbox and no process ever has it."""
        with waiting_lock(self._lock):
            return self._claim() + USER_IDS - 1

    def number(self) -> int:
        """Return under which number the register knows this state directory."""
        with waiting_lock(self._lock):
            return (self._claim() - FIRST_USER_ID) // USER_IDS

    def _claim(self) -> int:
        self._first = self._first or _claim_range(self._path.parent, self._registers)
        return self._first

    def allocate(self, key: str) -> int:
        """Reserve the next id that neither a sandbox nor a process has."""
        with waiting_lock(self._lock) as lock:
            first = self._claim()
            last = int(os.pread(lock, 20, 0) or -1)
            for step in range(1, USER_IDS):
                offset = (last + step) % (USER_IDS - 1)
                reservation = self._path / str(first + offset)
                if not reservation.exists() and not has_processes(first + offset):
                    try:
                        write_note(reservation, key)
                        os.pwrite(lock, b"%-20d" % offset, 0)
                    except OSError:
                        reservation.unlink(missing_ok=True)
                        raise
                    return first + offset
        raise SandboxUnavailable(f"all {USER_IDS - 1} user ids of {self._path} are in use: destroy some sandboxes")

    def find(self, key: str, note: Path) -> int | None:
        """Find the id of a sandbox; `note` is the file that has it, unless its program was killed before."""
        noted = read_note(note)
        for reservation in [self._path / noted] if noted else self._path.iterdir():
            if read_note(reservation) == key:
                return int(reservation.name)
        return None

    def release(self, user_id: int) -> None:
        """Let another sandbox have it."""
        (self._path / str(user_id)).unlink(missing_ok=True)

    def take_back(self, is_there: Callable[[str], bool]) -> None:
        """Release those whose sandbox is gone: its program was killed while it did."""
        with waiting_lock(self._lock):
            for reservation in self._path.iterdir():
                key = read_note(reservation)
                if not key or not is_there(key):
                    reservation.unlink(missing_ok=True)


def _claim_range(state: Path, registers: tuple[Path, ...]) -> int:
    """Return the first id of the range that belongs to this state directory and to no other of this machine."""
    register = open_register(registers)
    with waiting_lock(register / "lock"):
        noted = read_note(state / _NOTE)
        if not noted:
            noted = next((number for number in map(str, range(RANGES)) if owner_of(register, number) is None), "")
        if not noted:
            raise SandboxUnavailable(f"all {RANGES} ranges of user ids are in use: remove state directories of Cove")
        owner = owner_of(register, noted)
        if owner is not None and not owner.samefile(state):
            raise SandboxUnavailable(
                f"{state} and {owner} have the same user ids, one is a copy of the other: use only one on this machine"
            )
        write_note(register / noted, str(state))
        write_note(state / _NOTE, noted)
    return FIRST_USER_ID + int(noted) * USER_IDS


def open_register(registers: tuple[Path, ...]) -> Path:
    """Return the first register that can be written."""
    for register in registers:
        with suppress(OSError):  # a file system that is read-only
            register.mkdir(mode=0o700, exist_ok=True)
            if os.access(register, os.W_OK):
                return register
    places = " nor ".join(map(str, registers))
    raise SandboxUnavailable(f"cannot keep the register of user ids: neither {places} can be written")


def owner_of(register: Path, number: str) -> Path | None:
    """The state directory that has this range; one that is gone, or has another range, has none."""
    owner = read_note(register / number)
    return Path(owner) if owner and read_note(Path(owner) / _NOTE) == number else None


def has_processes(user_id: int) -> bool:
    """Return whether a process runs as this user: getpriority(2) finds out without a look at every process."""
    try:
        os.getpriority(os.PRIO_USER, user_id)
    except ProcessLookupError:
        return False
    return True


def read_note(path: Path) -> str:
    """Read a small file; nothing where there is none."""
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""  # never made, or released meanwhile by another program


def write_note(path: Path, text: str) -> None:
    """Write a small file that is root's alone."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
