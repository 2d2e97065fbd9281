"""The live list of the console: all sandboxes of an owner and what they use, then what changes.

Theory of operation. All viewers of a worker share one sample of an owner's sandboxes. A sample is taken when a viewer
wants a newer one than it has seen, and not before the last is two seconds old, or ten times as old as it took: however
many sandboxes there are, looking at them costs a tenth of a processor at most. It is read from records and control
groups, so that nothing is asked, woken or kept awake. A row that is equal to the one before is the same object; a
viewer that was slow gets the difference between what it has and what there is, and never what was in between.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from datetime import datetime
from types import TracebackType
from typing import Final

import msgspec

from cove.errors import MethodNotAllowed
from cove.http import Answer, Handler, Ping, Request, Response
from cove.linux.cgroup import Hierarchies
from cove.local.threads import in_thread
from cove.model import SandboxStatus, Usage
from cove.model.spec import HOST_IMAGE
from cove.server.dispatch import PING_SECONDS
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.metrics import measure_running
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.starter import Starter
from cove.tasks import Tasks, shared
from cove.wire.frames import PING_COMMENT, SERVER_SENT_EVENTS

EVENTS_PATH: Final = "/v1/console/events"
ROWS_PATH: Final = "/v1/console/sandboxes"
LEAST_SECONDS: Final = 2.0
_SHARE: Final = 10.0
_MEMORY_STEP: Final = 1 << 16  # less than this is not worth a line on the wire
_HAS_RUNTIME: Final = (SandboxStatus.RUNNING, SandboxStatus.PAUSED)
_EVENTS: Final = ((b"content-type", SERVER_SENT_EVENTS.encode()), (b"cache-control", b"no-cache"))
_JSON: Final = ((b"content-type", b"application/json"),)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox in the list; `cpus` is how many processors it used since the last sample."""

    id: str
    owner: str | None
    status: SandboxStatus
    labels: dict[str, str]
    created_at: datetime
    image: str | None
    node: str | None
    ends_at: datetime | None
    memory_limit: int | None
    cpu_limit: float | None
    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None
    network_sent_bytes: int | None = None
    network_received_bytes: int | None = None
    network_refused: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Return what tells it from all others."""
        return self.owner or "", self.id


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that is not in the list any more."""

    id: str
    owner: str | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole list, and how far samples are apart at least."""

    at: float
    interval: float
    sandboxes: list[Row]


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between the list and what the viewer has been told."""

    at: float
    changed: list[Row]
    removed: list[Removed]


Rows = dict[tuple[str, str], Row]
# What the other nodes of a cluster answer, for a tenant.
Elsewhere = Callable[[str, str], Awaitable[list[bytes]]]


