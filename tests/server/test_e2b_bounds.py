"""Watchers and lists of E2B's protocol are bounded, and watchers of clients that are gone make room."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cove import AsyncSandbox, FileInfo
from cove.runtime.sandbox import Sandbox
from cove.server.e2b import filesystem, watch
from cove.server.e2b.filesystem import FilesystemService
from cove.server.e2b.rpc import Caller, Message
from cove.server.e2b.watch import WatchService
from cove.tasks import Tasks
from cove.wire.connect import Code, ConnectError

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

CALLER = Caller(None, None, 90.0)


class Client:
    def __init__(self, service: WatchService) -> None:
        self._service = service

    async def call(self, name: str, **fields: object) -> dict[str, object]:
        return dict(await self._service.calls[name](json.dumps(fields).encode(), CALLER))

    async def create(self) -> object:
        return (await self.call("CreateWatcher", path="/workspace"))["watcherId"]


@asynccontextmanager
async def watching() -> AsyncIterator[Client]:
    async with AsyncSandbox.create() as sandbox, Tasks() as tasks:
        assert isinstance(sandbox, Sandbox)
        yield Client(WatchService(sandbox, FilesystemService(sandbox), tasks))


async def test_a_watcher_that_nobody_asks_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_MOST_WATCHERS", 2)
    async with watching() as client:
        first, second = await client.create(), await client.create()
        with pytest.raises(ConnectError) as refused:
            await client.create()
        assert refused.value.code is Code.RESOURCE_EXHAUSTED
        monkeypatch.setattr(watch, "_UNASKED_SECONDS", 0.0)
        third = await client.create()
        for gone in (first, second):
            with pytest.raises(ConnectError):
                await client.call("GetWatcherEvents", watcherId=gone)
        assert await client.call("GetWatcherEvents", watcherId=third) == {"events": []}


async def test_events_that_nobody_fetches_are_kept_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_MOST_EVENT_BYTES", 4000)

    async def events() -> AsyncGenerator[Message, None]:
        for number in range(9):
            yield {"filesystem": {"name": f"{number:0200}", "type": "EVENT_TYPE_CREATE"}}

    watcher = watch._Watcher(0.0)
    await watch._collect(watcher, events())
    assert len(watcher.events) == 4
    assert watcher.failure is not None
    assert watcher.failure.code is Code.INTERNAL


async def test_a_list_of_too_many_entries_is_refused_before_all_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_MOST_ENTRIES", 10)
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        (await sandbox.exec("mkdir -p a b c d e; touch {a,b,c,d,e}/{1,2,3}")).check()
        read: list[str] = []
        look = sandbox.files.list

        async def count(path: str, *, user: str | None) -> list[FileInfo]:
            read.append(path)
            return await look(path, user=user)

        monkeypatch.setattr(sandbox.files, "list", count)
        call = FilesystemService(sandbox).calls["ListDir"]
        with pytest.raises(ConnectError) as refused:
            await call(b'{"path": "/workspace", "depth": 2}', CALLER)
        assert refused.value.code is Code.RESOURCE_EXHAUSTED
        assert read == ["/workspace", "/workspace/a", "/workspace/b"]
        entries = (await call(b'{"path": "/workspace"}', CALLER))["entries"]
        assert isinstance(entries, list)
        assert len(entries) == 5
