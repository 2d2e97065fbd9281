"""Files of a sandbox that stands on 1 GB in 20 000 files: kept, copied, compared, taken back; embedded and on a server.

Run it as root and as a plain user: they differ in whose rights the mounts are made with.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.harness import Figure, Plan, Unit, at_most, interleave, timed, timed_blocking, value_at_most
from bench.server import server
from cove import AsyncSandbox, AsyncSnapshot
from cove.local.state import default_home

_FILES, _BYTES = 20_000, 1 << 30
_CHANGED, _CHANGED_BYTES = 1200, 25_000_000
_AT_ONCE = 16
# Half of each file is random, half repeats, as code and data do.
_FILL = """
import os, sys
top, files, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(files):
    if number % 100 == 0:
        os.makedirs(f"{top}/d{number // 100}", exist_ok=True)
    with open(f"{top}/d{number // 100}/f{number}", "wb") as file:
        file.write(os.urandom(size // files // 2) + b"0123456789abcdef" * (size // files // 32))
"""
_IDLE = 0.05


@dataclass(frozen=True, slots=True)
class _Goals:
    """What a call may take, in seconds; `more` is what one copy may take beyond a creation."""

    snapshot: float
    restore: float | None
    more: float


@dataclass(frozen=True, slots=True)
class _Where:
    """Sandboxes of this program, or of a server."""

    name: str
    url: str | None
    goals: _Goals

    async def create(self) -> AsyncSandbox:
        return await AsyncSandbox.create(url=self.url)


async def run(plan: Plan) -> list[Figure]:
    """In this program, and on a server of its own."""
    here = _Where("embedded", None, _Goals(0.030, None, 0.030))
    figures = await _measure(here, plan)
    with server() as (url, home, _), _in_home(home):
        there = _Where("server", url, _Goals(0.015, 0.020, 0.015))
        return [*figures, *await _measure(there, plan)]


@contextmanager
def _in_home(home: str) -> Generator[None, None, None]:
    """Let clients find the server's key."""
    before = os.environ.get("COVE_HOME")
    os.environ["COVE_HOME"] = home
    try:
        yield
    finally:
        del os.environ["COVE_HOME"]
        if before is not None:
            os.environ["COVE_HOME"] = before


async def _measure(where: _Where, plan: Plan) -> list[Figure]:
    async with _on_tree(where, plan) as (sandbox, base):
        return [
            *await _keep_and_go_back(where, sandbox, base, plan),
            *await _forks(where, sandbox, base, plan),
            *await _changes_and_writers(where, sandbox, base, plan),
        ]


@asynccontextmanager
async def _on_tree(where: _Where, plan: Plan) -> AsyncIterator[tuple[AsyncSandbox, AsyncSnapshot]]:
    """A sandbox that stands on a layer with the tree, and its snapshot."""
    sandbox = await where.create()
    try:
        await _fill(sandbox, "tree", plan.times(_FILES, 2000), plan.times(_BYTES, 100 << 20))
        base = await sandbox.snapshot()
        try:
            yield sandbox, base
        finally:
            await base.delete()
    finally:
        await sandbox.destroy()


async def _fill(sandbox: AsyncSandbox, top: str, files: int, size: int) -> None:
    (await sandbox.exec(["python3", "-c", _FILL, top, str(files), str(size)])).check()


async def _keep_and_go_back(where: _Where, sandbox: AsyncSandbox, base: AsyncSnapshot, plan: Plan) -> list[Figure]:
    """Beside a sandbox with nothing in it: what there is must not matter."""
    small = await where.create()
    try:
        large_cycle, small_cycle = _Cycle(sandbox, base), _Cycle(small, await small.snapshot())
        with _bare_overlay() as mount:
            kept, back, small_kept, small_back, floor = await interleave(
                [large_cycle.keep, large_cycle.go_back, small_cycle.keep, small_cycle.go_back, timed_blocking(mount)],
                repetitions=plan.times(40, 10),
                warm_up=3,
                idle=_IDLE,
            )
        await small_cycle.base.delete()
    finally:
        await small.destroy()
    rows = (
        ("snapshot", kept, small_kept, where.goals.snapshot),
        ("restore", back, small_back, where.goals.restore),
    )
    return [
        Figure(
            name=f"{where.name}: {name}",
            unit=Unit.SECONDS,
            subject=subject,
            floor=floor,
            floor_name="unshare -rm mount -t overlay",
            target=None if limit is None else value_at_most(limit),
            facts={"p10": _milliseconds(subject.p10), "of an empty sandbox": _milliseconds(empty.p50)},
        )
        for name, subject, empty, limit in rows
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


@dataclass(slots=True)
class _Cycle:
    """Snapshots of a sandbox, and ways back to one snapshot: its layers do not become more and more."""

    sandbox: AsyncSandbox
    base: AsyncSnapshot
    kept: list[AsyncSnapshot] = field(default_factory=list)

    async def keep(self) -> float:
        (await self.sandbox.exec("echo $RANDOM > changed")).check()
        began = time.perf_counter()
        self.kept.append(await self.sandbox.snapshot())
        return time.perf_counter() - began

    async def go_back(self) -> float:
        (await self.sandbox.exec("echo $RANDOM > changed")).check()
        seconds = await timed(lambda: self.sandbox.restore(self.base))()
        while self.kept:
            await self.kept.pop().delete()
        return seconds


@contextmanager
def _bare_overlay() -> Generator[Callable[[], object], None, None]:
    """Mount an overlay in namespaces of its own, as anybody can by hand."""
    with tempfile.TemporaryDirectory(dir=_home(), prefix=".bench-") as place:
        for name in ("lower", "upper", "work", "merged"):
            os.mkdir(f"{place}/{name}")
        options = "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
        command = ["unshare", "-rm", "mount", "-t", "overlay", "overlay", "-o", options, "merged"]
        yield lambda: subprocess.run(command, cwd=place, check=True)


def _home() -> Path:
    """Return a directory on the disk that sandboxes are on."""
    home = default_home()
    home.mkdir(parents=True, exist_ok=True)
    return home


async def _forks(where: _Where, sandbox: AsyncSandbox, base: AsyncSnapshot, plan: Plan) -> list[Figure]:
    """Copies beside as many creations at once."""
    return [
        await _fork(where, sandbox, base, 1, where.goals.more, plan.times(30, 8)),
        await _fork(where, sandbox, base, _AT_ONCE, 0.030, plan.times(8, 3)),
    ]


async def _fork(
    where: _Where, sandbox: AsyncSandbox, base: AsyncSnapshot, count: int, more: float, repetitions: int
) -> Figure:
    async def fork() -> float:
        (await sandbox.exec("echo $RANDOM > changed")).check()
        began = time.perf_counter()
        copies = await sandbox.fork(count)
        seconds = time.perf_counter() - began
        await _destroy(copies)
        await sandbox.restore(base)
        return seconds

    async def create() -> float:
        began = time.perf_counter()
        made = await asyncio.gather(*(where.create() for _ in range(count)))
        seconds = time.perf_counter() - began
        await _destroy(made)
        return seconds

    subject, floor = await interleave([fork, create], repetitions=repetitions, warm_up=2, idle=_IDLE)
    return Figure(
        name=f"{where.name}: fork({count})",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name=f"creations at once: {count}",
        target=value_at_most(floor.p50 + more),
    )


async def _destroy(sandboxes: Sequence[AsyncSandbox]) -> None:
    await asyncio.gather(*(each.destroy() for each in sandboxes))


async def _changes_and_writers(where: _Where, sandbox: AsyncSandbox, base: AsyncSnapshot, plan: Plan) -> list[Figure]:
    """25 MB in 1 200 files on top of the tree, beside the same files in a directory of the host."""
    await _fill(sandbox, "tree", _CHANGED, _CHANGED_BYTES)
    with tempfile.TemporaryDirectory(dir=_home(), prefix=".bench-") as place:
        subprocess.run([sys.executable, "-c", _FILL, f"{place}/same", str(_CHANGED), str(_CHANGED_BYTES)], check=True)
        return [
            await _changes(where, sandbox, base, f"{place}/same", plan),
            await _writers(where, sandbox, place, plan),
        ]


async def _changes(where: _Where, sandbox: AsyncSandbox, base: AsyncSnapshot, same: str, plan: Plan) -> Figure:
    async def list_changes() -> None:
        assert len(await sandbox.changes(since=base)) == _CHANGED

    subject, floor = await interleave(
        [timed(list_changes), timed_blocking(partial(walk, same))], repetitions=plan.times(40, 10), warm_up=3
    )
    return Figure(
        name=f"{where.name}: changes of {_CHANGED} files",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name=f"walk and lstat of {_CHANGED} files",
        target=at_most(3.0) if where.url is None else None,
    )


def walk(top: str) -> None:
    """Look at every file once."""
    for place, _, names in os.walk(top):
        for name in names:
            os.lstat(os.path.join(place, name))


async def _writers(where: _Where, sandbox: AsyncSandbox, place: str, plan: Plan) -> Figure:
    """A process holds a file open: what was written has to be copied."""
    process = await sandbox.start_process("exec 3>> held; echo ready; exec sleep infinity")
    await process.wait_for_log("ready")

    async def keep() -> float:
        began = time.perf_counter()
        kept = await sandbox.snapshot()
        seconds = time.perf_counter() - began
        await kept.delete()
        return seconds

    async def copy() -> float:
        seconds = await timed_blocking(lambda: subprocess.run(["cp", "-a", "same", "copy"], cwd=place, check=True))()
        shutil.rmtree(f"{place}/copy")
        return seconds

    subject, floor = await interleave([keep, copy], repetitions=plan.times(20, 5), warm_up=1, idle=_IDLE)
    await process.kill("KILL")
    return Figure(
        name=f"{where.name}: snapshot beside a writer, {_CHANGED_BYTES // 1_000_000} MB changed",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="cp -a of the changes",
        target=at_most(2.0),
    )
