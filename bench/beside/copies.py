"""A prepared tree of 200 MB in 5 000 files, kept, copied and taken back: Cove beside `cp -a` and `git worktree`.

Between two figures a few files change, as they do under an agent. A copy counts when a command has run in it.
"""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

from bench.beside.turns import Found, in_turn, print_found
from cove import AsyncSandbox, AsyncSnapshot

_FILES, _BYTES, _CHANGED = 5_000, 200_000_000, 20
_COPIES = 4
_TIMES = 3
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
_CHANGE = f"for number in {{1..{_CHANGED}}}; do echo $RANDOM > tree/d0/f$number; done"
_USE = "cat tree/d1/f100 | wc -c; echo more > tree/d1/f101"


class Way(Protocol):
    """A prepared tree, and how it is kept, copied and taken back."""

    async def change(self) -> None: ...
    async def keep(self) -> None: ...
    async def back(self) -> None: ...
    async def copy(self, count: int) -> None: ...
    async def tidy(self) -> None: ...


class Cove:
    """A sandbox with the tree in it."""

    def __init__(self, sandbox: AsyncSandbox, base: AsyncSnapshot) -> None:
        self._sandbox = sandbox
        self._base = base
        self._kept: list[AsyncSnapshot] = []
        self._copies: list[AsyncSandbox] = []

    async def change(self) -> None:
        (await self._sandbox.exec(_CHANGE)).check()

    async def keep(self) -> None:
        self._kept.append(await self._sandbox.snapshot())

    async def back(self) -> None:
        await self._sandbox.restore(self._base)

    async def copy(self, count: int) -> None:
        self._copies = await self._sandbox.fork(count)
        await asyncio.gather(*(_used(copy) for copy in self._copies))

    async def tidy(self) -> None:
        await asyncio.gather(*(copy.destroy() for copy in self._copies))
        await self._sandbox.restore(self._base)
        for snapshot in self._kept:
            await snapshot.delete()
        self._copies, self._kept = [], []


async def _used(copy: AsyncSandbox) -> None:
    (await copy.exec(_USE)).check()


class Directory:
    """A directory with the tree in it, on the same disk, and commands on the host; one way to copy it."""

    keeping: str
    going_back: str
    copying: str
    tidying: str

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def change(self) -> None:
        await self._run(_CHANGE, self._directory / "base")

    async def keep(self) -> None:
        await self._run(self.keeping)

    async def back(self) -> None:
        await self._run(self.going_back)

    async def copy(self, count: int) -> None:
        await asyncio.gather(*(self._copy(number) for number in range(count)))

    async def tidy(self) -> None:
        await self._run(self.tidying)

    async def _copy(self, number: int) -> None:
        await self._run(self.copying.format(number=number))
        await self._run(_USE, self._directory / f"copy-{number}")

    async def _run(self, command: str, directory: Path | None = None) -> None:
        words = ["bash", "-ec", command]
        where = directory or self._directory
        process = await asyncio.create_subprocess_exec(*words, cwd=where, stdout=subprocess.DEVNULL)
        assert await process.wait() == 0, command


class Copied(Directory):
    """`cp -a`: what a container's writable layer costs where there is no layer."""

    keeping = "cp -a base kept"
    going_back = "rm -rf base && cp -a origin base"
    copying = "cp -a base copy-{number}"
    tidying = "rm -rf kept copy-*"


class Worktree(Directory):
    """git: a commit keeps, a worktree copies. What it ignores, and the rights of files, it does not keep."""

    keeping = "cd base && git add -A && git commit -q -m kept"
    going_back = "cd base && git reset -q --hard origin && git clean -q -fd"
    copying = "git -C base worktree add -q --detach ../copy-{number}"
    tidying = "rm -rf copy-* && cd base && git worktree prune && git reset -q --hard origin && git clean -q -fd"


async def measure(directory: Path) -> Found:
    """All of them in turn."""
    found: Found = {}
    sandbox = await AsyncSandbox.create()
    try:
        await _fill_sandbox(sandbox)
        base = await sandbox.snapshot()
        ways: dict[str, Way] = {
            "Cove": Cove(sandbox, base),
            "cp -a": Copied(_prepared(directory / "copied")),
            "git worktree": Worktree(_repository(directory / "worktree")),
        }
        await _compare(found, "keep", ways, lambda way: way.keep)
        await _compare(found, "back", ways, lambda way: way.back)
        await _compare(found, "copy", ways, lambda way: lambda: way.copy(1))
        await _compare(found, "copies", ways, lambda way: lambda: way.copy(_COPIES))
    finally:
        await sandbox.destroy()
    return found


async def _compare(
    found: Found, figure: str, ways: Mapping[str, Way], act: Callable[[Way], Callable[[], Awaitable[object]]]
) -> None:
    """The changes before, and the tidying after, are not timed."""
    for _ in range(_TIMES):
        for way in ways.values():
            await way.change()
        await in_turn(found, figure, {name: act(way) for name, way in ways.items()}, repetitions=1, warm_up=0)
        for way in ways.values():
            await way.tidy()


async def _fill_sandbox(sandbox: AsyncSandbox) -> None:
    (await sandbox.exec(["python3", "-c", _FILL, "tree", str(_FILES), str(_BYTES)])).check()


def _prepared(directory: Path) -> Path:
    """The tree twice: one to work in, one to go back to."""
    directory.mkdir()
    subprocess.run(["python3", "-c", _FILL, "origin/tree", str(_FILES), str(_BYTES)], cwd=directory, check=True)
    shutil.copytree(directory / "origin", directory / "base")
    return directory


def _repository(directory: Path) -> Path:
    base = directory / "base"
    base.mkdir(parents=True)
    subprocess.run(["python3", "-c", _FILL, "tree", str(_FILES), str(_BYTES)], cwd=base, check=True)
    commands = (
        "git init -q",
        "git config user.name bench",
        "git config user.email bench@example.invalid",
        "git config gc.auto 0",
        "git add -A",
        "git commit -q -m origin",
        "git tag origin",
    )
    for command in commands:
        subprocess.run(command.split(), cwd=base, check=True)
    return directory


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cove-bench-") as place:
        print_found(asyncio.run(measure(Path(place))))
