"""Control groups: find where this machine lets us make them, and use them. cgroups(7)."""

import os
import select
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

# The group of a sandbox may be in one whose name begins so, beside others of the same owner.
SHARE = "tenant-"
_V2 = "cgroup2"
_V1 = "cgroup"


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
            unified = _make_parent(_own_group(point), parent)
        elif kind == _V1:
            for controller in ("memory", "pids", "cpu"):
                if controller in options.split(","):
                    made = _make_parent(point, parent)
                    if made is not None:
                        v1[controller] = made
    return Hierarchies(unified, delegate(unified), v1)


def _own_group(point: str) -> str:
    """Find where new groups go: as root at the top, as a plain user below the group we are in."""
    if os.geteuid() == 0:
        return point
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return point + line[3:].rstrip("/")
    return point


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
        available = Path(unified, "cgroup.controllers").read_text().split()
        wanted = [name for name in ("memory", "pids", "cpu") if name in available]
        if wanted:
            Path(unified, "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
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
        self.write("cgroup.kill", "1")

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
