"""Servers as users start them, so that tests can kill them and look from outside."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cove import AsyncSandbox, SandboxSpec
from cove.model import SandboxStatus
from cove.server.configuration import built_in_defaults, load
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.starter import Starter
from support.leaks import KEYS, control_groups, process_table
from support.programs import places, wait_until_gone

# That of a server which was told nothing.
CONFIGURATION = load(None, {}, built_in_defaults(Path(tempfile.gettempdir())))

_MAIN = "from cove.cli import main; main()"


@dataclass
class Server:
    """A running `cove serve` and what a gateway worker would use of its state directory."""

    process: "subprocess.Popen[str]"
    home: Path
    url: str
    key: str
    said: str = ""

    def __post_init__(self) -> None:
        self.directory = Directory(self.home)
        self.starter = Starter(self.home, CONFIGURATION)

    async def create(self, id: str | None = None, **fields: object) -> AsyncSandbox:
        return await AsyncSandbox.create(
            id=id,
            url=self.url,
            api_key=self.key,
            **fields,  # type: ignore[arg-type]
        )

    async def connect(self, id: str) -> AsyncSandbox:
        return await AsyncSandbox.connect(id, url=self.url, api_key=self.key)

    async def record(self, id: str) -> Record:
        found = await asyncio.to_thread(self.directory.find, id)
        assert found is not None
        return found

    async def status(self, id: str) -> SandboxStatus:
        return await asyncio.to_thread(self.directory.status, await self.record(id))

    async def runtime(self, id: str) -> int:
        """The pid of the sandbox's runtime."""
        holder = await asyncio.to_thread(self.directory.holder, (await self.record(id)).key)
        assert holder is not None
        return holder[0]

    def children(self) -> dict[int, str]:
        """The zygote and the workers."""
        below = [pid for pid, (_, parent) in process_table().items() if parent == self.process.pid]
        names = {pid: name_of(pid) for pid in below}
        return {pid: name[5:] for pid, name in names.items() if name in ("cove-zygote", "cove-worker")}

    def zygote(self) -> int:
        (pid,) = [pid for pid, role in self.children().items() if role == "zygote"]
        return pid

    def runtimes(self) -> list[int]:
        """All that the zygote has forked and that has not ended."""
        zygote = self.zygote()
        return [pid for pid, (_, parent) in process_table().items() if parent == zygote]

    def kill_all(self) -> None:
        """SIGKILL for the server, its workers and its zygote at once; the runtimes are not touched."""
        pids = [self.process.pid, *self.children()]
        for pid in pids:
            os.kill(pid, 9)
        self.process.wait()
        assert wait_until_gone(pids) == []


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextmanager
def serving(home: Path, *options: str, before: str = "") -> Iterator[Server]:
    """A server on that state directory and on free ports, after some code; at the end it is told to stop."""
    KEYS.watch(home)
    process = subprocess.Popen(
        [sys.executable, "-c", before + _MAIN, "serve", "--port", "0", "--workers", "2", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COVE_HOME": str(home)},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://[\w.\[\]:-]+:\d+", line)
        assert found is not None, line
        key = (home / "key").read_text().strip() if "key is in" in line else ""
        said = line if line.startswith("{") else process.stdout.readline()
        yield Server(process, home, found[0], key, said)
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


async def eventually(is_true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for what other processes do; there is nothing else to wait by."""
    until = time.monotonic() + seconds
    while not await asyncio.to_thread(is_true):
        assert time.monotonic() < until, "it did not come true"
        await asyncio.sleep(0.01)


def left_behind(home: Path) -> list[str]:
    """Whatever of sandboxes there is in a state directory and in the control groups."""
    keys = places(home)
    return [
        *keys,
        *(str(path) for name in ("ids", "users") for path in (home / name).iterdir()),
        *(str(path) for name in ("warm/*/*", "claimed/*", "freed-*") for path in (home / "server").glob(name)),
        *(group for group in control_groups() if os.path.basename(group) in keys),
    ]


DEFAULT = CONFIGURATION.admit(SandboxSpec())
