"""What is left on the machine, and what grows."""

import ctypes
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.proc import descendants, resident_bytes
from soak.growth import slope
from soak.server import Server

_SETTLE_SECONDS = 90.0
_PAUSE = 0.05
_MOST_MIB_PER_MINUTE = 1.0
_LEAST_POINTS = 6
_PR_SET_CHILD_SUBREAPER = 36
_M_ARENA_MAX = -8
_TROUBLE = re.compile(r"Traceback|never retrieved|never awaited")


@dataclass
class Census:
    """Counts the holdings of this program, or of servers, while nobody uses them. All calls block."""

    home: Path
    servers: Sequence[Server]
    _memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _descriptors: int | None = None
    _mounts: int | None = None
    _layers: int | None = None
    _seen: set[str] = field(default_factory=set)
    _read_to: dict[Path, int] = field(default_factory=dict)

    def glance(self) -> None:
        """Note which sandboxes there are: other programs on this machine have control groups too."""
        for home in self._homes:
            self._seen |= _names(home / "sandboxes")

    @property
    def _homes(self) -> list[Path]:
        return [server.home for server in self.servers] or [self.home]

    def _all(self, name: str) -> set[str]:
        return {entry for home in self._homes for entry in _names(home / name)}

    def leaks(self, kept: int) -> list[str]:
        """Whatever there is beyond so many sandboxes, after some time to settle."""
        until = time.monotonic() + _SETTLE_SECONDS
        while (found := self._beyond(kept)) and time.monotonic() < until:
            time.sleep(_PAUSE)
        return [*found, *self._complaints()]

    def _beyond(self, kept: int) -> list[str]:
        places = self._all("sandboxes")
        found = [
            f"{name}: {len(entries)} for {kept} sandboxes: {sorted(entries)[:5]}"
            for name in ("sandboxes", "ids", "users")
            if len(entries := self._all(name)) > kept
        ]
        gone = self._seen - places
        found += [f"control group {group}" for group in control_groups() if os.path.basename(group) in gone]
        found += [f"server/{path.name}" for home in self._homes for path in (home / "server").glob("freed-*")]
        if kept == 0:
            found += [f"process {pid} {_command(pid)}" for pid in self._strays()]
            found += self._left_behind()
        if not self.servers and kept == 0:
            found += self._new_descriptors()
        return found

    def _left_behind(self) -> list[str]:
        """What is there without any sandbox: snapshots, volumes, backups, mounts, and layers that nothing stands on."""
        found = [
            f"{name}: {sorted(entries)[:5]}"
            for name in ("snapshots", "volumes", "backups")
            if (entries := {entry for entry in self._all(name) if not entry.startswith(".") and entry != "lock"})
        ]
        layers, mounts = len(self._all("layers")), _mounts_below(self.home)
        if self._layers is None or self._mounts is None:
            self._layers, self._mounts = layers, mounts
        if layers > self._layers:
            found.append(f"{layers} layers, {self._layers} before")
        return [*found, f"{mounts} mounts, {self._mounts} before"] if mounts > self._mounts else found

    def _strays(self) -> list[int]:
        known = {pid for server in self.servers for pid in (server.pid, *server.helpers())}
        collect_orphans([server.pid for server in self.servers])
        return [pid for pid in descendants(os.getpid()) if pid not in known and _is_alive(pid) and not _is_world(pid)]

    def _new_descriptors(self) -> list[str]:
        count = len(os.listdir("/proc/self/fd"))
        if self._descriptors is None:
            self._descriptors = count
        if count <= self._descriptors:
            return []
        return [f"{count} descriptors, {self._descriptors} before: {Counter(map(_kind, os.listdir('/proc/self/fd')))}"]

    def _complaints(self) -> list[str]:
        """Tracebacks in what the server and its runtimes wrote since the last time."""
        found = []
        logs = [path for home in self._homes for path in (home / "sandboxes").glob("*/runtime.log")]
        for path in (*(server.complaints for server in self.servers), *logs):
            text = path.read_text(errors="replace")[self._read_to.get(path, 0) :]
            self._read_to[path] = self._read_to.get(path, 0) + len(text)
            if match := _TROUBLE.search(text):
                found.append(f"{path.name}: {text[max(match.start() - 200, 0) : match.start() + 3000]}")
        return found

    def measure(self) -> None:
        """Note how much memory everything has that lives long; what this program has freed is given back before."""
        ctypes.CDLL(None).malloc_trim(0)
        for name, pid in self._long_lived():
            with suppress(FileNotFoundError, ProcessLookupError):
                self._memory.setdefault(f"{name} {pid}", []).append((time.monotonic(), resident_bytes(pid)))

    def _long_lived(self) -> list[tuple[str, int]]:
        return [each for server in self.servers for each in _parts(server)] or [("program", os.getpid())]

    def growth(self) -> list[tuple[str, int, float, float]]:
        """Who was measured often, how often, its MiB at the end, and how many MiB it gains per minute."""
        rows = []
        for name, points in self._memory.items():
            later = points[len(points) // 3 :]  # at first everything grows
            if len(later) >= 2:
                rows.append((name, len(points), points[-1][1] / 2**20, slope(later) * 60 / 2**20))
        return rows

    def growing(self) -> list[str]:
        """Those that gain too much to be noise."""
        return [
            f"{name} gains {rate:.2f} MiB per minute"
            for name, count, _, rate in self.growth()
            if count >= _LEAST_POINTS and rate > _MOST_MIB_PER_MINUTE
        ]


def _parts(server: Server) -> list[tuple[str, int]]:
    roles = [(role, pid) for role in ("worker", "zygote") for pid in server.children(role)]
    runtimes = [
        ("runtime", holder[0])
        for key in _names(server.home / "sandboxes")
        if (holder := server.directory.holder(key)) is not None
    ]
    return [("supervisor", server.pid), *roles, *runtimes]


def use_one_arena() -> None:
    """Let all threads of this process allocate from one arena: mallopt(3).

    With one for each thread, pages that are free but for a few bytes look like a leak: 15 MiB of 165 were in use, and
    stayed 15, while the resident ones became more. Before the first thread.
    """
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def adopt_orphans() -> None:
    """From here on whatever is started stays below this process, also when its parent dies: prctl(2)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def collect_orphans(owned: Sequence[int]) -> None:
    """Wait for children that were left to this process and have ended, but not for those that somebody owns."""
    for pid in descendants(os.getpid()):
        if pid not in owned and _state(pid) == ("Z", os.getpid()):
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def control_groups() -> list[str]:
    """The groups of all Cove sandboxes on this machine, by the mounts and by this process's own group."""
    found: list[str] = []
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, _ = line.split(" ", 3)
        if kind in ("cgroup", "cgroup2"):
            for parent in {Path(point, "cove"), Path(point + own.rstrip("/"), "cove")}:
                found += [str(entry) for entry in parent.iterdir() if entry.is_dir()] if parent.is_dir() else []
    return found


def _mounts_below(home: Path) -> int:
    return sum(f" {home}/" in line for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _is_world(pid: int) -> bool:
    return "moto.server" in _command(pid)


def _names(path: Path) -> set[str]:
    return set(os.listdir(path)) if path.exists() else set()


def _kind(descriptor: str) -> str:
    try:
        return re.sub(r"\d+", "N", os.readlink(f"/proc/self/fd/{descriptor}"))
    except FileNotFoundError:
        return "closed"


def _is_alive(pid: int) -> bool:
    return _state(pid)[0] not in ("Z", "")


def _state(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return fields[0], int(fields[1])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return "gone"