class Sampler:
    """Takes samples of an owner's sandboxes when somebody wants them."""

    def __init__(self, directory: Directory, starter: Starter, elsewhere: Elsewhere | None = None) -> None:
        self.rows: Rows = {}
        self.at = 0.0
        self.number = 0
        self._directory = directory
        self._starter = starter
        self._elsewhere = elsewhere
        self._due = 0.0
        self._used: dict[str, tuple[float, float]] = {}
        self._sampling: asyncio.Task[None] | None = None
        self._tasks = Tasks(lambda error: None)  # whoever waits hears of it

    async def aclose(self) -> None:
        """End the sample that is being taken."""
        await self._tasks.aclose()

    async def after(self, seen: int) -> int:
        """Wait for a sample after that one, and return its number."""
        while self.number <= seen:
            if self._sampling is None or self._sampling.done():
                self._sampling = self._tasks.start(self._sample())
            await shared(self._sampling)
        return self.number

    async def latest(self) -> int:
        """Return the number of the latest sample, and wait for one where it is time for another."""
        return self.number if self.number and time.monotonic() < self._due else await self.after(self.number)

    async def _sample(self) -> None:
        await asyncio.sleep(self._due - time.monotonic())
        began = time.monotonic()
        try:
            found = await in_thread(self._look, await self._starter.hierarchies())
            if self._elsewhere is not None:
                answers = await self._elsewhere(ROWS_PATH, self._directory.tenant)
                found += [row for answer in answers for row in msgspec.json.decode(answer, type=list[Row])]
        finally:
            self._due = time.monotonic() + max(LEAST_SECONDS, _SHARE * (time.monotonic() - began))
        self.rows = {row.key: _same(self.rows.get(row.key), row) for row in found}
        self.at = time.time()
        self.number += 1

    def _look(self, hierarchies: Hierarchies) -> list[Row]:
        """Look at all of them. Blocks."""
        used, self._used = self._used, {}
        return [self._row(record, hierarchies, used) for record in self._directory.list()]

    def _row(self, record: Record, hierarchies: Hierarchies, used: dict[str, tuple[float, float]]) -> Row:
        info = self._directory.info(record)
        usage = measure_running(self._directory, hierarchies, record) if info.status in _HAS_RUNTIME else None
        usage = usage or Usage()
        limits = info.spec.limits
        return Row(
            id=info.id,
            owner=info.owner,
            status=info.status,
            labels=info.spec.labels,
            created_at=info.created_at,
            image=None if info.spec.image == HOST_IMAGE else info.spec.image,
            node=info.node,
            ends_at=info.ends_at,
            memory_limit=limits.memory,
            cpu_limit=limits.cpus,
            memory_bytes=None if usage.memory_bytes is None else usage.memory_bytes // _MEMORY_STEP * _MEMORY_STEP,
            cpus=self._cpus(record.key, usage.cpu_seconds, used.get(record.key)),
            processes=usage.pids,
            network_sent_bytes=usage.network_sent_bytes,
            network_received_bytes=usage.network_received_bytes,
            network_refused=usage.network_refused,
        )

    def _cpus(self, key: str, seconds: float | None, before: tuple[float, float] | None) -> float | None:
        if seconds is None:
            return None
        now = time.monotonic()
        self._used[key] = now, seconds
        if before is None or now <= before[0]:
            return None
        return round(max(0.0, seconds - before[1]) / (now - before[0]), 2)


def _same(before: Row | None, row: Row) -> Row:
    return before if before is not None and before == row else row


class LiveGateway:
    """Answers the live list of one owner."""

    def __init__(
        self,
        directory: Directory,
        starter: Starter,
        authenticator: Authenticator,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._sampler = Sampler(directory, starter, elsewhere)
        self._here = self._sampler if elsewhere is None else Sampler(directory, starter)

    async def __aenter__(self) -> "LiveGateway":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._sampler.aclose()
        await self._here.aclose()

    def before(self, handler: Handler) -> Handler:
        """Answer the list's paths, and leave all others to that handler."""

        def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
            if request.path not in (EVENTS_PATH, ROWS_PATH):
                return handler(request)
            refusal = self._authenticator.refuse(request)
            return self._answer(request) if refusal is None else refusal

        return handle

    async def _answer(self, request: Request) -> Answer:
        if request.method != "GET":
            raise MethodNotAllowed(f"{request.path} takes GET, not {request.method}", allowed=["GET"])
        if request.path == ROWS_PATH:
            await self._here.latest()
            return Response(200, _JSON, msgspec.json.encode(list(self._here.rows.values())))
        return Response(200, _EVENTS, self._tell(), Ping(PING_COMMENT, PING_SECONDS))

    async def _tell(self) -> AsyncGenerator[bytes, None]:
        sampler = self._sampler
        number = await sampler.latest()
        told = sampler.rows
        snapshot = Snapshot(at=sampler.at, interval=LEAST_SECONDS, sandboxes=list(told.values()))
        yield _event(b"snapshot", snapshot)
        while True:
            number = await sampler.after(number)
            changes, told = compare(told, sampler.rows, sampler.at), sampler.rows
            if changes.changed or changes.removed:
                yield _event(b"changes", changes)


def compare(before: Rows, after: Rows, at: float) -> Changes:
    """Return the difference: rows that are equal are the same object."""
    changed = [row for key, row in after.items() if before.get(key) is not row]
    removed = [Removed(id=row.id, owner=row.owner) for key, row in before.items() if key not in after]
    return Changes(at=at, changed=changed, removed=removed)


def _event(name: bytes, value: msgspec.Struct) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(value))
