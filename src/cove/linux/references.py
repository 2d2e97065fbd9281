"""Find the processes that hold a mount: by a working directory, a root, a descriptor, a socket or a watch below it.

For processes that are frozen: nothing changes while they are looked at. Who cannot be looked at, or not in time, is
said to hold it. Mappings of programs and libraries do not count: nobody can write by them.
"""

import ctypes
import errno
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_SECONDS = 1.0
_MOUNT = re.compile(rb"^mnt_id:\s*(\d+)$", re.MULTILINE)
_SOCKET = re.compile(r"socket:\[(\d+)\]")
# What watches directories by name sees nothing of another mount in their place.
_WATCHES = ("anon_inode:inotify", "anon_inode:[fanotify]")

_PIDFD_GETFD = 438
_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_KINDS = (2, 3)  # descriptors, directories

_library = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A mount of another namespace: its id, and where it is seen there."""

    id: int
    path: str


@dataclass(slots=True)
class Holders:
    """Processes that hold the mounts: `standing` only by their working directory, told as a path inside."""

    standing: dict[int, str] = field(default_factory=dict)
    holding: set[int] = field(default_factory=set)


def read_mounts(pid: int) -> list[MountPoint]:
    """Return the mounts of a process's namespace in the order in which they were made: proc(5), mountinfo."""
    lines = Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines()
    fields = [line.split(b" ", 5) for line in lines]
    return [MountPoint(int(each[0]), _unescape(each[4])) for each in fields]


def mount_table(pid: int) -> bytes | None:
    """Return what the kernel says of all mounts of a process's namespace, to be compared; None when it has ended."""
    try:
        return Path(f"/proc/{pid}/mountinfo").read_bytes() or None
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # it ends just now
            return None
        raise


def _unescape(path: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), path))


def find_holders(
    pids: Iterable[int], mounts: Collection[int], *, agent: int = 0, sockets: Collection[int] = (), root: int = -1
) -> Holders:
    """Look at these processes. `sockets` are the inodes of sockets that are bound to names there. Blocks.

    The agent and its children, the launchers, are ours: their descriptors hold nothing, but cannot be looked at. Who
    has the mount `root` as its root, or stands at its top, does not hold that: pivot_root(2) takes it along.
    """
    search = _Search(frozenset(mounts), frozenset(sockets), agent, root, time.monotonic() + _SECONDS)
    for pid in pids:
        search.look_at(pid)
    return search.found


def bound_sockets(pid: int, directories: Collection[str]) -> set[int]:
    """Return the inodes of unix sockets of a process's network that have a name in these directories. Blocks."""
    found = set()
    with suppress(OSError), open(f"/proc/{pid}/net/unix", errors="surrogateescape") as file:
        for line in file.readlines()[1:]:
            words = line.split(None, 7)
            if len(words) == 8 and any(words[7].startswith(f"{each}/") for each in directories):
                found.add(int(words[6]))
    return found


@dataclass(slots=True)
class _Search:
    mounts: frozenset[int]
    sockets: frozenset[int]
    agent: int
    root: int
    until: float
    found: Holders = field(default_factory=Holders)

    def look_at(self, pid: int) -> None:
        """A process that has ended holds nothing."""
        try:
            if time.monotonic() > self.until or self._holds(pid):
                self.found.holding.add(pid)
        except (FileNotFoundError, ProcessLookupError):
            return
        except OSError:
            self.found.holding.add(pid)

    def _holds(self, pid: int) -> bool:
        folder = f"/proc/{pid}"
        state, parent = _read_stat(pid)
        if state in ("Z", "X"):
            return False
        if self.agent in (pid, parent):
            return self._has_root(folder) or self._stands(folder)
        if self._has_root(folder) or any(map(self._counts, _descriptors(pid))):
            return True
        if not all(_shares_all(pid, int(task)) for task in os.listdir(f"{folder}/task")):
            return True
        if self._stands(folder):
            self.found.standing[pid] = os.readlink(f"{folder}/cwd")
        return False

    def _has_root(self, folder: str) -> bool:
        mount = _mount_of(f"{folder}/root")
        return mount in self.mounts and not (mount == self.root and os.readlink(f"{folder}/root") == "/")

    def _stands(self, folder: str) -> bool:
        mount = _mount_of(f"{folder}/cwd")
        return mount in self.mounts and not (mount == self.root and os.readlink(f"{folder}/cwd") == "/")

    def _counts(self, descriptor: tuple[str, str]) -> bool:
        link, information = descriptor
        if link in _WATCHES:
            return True
        if socket := _SOCKET.fullmatch(link):
            return int(socket[1]) in self.sockets
        if link.startswith(("pipe:", "anon_inode:", "/dev/", "/proc/", "/run/cove/")):
            return False
        return _read_mount(information) in self.mounts


def _descriptors(pid: int) -> Iterator[tuple[str, str]]:
    """Return where each leads to, and the file with the facts about it."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        yield from _copied_descriptors(pid)
        return
    for name in names:
        with suppress(FileNotFoundError):
            yield os.readlink(f"/proc/{pid}/fd/{name}"), f"/proc/{pid}/fdinfo/{name}"


def _copied_descriptors(pid: int) -> Iterator[tuple[str, str]]:
    """A process that is not dumpable hides them, but not from the owner of its user namespace: pidfd_getfd(2)."""
    process = os.pidfd_open(pid)
    try:
        for number in range(_table_size(pid)):
            copy = _library.syscall(_PIDFD_GETFD, process, number, 0)
            if copy >= 0:
                try:
                    yield os.readlink(f"/proc/self/fd/{copy}"), f"/proc/self/fdinfo/{copy}"
                finally:
                    os.close(copy)
            elif ctypes.get_errno() != errno.EBADF:
                raise PermissionError(errno.EPERM, "the descriptors of a process cannot be looked at")
    finally:
        os.close(process)


def _table_size(pid: int) -> int:
    with open(f"/proc/{pid}/status", errors="replace") as file:
        found = re.search(r"^FDSize:\s*(\d+)$", file.read(), re.MULTILINE)
    return 0 if found is None else int(found[1])


def _mount_of(link: str) -> int:
    """Return the id of the mount that a link of /proc leads to."""
    opened = os.open(link, os.O_PATH | os.O_CLOEXEC)
    try:
        return _read_mount(f"/proc/self/fdinfo/{opened}")
    finally:
        os.close(opened)


def _read_mount(information: str) -> int:
    with open(information, "rb") as file:
        found = _MOUNT.search(file.read())
    return -1 if found is None else int(found[1])


def _shares_all(pid: int, task: int) -> bool:
    """Return whether a thread has the descriptors and directories of its process: kcmp(2)."""
    if task == pid:
        return True
    return _KCMP is not None and all(_library.syscall(_KCMP, pid, task, kind, 0, 0) == 0 for kind in _KCMP_KINDS)


def _read_stat(pid: int) -> tuple[str, int]:
    """Return its state and its parent: proc(5)."""
    with open(f"/proc/{pid}/stat", errors="replace") as file:
        state, parent, *_ = file.read().rpartition(")")[2].split()
        return state, int(parent)


def pid_inside(pid: int) -> int:
    """Return the pid that a process has in the innermost of its namespaces; 0 when it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/status", errors="replace") as file:
        found = re.search(r"^NSpid:.*\t(\d+)$", file.read(), re.MULTILINE)
        return 0 if found is None else int(found[1])
    return 0
