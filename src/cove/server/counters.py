"""Count what happens on a server, over all its processes, in files that outlive each of them.

A process that counts often has files of its own: names, one in each line, and numbers, mapped into memory, in the same
order. Nobody else writes them, so counting takes no lock and no system call, and the worker that follows a killed one
goes on where that one was. What happens rarely, in processes that come and go, is counted in files that all share,
behind a lock. Whoever wants to know adds up all files.

On a full disk nothing fails: numbers have their room before they are used, since a page that the disk has none for
would kill who writes to it (mmap(2), SIGBUS), and what cannot be named is not counted.
"""

import fcntl
import mmap
import os
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from struct import iter_unpack
from typing import Final

# The upper ends of the buckets of a histogram of seconds.
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_NAMES, _NUMBERS = ".names", ".numbers"
_MOST: Final = 8192
_BYTES: Final = 8
_NOWHERE: Final = _MOST - 1
_SHARED: Final = "shared"
# For names that there is no more room for, so that what is bounded is the files and not the truth.
OVERFLOW: Final = "cove_uncounted_total"


def counts_path(home: Path) -> Path:
    """Return where the files are."""
    return home / "server" / "counts"


def clear_counts(home: Path) -> None:
    """Begin with nothing: counters are those of one server, from its start. Blocks."""
    path = counts_path(home)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in path.iterdir():
        each.unlink()


class Counters:
    """The numbers that one process counts. Opening blocks; counting does not, but for a name that is new."""

    def __init__(self, home: Path, name: str) -> None:
        path = counts_path(home)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._names = os.open(path / (name + _NAMES), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        numbers = os.open(path / (name + _NUMBERS), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._map = _map(numbers)
        os.close(numbers)
        self._numbers = memoryview(self._map).cast("d")
        self._at: dict[str, int] = {}

    def read(self) -> None:
        """Go on with what the files have. A line that a kill has cut off is dropped."""
        data = os.pread(self._names, os.fstat(self._names).st_size, 0)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._names, whole)
        self._at = {name: at for at, name in enumerate(data[:whole].decode().splitlines())}

    def add(self, name: str, amount: float = 1.0) -> None:
        """Add to a number; the first time it is 0."""
        at = self._at.get(name)
        self._numbers[self._make(name) if at is None else at] += amount

    def _make(self, name: str) -> int:
        if len(self._at) >= _NOWHERE - 1 and name != OVERFLOW:
            return self._at[OVERFLOW] if OVERFLOW in self._at else self._make(OVERFLOW)
        try:
            os.write(self._names, name.encode() + b"\n")
        except OSError:
            return _NOWHERE
        at = self._at[name] = len(self._at)
        return at

    def lock(self) -> None:
        """Keep others from these files until they are closed."""
        fcntl.flock(self._names, fcntl.LOCK_EX)

    def close(self) -> None:
        """Let go of the files."""
        self._numbers.release()
        self._map.close()
        os.close(self._names)


def _map(numbers: int) -> mmap.mmap:
    """Map a file, with all its room; without any, memory of this process."""
    try:
        os.posix_fallocate(numbers, 0, _MOST * _BYTES)
    except OSError:
        numbers = -1
    return mmap.mmap(numbers, _MOST * _BYTES)


def count_rarely(home: Path, name: str) -> None:
    """Count one of something that happens rarely, from any process. Blocks."""
    try:
        counters = Counters(home, _SHARED)
    except OSError:
        return  # the disk is full, or the state directory is gone, and with it who would want to know
    with closing(counters):
        counters.lock()
        counters.read()
        counters.add(name)


def read_counts(home: Path) -> Counter[str]:
    """Add up what all processes have counted. Blocks."""
    total: Counter[str] = Counter()
    for names in counts_path(home).glob("*" + _NAMES):
        data = names.read_bytes()
        known = data[: data.rfind(b"\n") + 1].decode().splitlines()
        numbers = iter_unpack("d", names.with_suffix(_NUMBERS).read_bytes())
        for name, (number,) in zip(known, islice(numbers, len(known)), strict=False):
            total[name] += number
    return total
