"""Watch directories: as a stream, or as watchers whose events are fetched from time to time."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final

from cove.core.identifier import new_identifier
from cove.errors import CoveError, FileNotFound, NotDirectory
from cove.model import FileEvent, FileEventKind
from cove.runtime.sandbox import Sandbox
from cove.server.e2b.filesystem import FilesystemService
from cove.server.e2b.rpc import Caller, Events, Message, Stream, Unary, Wire, decode, until
from cove.tasks import Tasks
from cove.wire.connect import Code, ConnectError

_MOST_EVENTS: Final = 10_000
_MOST_EVENT_BYTES: Final = 8 << 20
_EVENT_BYTES: Final = 512
_MOST_WATCHERS: Final = 64
_UNASKED_SECONDS: Final = 600.0
_TYPES: Final[Mapping[FileEventKind, str]] = {
    FileEventKind.CREATE: "EVENT_TYPE_CREATE",
    FileEventKind.MODIFY: "EVENT_TYPE_WRITE",
    FileEventKind.DELETE: "EVENT_TYPE_REMOVE",
}
_LOST: Final = "there were more changes at once than could be told: look at the files again"


class _Watch(Wire):
    path: str = ""
    recursive: bool = False
    include_entry: bool = False


class _Chosen(Wire):
    watcher_id: str = ""


@dataclass(slots=True, eq=False)
class _Watcher:
    """Events that nobody has fetched yet, and about their bytes; `failure` is why there will be no more."""

    asked_at: float
    events: deque[Message] = field(default_factory=deque)
    size: int = 0
    failure: ConnectError | None = None
    task: asyncio.Task[None] | None = None


class WatchService:
    """The watchers of one sandbox."""

    def __init__(self, sandbox: Sandbox, files: FilesystemService, tasks: Tasks) -> None:
        self._sandbox = sandbox
        self._files = files
        self._tasks = tasks
        self._watchers: dict[str, _Watcher] = {}
        self.streams: Mapping[str, Stream] = {"WatchDir": self._watch_dir}
        self.calls: Mapping[str, Unary] = {
            "CreateWatcher": self._create,
            "GetWatcherEvents": self._get_events,
            "RemoveWatcher": self._remove,
        }

    async def _watch_dir(self, body: bytes, caller: Caller) -> Events:
        async with aclosing(until(self._watch(decode(body, _Watch), caller), caller.timeout)) as events:
            async for event in events:
                yield event

    async def _watch(self, wanted: _Watch, caller: Caller) -> AsyncGenerator[Message, None]:
        """Stream `start`, then every event."""
        path = await self._files.path(wanted.path, caller)
        found = await self._sandbox.files.stat_owned(path, follow=True, user=caller.user)
        if not found.is_directory:
            raise ConnectError(Code.INVALID_ARGUMENT, f"{path} is not a directory")
        watching = self._sandbox.files.watch(path, recursive=wanted.recursive, exclude=(), user=caller.user)
        async with aclosing(watching) as events:
            async for event in events:
                if event.kind is FileEventKind.WATCHING:
                    yield {"start": {}}
                    continue
                for name, kind in _told(event, path):
                    yield {"filesystem": await self._describe(name, kind, path, wanted, caller)}

    async def _describe(self, name: str, kind: str, top: str, wanted: _Watch, caller: Caller) -> Message:
        described: dict[str, object] = {"name": name, "type": kind}
        if wanted.include_entry and kind not in ("EVENT_TYPE_REMOVE", "EVENT_TYPE_RENAME"):
            with suppress(FileNotFound, NotDirectory):  # it is gone again
                described["entry"] = await self._files.describe(f"{top.rstrip('/')}/{name}", caller)
        return described

    async def _create(self, body: bytes, caller: Caller) -> Message:
        await self._forget_unasked()
        if len(self._watchers) >= _MOST_WATCHERS:
            raise ConnectError(Code.RESOURCE_EXHAUSTED, f"there are {_MOST_WATCHERS} watchers already: remove some")
        events = self._watch(decode(body, _Watch), caller)
        try:
            await anext(events)
        except BaseException:
            await events.aclose()
            raise
        id, watcher = new_identifier(), _Watcher(time.monotonic())
        self._watchers[id] = watcher
        watcher.task = self._tasks.start(_collect(watcher, events))
        return {"watcherId": id}

    async def _get_events(self, body: bytes, caller: Caller) -> Message:
        watcher = self._find(decode(body, _Chosen).watcher_id)
        if watcher.failure is not None and not watcher.events:
            raise watcher.failure
        events = [*watcher.events]
        watcher.events.clear()
        watcher.size, watcher.asked_at = 0, time.monotonic()
        return {"events": events}

    async def _remove(self, body: bytes, caller: Caller) -> Message:
        id = decode(body, _Chosen).watcher_id
        await self._end(id, self._find(id))
        return {}

    async def _end(self, id: str, watcher: _Watcher) -> None:
        del self._watchers[id]
        if watcher.task is not None:
            watcher.task.cancel()
            await asyncio.wait([watcher.task])

    async def _forget_unasked(self) -> None:
        """Make room where it is needed: the client of a watcher that nobody has asked for long is gone."""
        if len(self._watchers) < _MOST_WATCHERS:
            return
        until = time.monotonic() - _UNASKED_SECONDS
        for id, watcher in [*self._watchers.items()]:
            if watcher.asked_at < until and id in self._watchers:
                await self._end(id, watcher)

    def _find(self, id: str) -> _Watcher:
        watcher = self._watchers.get(id)
        if watcher is None:
            raise ConnectError(Code.NOT_FOUND, f"there is no watcher {id}")
        return watcher


async def _collect(watcher: _Watcher, events: AsyncGenerator[Message, None]) -> None:
    async with aclosing(events):
        try:
            async for event in events:
                message = event["filesystem"]
                assert isinstance(message, dict)
                watcher.size += _EVENT_BYTES + 2 * len(message["name"])
                if len(watcher.events) >= _MOST_EVENTS or watcher.size > _MOST_EVENT_BYTES:
                    raise ConnectError(Code.INTERNAL, _LOST)
                watcher.events.append(message)
            watcher.failure = ConnectError(Code.NOT_FOUND, "the directory is not there any more")
        except ConnectError as error:
            watcher.failure = error
        except CoveError as error:
            watcher.failure = ConnectError.of(error)


def _told(event: FileEvent, top: str) -> list[tuple[str, str]]:
    """Return the events of the protocol for one of ours; ConnectError when some were lost."""
    if event.kind is FileEventKind.RESYNC:
        raise ConnectError(Code.INTERNAL, _LOST)
    name = _below(event.path, top)
    if event.kind is FileEventKind.MOVE:
        old = [] if event.old_path is None else [(_below(event.old_path, top), "EVENT_TYPE_RENAME")]
        return [*old, (name, "EVENT_TYPE_CREATE")]
    return [(name, _TYPES[event.kind])]


def _below(path: str, top: str) -> str:
    return path.removeprefix(top.rstrip("/")).lstrip("/")
