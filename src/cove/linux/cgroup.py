"""Control groups: find where this machine lets us make them, and use them. cgroups(7)."""

import errno
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

# The group of a sandbox may be in one whose name begins so, beside others of the same owner.
SHARE = "tenant-"
_V2 = "cgroup2"
_V1 = "cgroup"
_CONTROLLERS = ("memory", "pids", "cpu")
# Where programs go that were in a group which is to have groups with controllers below it.
_PROGRAMS = "programs"
_TRIES = 10
_FREEZE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The trees in which groups can be made: the unified (v2) one, and v1 trees by controller."""

    unified: str | None
    controllers: frozenset[str] = frozenset()
    v1: dict[str, str] = field(default_factory=dict)

    @property
    def all(self) -> list[str]:
        """Every tree that has groups of ours."""
        return [*([] if self.unified is None else [self.unified]), *self.v1.values()]


def group_path(tree: str, key: str) -> str:
    """Find the group of a sandbox in one tree: where it is, or would be without a share."""
    path = os.path.join(tree, key)
    if os.path.isdir(path):
        return path
    return next((str(found) for found in Path(tree).glob(f"{SHARE}*/{key}")), path)


def find_hierarchies(parent: str = "cove", *, mounts: str = "/proc/self/mounts") -> Hierarchies:
    """Look at what is mounted and try to make our parent group in each; what fails is left out."""
    unified: str | None = None
    v1: dict[str, str] = {}
    for line in Path(mounts).read_text().splitlines():
        _, point, kind, options = line.split(" ")[:4]
        if kind == _V2 and unified is None:
            above = own_group(point, parent)
            unified = _make_parent(above, parent)
            if unified is not None:
                _enable(above, unified)
        elif kind == _V1:
            for controller in _CONTROLLERS:
                if controller in options.split(","):
                    made = _make_parent(point, parent)
                    if made is not None:
                        v1[controller] = made
    return Hierarchies(unified, delegate(unified), v1)


def own_group(point: str, parent: str, *, memberships: str = "/proc/self/cgroup") -> str:
    """Find where our parent group goes: as root at the top, as a plain user below the group we were started in.

    A process of ours may be in a group below the parent already.
    """
    if os.geteuid() == 0:
        return point
    for line in Path(memberships).read_text().splitlines():
        if line.startswith("0::"):
            own = line[3:].rstrip("/")
            above, found, _ = f"{own}/".partition(f"/{parent}/")
            return point + (above if found and _may_move(point + above) else own)
    return point


def _enable(above: str, parent: str) -> None:
    """Let the parent group have the controllers that the group above it has, where that is ours to say.

    A group with controllers below it may have no processes of its own, except at the top of the machine: those in one
    that was delegated to us move to a group beside the sandboxes. cgroups(7), "no internal processes"
    """
    with suppress(OSError):
        there = Path(above, "cgroup.subtree_control").read_text().split()
        missing = [name for name in _available(above) if name not in there]
        if missing and not _write_controllers(above, missing) and _is_delegated(above):
            programs = Group(os.path.join(parent, _PROGRAMS))
            os.makedirs(programs.path, exist_ok=True)
            for _ in range(_TRIES):  # they may fork meanwhile
                for pid in Path(above, "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        programs.write("cgroup.procs", pid)
                if _write_controllers(above, missing):
                    break


def _available(group: str) -> list[str]:
    available = Path(group, "cgroup.controllers").read_text().split()
    return [name for name in _CONTROLLERS if name in available]


def _write_controllers(group: str, names: list[str]) -> bool:
    """Return whether groups below may have these controllers now; False while the group has processes."""
    try:
        Group(group).write("cgroup.subtree_control", " ".join(f"+{name}" for name in names))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _is_delegated(group: str) -> bool:
    """Return whether all in the group is ours: systemd says so, or whoever gave us this group gave us none above it."""
    with suppress(OSError):
        if os.getxattr(group, "user.delegate") == b"1":
            return True
    return os.path.ismount(group) or not _may_move(os.path.dirname(group))


def _make_parent(point: str, name: str) -> str | None:
    path = os.path.join(point, name)
    try:
        os.makedirs(path, exist_ok=True)
        probe = os.path.join(path, f"probe-{os.getpid()}-{os.urandom(4).hex()}")
        os.mkdir(probe)
        os.rmdir(probe)
        return path if os.access(os.path.join(path, "cgroup.procs"), os.W_OK) and _may_move(point) else None
    except OSError:
        return None


def _may_move(point: str) -> bool:
    """Moving a process needs write access to the common ancestor of its old and new group."""
    return os.access(os.path.join(point, "cgroup.procs"), os.W_OK)


def delegate(unified: str | None) -> frozenset[str]:
    """Let groups below this one have the controllers that there are; returns those."""
    if unified is None:
        return frozenset()
    try:
        wanted = _available(unified)
        if wanted and not _write_controllers(unified, wanted):
            return frozenset()
        return frozenset(wanted)
    except OSError:
        return frozenset()


class Group:
    """One group in one tree."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self) -> None:
        """Make the group."""
        os.mkdir(self.path)

    def add(self, pid: int) -> None:
        """Move a process in. This can wait some milliseconds for the kernel: not on an event loop."""
        self.write("cgroup.procs", str(pid))

    def kill(self) -> None:
        """SIGKILL for every process in the group and below, at once: unified tree only."""
        try:
            self.write("cgroup.kill", "1")
        except FileNotFoundError:
            if not os.path.isdir(self.path):
                raise
            self.kill_each()

    def kill_each(self) -> None:
        """SIGKILL for one process after another, while none can fork: for Linux before 5.14, without cgroup.kill."""
        self.freeze(_FREEZE_SECONDS)
        try:
            for pid in self.pids():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            self.thaw()

    def wait_empty(self, timeout: float) -> None:
        """Wait until the last process in the group and below is gone, but not for ever: unified tree only."""
        self._wait_while(b"populated 1", timeout)

    def freeze(self, timeout: float) -> bool:
        """Freeze every process in the group and below; returns whether all are, in time: unified tree only."""
        self.write("cgroup.freeze", "1")
        return self._wait_while(b"frozen 0", timeout)

    @property
    def is_frozen(self) -> bool:
        """Return whether it was told to freeze: unified tree only."""
        return self.read("cgroup.freeze").strip() == "1"

    def thaw(self) -> None:
        """Let everything go on. Idempotent; one that is gone is fine."""
        with suppress(FileNotFoundError):
            self.write("cgroup.freeze", "0")

    def _wait_while(self, word: bytes, timeout: float) -> bool:
        until = time.monotonic() + timeout
        events = os.open(os.path.join(self.path, "cgroup.events"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while word in os.pread(events, 4096, 0):
                if not poll.poll(max(until - time.monotonic(), 0) * 1000):
                    return word not in os.pread(events, 4096, 0)
        finally:
            os.close(events)
        return True

    def write(self, name: str, value: str) -> None:
        """Set one control file."""
        descriptor = os.open(os.path.join(self.path, name), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)

    def read(self, name: str) -> str:
        """Read one control file."""
        return Path(self.path, name).read_text()

    def pids(self) -> list[int]:
        """Return every process in the group and below."""
        found = []
        for folder, _, _ in os.walk(self.path):
            try:
                found += [int(line) for line in Path(folder, "cgroup.procs").read_text().split()]
            except OSError:
                continue  # removed meanwhile
        return found

    def remove(self) -> bool:
        """Remove the group and the groups below it; False while it still has processes."""
        try:
            with os.scandir(self.path) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            for path in below:
                Group(path).remove()
            os.rmdir(self.path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True
