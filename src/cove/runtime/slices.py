"""Work in the name of a slice of users: on files that are theirs, by a process that is root among them. Blocks.

The process makes a user namespace of its own and waits until newuidmap(1) has mapped the slice there. It does one
thing and ends. Its answer is bounded, and nobody waits for it longer than `check` lets them.
"""

import errno
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from cove.core.snapshot_index import IndexedLayer
from cove.errors import SandboxUnavailable
from cove.layers.record import System
from cove.linux.disk_usage import DiskUsage
from cove.linux.subordinate import Slice, extents, map_slice
from cove.model import FileChange

_COMMAND = (sys.executable, "-P", "-m", "cove.runtime.slice_program")
_START_SECONDS = 10.0
_SECONDS = 3600.0
_LOOK_SECONDS = 0.1
_MOST_BYTES = 256 << 20
# Of the inner user namespace: each number is that of the outer one, and each line one line of that.
_MAP = "".join(f"{inside} {inside} {count}\n" for inside, _, count in extents(0, 1))
# Directories of an upper that belong to the user whom the sandbox is for.
_OWN = ("workspace", "home", "root/workspace", "root/home/user")


def _wait() -> None:
    """Wait for as long as it takes."""


class SliceFiles:
    """The files of one sandbox that belong to users of a slice."""

    def __init__(self, slice: Slice) -> None:
        self.slice = slice

    def remove(self, *paths: str) -> None:
        """Remove trees, whatever is in them. Raises OSError, as whoever removes files does."""
        try:
            self._ask("remove", paths=paths)
        except SandboxUnavailable as error:
            raise PermissionError(errno.EPERM, error.message) from error

    def measure(self, paths: Sequence[str]) -> DiskUsage:
        """Measure what these trees take together."""
        return DiskUsage(*msgspec.convert(self._ask("measure", paths=paths), tuple[int, int, bool]))

    def record(self, layer: str) -> None:
        """Record whose the files of a new layer are, and make all of them ours."""
        self._ask("record", paths=[layer])

    def pack(self, data: Path, target: Path) -> IndexedLayer:
        """Write the whole archive of an upper, with its owners, to a new file of ours; returns what it is."""
        digest, size = msgspec.convert(self._ask("pack", paths=[str(data), str(target)]), tuple[str, int])
        return IndexedLayer(digest=digest, size=size)

    def give(self, upper: Path, layers: Sequence[Path], parts: Sequence[str], system: System) -> None:
        """Give the files of these layers, bottom first, to whom they belong, in a new upper."""
        self._ask(
            "give",
            upper=[str(upper)],
            layers=[str(path) for path in layers],
            parts=parts,
            own=_OWN,
            owner=[system.user_id, system.group_id],
        )

    def changes(
        self, trees: tuple[list[Path], list[Path]], check: Callable[[], object], *, is_whole: bool
    ) -> list[FileChange]:
        """Find the changes as layers/changes does."""
        return msgspec.convert(self._ask("changes", check, **_trees(trees), whole=is_whole), list[FileChange])

    def diff(
        self, trees: tuple[list[Path], list[Path]], path: bytes, check: Callable[[], object], *, is_whole: bool
    ) -> str:
        """Write a patch as layers/diff does."""
        paths = [os.fsdecode(path)]
        return msgspec.convert(self._ask("diff", check, **_trees(trees), paths=paths, whole=is_whole), str)

    @contextmanager
    def namespace(self, processes: int | None) -> Iterator[int]:
        """Hold a user namespace for a jail, with a bound on the processes of all its users together."""
        with _Worker(self.slice) as worker:
            pid = msgspec.convert(worker.ask({"verb": "hold", "processes": processes, "map": _MAP}, _wait), int)
            with _told("the users of a sandbox cannot be mapped"):
                descriptor = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            worker.let_go()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _ask(self, verb: str, check: Callable[[], object] = _wait, **fields: object) -> object:
        with _Worker(self.slice) as worker:
            return worker.ask({"verb": verb, **fields}, check)


def _trees(trees: tuple[list[Path], list[Path]]) -> dict[str, list[str]]:
    below, above = ([str(path) for path in each] for each in trees)
    return {"below": below, "above": above}


class _Worker:
    """The process, with its users mapped. Opened by `with`."""

    def __init__(self, slice: Slice) -> None:
        self._slice = slice

    def __enter__(self) -> "_Worker":
        with _told("the users of a sandbox cannot be mapped"):
            self._process = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
            )
            try:
                self._read(_START_SECONDS, _wait)
                map_slice(self._process.pid, self._slice)
            except BaseException:
                self._end()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def let_go(self) -> None:
        """Let it end by itself, with what it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_START_SECONDS)

    def _end(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def ask(self, request: dict[str, object], check: Callable[[], object]) -> object:
        """Return the answer. Raises SandboxUnavailable, and what `check` raises."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is read
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        with _told("the sandbox's files cannot be worked on"):
            answer = self._read(_SECONDS, check)
        if "ok" not in answer:
            raise SandboxUnavailable(f"the sandbox's files cannot be worked on: {answer.get('error')}")
        return answer["ok"]

    def _read(self, seconds: float, check: Callable[[], object]) -> dict[str, object]:
        """Read one line."""
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(_LOOK_SECONDS):
                    check()
                    if time.monotonic() > until:
                        raise TimeoutError(errno.ETIMEDOUT, "the process that works on files does not answer")
                    continue
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
                line += piece
                if not piece or len(line) > _MOST_BYTES:
                    raise ConnectionResetError(errno.ECONNRESET, "the process that works on files has ended")
        return msgspec.convert(json.loads(line), dict[str, object])


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SandboxUnavailable(f"{what}: {error.strerror or error}") from error


def _environment() -> dict[str, str]:
    """Give what finds our own modules, and nothing else."""
    return {name: os.environ[name] for name in ("PYTHONPATH", "PYTHONHOME") if name in os.environ}
