"""Find deleted files that processes still hold open, and say whether all of them could be looked at.

A file without a name takes its space until the last one who holds it lets go: by a descriptor, by a mapping, or by a
descriptor that waits in a socket. Processes that are not dumpable hide what they hold from other users; whoever owns
their user namespace can still copy their descriptors (pidfd_getfd(2)).
"""

import ctypes
import os
import re
import stat
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

_BLOCK_BYTES = 512
# Hostile code can hold so much that looking takes for ever: what was not looked at is then unknown.
_SECONDS = 1.0

_PIDFD_GETFD = 438
_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_FILES = 2

# proc(5), maps: mappings of memory that is no file of a disk look the same.
_DELETED = re.compile(rb"^([0-9a-f]+-[0-9a-f]+) \S+ \S+ \S+ (\d+) +(/.*) \(deleted\)$", re.MULTILINE)
_IN_MEMORY = (b"/memfd:", b"/SYSV", b"/dev/zero", b"/dev/shm/", b"/[aio]")
_WAITING = re.compile(rb"^scm_fds:\s*[1-9]", re.MULTILINE)

_library = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class UnlinkedFiles:
    """Bytes by inode; `is_complete` is False when there may be more that could not be looked at."""

    sizes: dict[int, int] = field(default_factory=dict)
    is_complete: bool = True

    @property
    def bytes(self) -> int:
        """The bytes that they take together."""
        return sum(self.sizes.values())


def measure_unlinked(pids: Iterable[int], devices: Collection[int], agent: int = 0) -> UnlinkedFiles:
    """Look at what these processes hold on those devices. The agent and its launchers are ours. Blocks."""
    search = _Search(devices, agent, time.monotonic() + _SECONDS)
    for pid in pids:
        if search.is_late():
            break
        search.look_at(pid)
    return search.found


@dataclass(slots=True)
class _Search:
    devices: Collection[int]
    agent: int
    until: float
    found: UnlinkedFiles = field(default_factory=UnlinkedFiles)

    def is_late(self) -> bool:
        if time.monotonic() < self.until:
            return False
        self.found.is_complete = False
        return True

    def look_at(self, pid: int) -> None:
        """A process that has ended meanwhile holds nothing."""
        if pid == self.agent or _parent(pid) == self.agent:
            return
        try:
            for task in _tables(pid):
                self._look_at_descriptors(pid, task)
            self._look_at_mappings(pid)
        except (FileNotFoundError, ProcessLookupError):
            return
        except OSError:
            self.found.is_complete = False

    def _look_at_descriptors(self, pid: int, task: int) -> None:
        folder = f"/proc/{pid}/task/{task}"
        try:
            names = os.listdir(f"{folder}/fd")
        except PermissionError:
            self._copy_descriptors(pid, task)
            return
        for name in names:
            if self.is_late():
                return
            with suppress(FileNotFoundError):  # closed meanwhile
                self._consider(os.stat(f"{folder}/fd/{name}"), f"{folder}/fdinfo/{name}")

    def _copy_descriptors(self, pid: int, task: int) -> None:
        """pidfd_open(2) knows no single threads."""
        if task != pid:
            self.found.is_complete = False
            return
        process = os.pidfd_open(pid)
        try:
            for number in range(_table_size(pid)):
                if self.is_late():
                    return
                copy = _library.syscall(_PIDFD_GETFD, process, number, 0)
                if copy >= 0:
                    try:
                        self._consider(os.fstat(copy), f"/proc/self/fdinfo/{copy}")
                    finally:
                        os.close(copy)
                elif ctypes.get_errno() in (1, 13):
                    self.found.is_complete = False
                    return
        finally:
            os.close(process)

    def _consider(self, facts: os.stat_result, information: str) -> None:
        if stat.S_ISSOCK(facts.st_mode):
            with open(information, "rb") as file:
                if _WAITING.search(file.read()):
                    self.found.is_complete = False
        elif stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0 and facts.st_dev in self.devices:
            self.found.sizes[facts.st_ino] = facts.st_blocks * _BLOCK_BYTES

    def _look_at_mappings(self, pid: int) -> None:
        """Only root may look at a file by its mapping. The program of a process is a mapping that it cannot close."""
        with suppress(FileNotFoundError, PermissionError):
            self._consider(os.stat(f"/proc/{pid}/exe"), "")
        with open(f"/proc/{pid}/maps", "rb") as file:
            while not self.is_late() and (lines := file.readlines(1 << 20)):
                for place, inode, path in _DELETED.findall(b"".join(lines)):
                    if int(inode) not in self.found.sizes and not path.startswith(_IN_MEMORY):
                        self._look_at_mapping(pid, place.decode())

    def _look_at_mapping(self, pid: int, place: str) -> None:
        try:
            self._consider(os.stat(f"/proc/{pid}/map_files/{place}"), "")
        except FileNotFoundError:
            return
        except OSError:
            self.found.is_complete = False


def _tables(pid: int) -> list[int]:
    """One living thread for each table of descriptors: nearly always they have one in common. clone(2), CLONE_FILES"""
    tasks = [task for task in map(int, os.listdir(f"/proc/{pid}/task")) if _state(pid, task) not in ("Z", "X")]
    different: list[int] = []
    for task in tasks:
        if not different or _KCMP is None or _library.syscall(_KCMP, different[0], task, _KCMP_FILES, 0, 0) != 0:
            different.append(task)
    return different


def _state(pid: int, task: int) -> str:
    return (_fields(f"/proc/{pid}/task/{task}/stat") or ["X"])[0]


def _parent(pid: int) -> int:
    fields = _fields(f"/proc/{pid}/stat")
    return int(fields[1]) if fields else 0


def _fields(path: str) -> list[str]:
    """The fields from the third on: proc(5), stat. Empty when it has ended."""
    try:
        with open(path, errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _table_size(pid: int) -> int:
    with open(f"/proc/{pid}/status", errors="replace") as file:
        found = re.search(r"^FDSize:\s*(\d+)$", file.read(), re.MULTILINE)
    return 0 if found is None else int(found[1])
