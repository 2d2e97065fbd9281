"""The life of a sandbox as E2B's protocol has it: an end that moves, and a pause in its place where that was chosen."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from cove.errors import CoveError, NotFound, SandboxPaused, SandboxStopped
from cove.http import Request, Response
from cove.local.threads import in_thread
from cove.model import SandboxStatus
from cove.runtime.sandbox import Sandbox
from cove.server.e2b.filesystem import timestamp
from cove.server.e2b.protocol import MOST_BODY_BYTES, answer
from cove.server.e2b.record import E2bRecord, read_record, write_record
from cove.tasks import Tasks
from cove.wire.coding import decode_json
from cove.wire.requests.network import SetNetwork

DEFAULT_TIMEOUT: Final = 300.0
_LEAST_SECONDS: Final = 0.001
_MEASURE_SECONDS: Final = 0.1
_MOST_SECONDS: Final = 10 * 365 * 86400.0

log = logging.getLogger("cove.server")


class Timeout(msgspec.Struct):
    """The seconds from now on; negative ones count as none."""

    timeout: float | None = None


class Begin(msgspec.Struct, kw_only=True):
    """A new sandbox: what its maker chose, and how long one lives that has no end."""

    record: E2bRecord
    endless: float | None


class Pause(msgspec.Struct, kw_only=True):
    """Keep the memory, or the files alone; `endless` is how long one lives that has no end."""

    memory: bool = True
    endless: float | None = None


class Connected(msgspec.Struct, kw_only=True):
    """The answer to `connect`: whether the sandbox was paused."""

    was_paused: bool


class E2bLife:
    """The ends of one sandbox. A sandbox that was made otherwise has no record, and ends as Cove says."""

    def __init__(self, sandbox: Sandbox, place: Path, tasks: Tasks) -> None:
        self._sandbox = sandbox
        self._place = place
        self._tasks = tasks
        self._record: E2bRecord | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._routes: Mapping[str, Callable[[bytes], Awaitable[object]]] = {
            "begin": self._begin,
            "timeout": self._set_timeout,
            "connect": self._connect,
            "pause": self._pause,
            "metrics": lambda _: self.measure(),
            "network": self._set_network,
            "wake": lambda _: self._answer_wake(),
        }

    async def open(self) -> None:
        """Read what was chosen: the runtime may be another one than that of the creation."""
        self._record = await in_thread(read_record, self._place)
        self._schedule()

    def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def answer(self, request: Request, name: str) -> Response:
        """Answer the gateway; errors are raised as they are."""
        route = self._routes.get(name)
        if route is None:
            raise NotFound(f"there is no {name}")
        return answer(await route(await request.read(MOST_BODY_BYTES)))

    async def wake(self) -> None:
        """Refuse a sandbox that is paused, or begin its time anew where any request wakes it."""
        status = self._sandbox.life.status
        if status in (SandboxStatus.STOPPED, SandboxStatus.LOST):
            raise SandboxStopped(f"sandbox {self._sandbox.id} does not run")
        if status is not SandboxStatus.PAUSED:
            return
        if self._record is None or not self._record.auto_resume:
            raise SandboxPaused(f"sandbox {self._sandbox.id} is paused")
        await self._sandbox.resume()
        await self._end_in(self._record.timeout)

    async def _answer_wake(self) -> object:
        await self.wake()
        return {}

    async def _begin(self, body: bytes) -> object:
        wanted = decode_json(body, Begin)
        await self._write(wanted.record)
        if wanted.record.auto_pause:
            await self._sandbox.set_lifetime(wanted.endless)
        await self._end_in(wanted.record.timeout)
        return {}

    async def _set_timeout(self, body: bytes) -> object:
        await self._end_in(decode_json(body, Timeout).timeout or 0.0)
        return {}

    async def _connect(self, body: bytes) -> object:
        """Resume; the end of one that runs is only ever moved later."""
        wanted = decode_json(body, Timeout)
        seconds = DEFAULT_TIMEOUT if wanted.timeout is None else wanted.timeout
        was_paused = self._sandbox.life.status is not SandboxStatus.RUNNING
        await self._sandbox.start()
        end = self.ends_at
        if was_paused or (end is not None and end < datetime.now(UTC) + timedelta(seconds=min(seconds, _MOST_SECONDS))):
            await self._end_in(seconds)
        return Connected(was_paused=was_paused)

    async def _pause(self, body: bytes) -> object:
        wanted = decode_json(body, Pause)
        await self._rest(keeps_memory=wanted.memory, endless=wanted.endless)
        return {}

    async def _rest(self, *, keeps_memory: bool, endless: float | None) -> None:
        if self._sandbox.life.status is not SandboxStatus.RUNNING:
            raise SandboxPaused(f"sandbox {self._sandbox.id} is paused already")
        self.close()
        if self._record is not None:
            await self._write(replace(self._record, pauses_at=None))
        wakes = self._record is not None and self._record.auto_resume
        await self._sandbox.set_lifetime(endless)
        if keeps_memory:
            await self._sandbox.pause(wake=wakes)
        else:
            await self._sandbox.life.stop(wakes=wakes)

    async def _set_network(self, body: bytes) -> object:
        await self._sandbox.set_network(decode_json(body, SetNetwork).network)
        return {}

    @property
    def ends_at(self) -> datetime | None:
        """The time when it is destroyed, or paused."""
        if self._record is not None and self._record.auto_pause:
            return self._record.pauses_at
        return self._sandbox.ends_at

    async def _end_in(self, seconds: float) -> None:
        seconds = min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS)
        if self._record is None or not self._record.auto_pause:
            await self._sandbox.set_lifetime(seconds)
            return
        await self._write(replace(self._record, pauses_at=datetime.now(UTC) + timedelta(seconds=seconds)))
        self._schedule()

    def _schedule(self) -> None:
        self.close()
        if self._record is not None and self._record.pauses_at is not None:
            left = (self._record.pauses_at - datetime.now(UTC)).total_seconds()
            self._timer = asyncio.get_running_loop().call_later(max(left, 0), self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._tasks.start(self._rest_at_end())

    async def _rest_at_end(self) -> None:
        assert self._record is not None
        try:
            await self._rest(keeps_memory=self._record.keeps_memory, endless=self._sandbox.spec.lifetime)
        except CoveError as error:
            log.warning("a sandbox cannot be paused at its end: %s", error)

    async def _write(self, record: E2bRecord) -> None:
        await in_thread(write_record, self._place, record)
        self._record = record

    async def measure(self) -> dict[str, object]:
        """Measure the sandbox: the share of its cores from two looks at what they have done."""
        first = await self._sandbox.usage()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(_MEASURE_SECONDS)
        usage = await self._sandbox.usage()
        seconds = asyncio.get_running_loop().time() - began
        limits = self._sandbox.spec.limits
        cores = cpu_count(limits.cpus)
        spent = (usage.cpu_seconds or 0.0) - (first.cpu_seconds or 0.0)
        now = datetime.now(UTC)
        return {
            "timestamp": timestamp(now),
            "timestampUnix": int(now.timestamp()),
            "cpuCount": cores,
            "cpuUsedPct": round(max(spent, 0.0) / seconds / cores * 100, 2),
            "memUsed": usage.memory_bytes or 0,
            "memTotal": limits.memory or machine_memory(),
            "memCache": 0,
            "diskUsed": usage.disk_bytes or 0,
            "diskTotal": limits.disk or 0,
        }


def cpu_count(limit: float | None) -> int:
    """Return the cores that a sandbox may use, as a whole number."""
    return max(1, round(limit if limit is not None else os.cpu_count() or 1))


def machine_memory() -> int:
    """Return the bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
