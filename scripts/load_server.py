"""The server that is put under load, as seen from outside: its processes, its memory, what it leaves."""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cove.server.sandboxes.directory import Directory

_PR_SET_CHILD_SUBREAPER = 36
_OWN = ("cove-worker", "cove-zygote")


@dataclass(frozen=True)
class Footprint:
    """What the gateway holds at one moment: descriptors by process, and the memory of its workers."""

    descriptors: dict[int, int]
    memory: int


@dataclass
class LoadServer:
    """A running `cove serve`."""

    process: "subprocess.Popen[str]"
    home: Path
    port: int
    key: str

    def __post_init__(self) -> None:
        self._directory = Directory(self.home)

    @property
    def address(self) -> dict[str, str]:
        """How a client is told where sandboxes live."""
        return {"url": f"http://127.0.0.1:{self.port}", "api_key": self.key}

    def runtime_of(self, id: str) -> int | None:
        """The process of that sandbox, if it lives."""
        record = self._directory.find(id)
        if record is None or not self._directory.is_held(record.key):
            return None
        holder = self._directory.holder(record.key)
        return None if holder is None else holder[0]

    def footprint(self) -> Footprint:
        """The gateway at this moment."""
        workers = [pid for pid in _children(self.process.pid) if _name(pid) == "cove-worker"]
        return Footprint(
            descriptors={pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in workers},
            memory=sum(map(_memory, workers)),
        )

    def left_behind(self, before: Footprint) -> list[str]:
        """Sandboxes, ids, users, processes, and descriptors that were not there before."""
        files = [str(path) for name in ("sandboxes", "ids", "users") for path in (self.home / name).iterdir()]
        own = {self.process.pid, *(pid for pid in _children(self.process.pid) if _name(pid) in _OWN)}
        processes = [f"process {pid} {_name(pid)}" for pid in _below(os.getpid()) if pid not in own]
        now = self.footprint().descriptors
        descriptors = [f"{now[pid]} descriptors of worker {pid}, before {before.descriptors.get(pid)}" for pid in now]
        grown = [
            text for pid, text in zip(now, descriptors, strict=True) if now[pid] > before.descriptors.get(pid, 0) + 8
        ]
        return [*files, *processes, *grown]


@contextmanager
def serve(home: Path) -> Iterator[LoadServer]:
    """A server in that state directory, on a free port; whatever it starts stays below this program."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(
        [sys.executable, "-c", "from cove.cli import main; main()", "serve", "--port", "0", "--on-stop", "destroy"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COVE_HOME": str(home)},
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+:(\d+)", process.stdout.readline())
        assert found is not None
        yield LoadServer(process, home, int(found[1]), (home / "key").read_text().strip())
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def _children(parent: int) -> list[int]:
    return [pid for pid, above in _parents().items() if above == parent]


def _below(root: int) -> list[int]:
    """All living descendants; those that have ended are collected on the way."""
    parents = _parents()
    found = {root}
    while fresh := {pid for pid, above in parents.items() if above in found} - found:
        found |= fresh
    return sorted(found - {root})


def _parents() -> dict[int, int]:
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state == "Z" and int(parent) == os.getpid():
            os.waitpid(int(name), os.WNOHANG)
        else:
            found[int(name)] = int(parent)
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _memory(pid: int) -> int:
    """What a process holds for itself: proc(5), smaps_rollup."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss:",)))
