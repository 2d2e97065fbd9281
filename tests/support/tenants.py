"""Tenants of a server or of a cluster, and that what is theirs is hidden from others."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from cove import AsyncApiKey, AsyncSandbox, AsyncVolume
from cove.wire.operation import AnyOperation, Caller
from cove.wire.operations import OPERATIONS
from support.raw_http import connect
from support.servers import Server


class Tenant:
    """What a tenant does with its key."""

    def __init__(self, server: Server, key: str) -> None:
        self.server, self.key = server, key

    async def create(self, id: str | None = None, **fields: object) -> AsyncSandbox:
        return await AsyncSandbox.create(id=id, url=self.server.url, api_key=self.key, **fields)  # type: ignore[arg-type]

    async def connect(self, id: str) -> AsyncSandbox:
        return await AsyncSandbox.connect(id, url=self.server.url, api_key=self.key)

    async def ids(self) -> list[str]:
        return [info.id for info in await AsyncSandbox.list(url=self.server.url, api_key=self.key)]

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, object]]:
        """The status and the JSON of an answer."""
        parts = urlsplit(self.server.url)
        assert parts.port is not None
        async with connect(parts.port) as connection:
            named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
            head = (
                f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {self.key}\r\n{named}"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            connection.writer.write(head.encode() + body)
            answer = await asyncio.wait_for(connection.reader.read(), 20)
        status, _, content = int(answer[9:12]), *answer.partition(b"\r\n\r\n")[1:]
        return status, json.loads(content) if content.startswith(b"{") else {}


async def tenant(server: Server, name: str, **options: object) -> Tenant:
    made = await AsyncApiKey.create(name, url=server.url, api_key=server.key, **options)  # type: ignore[arg-type]
    return Tenant(server, made.key)


async def check_all_hidden(b: Tenant, own: dict[str, str]) -> None:
    """For every operation, a thing of somebody else's is as one that is not there."""
    for operation in OPERATIONS:
        for path in operation.paths:
            if "{" in path and operation.caller is not Caller.ADMIN:
                await check_hidden(b, operation, path, own)


async def check_hidden(b: Tenant, operation: AnyOperation, path: str, own: dict[str, str]) -> None:
    hidden, missing = path, path
    for name, id in own.items():
        hidden = hidden.replace(f"{{{name}}}", id)
        missing = missing.replace(f"{{{name}}}", "nothing-of-this-name")
    for name in ("session", "process", "terminal", "context", "transaction", "port", "backup"):
        hidden, missing = hidden.replace(f"{{{name}}}", "1"), missing.replace(f"{{{name}}}", "1")
    assert "{" not in hidden, f"{path}: say in this test what its names are"
    body = b"" if operation.has_query else b"{}"
    found, absent = await b.ask(operation.verb, hidden, body), await b.ask(operation.verb, missing, body)
    assert (found[0], found[1].get("code")) == (absent[0], absent[1].get("code")), (operation.name, found, absent)
    if operation.name not in ("destroy_sandbox", "load_image") and found[0] != 204:
        assert found[0] in (400, 404), (operation.name, found)


@asynccontextmanager
async def things(a: Tenant) -> AsyncIterator[dict[str, str]]:
    """One of each kind, all a tenant's."""
    sandbox = await a.create("hidden-sandbox")
    await sandbox.exec("echo kept > f")
    snapshot = await sandbox.snapshot()
    volume = await AsyncVolume.create("hidden-volume", url=a.server.url, api_key=a.key)
    yield {"sandbox": sandbox.id, "snapshot": snapshot.id, "volume": "hidden-volume", "image": "hidden-image"}
    await snapshot.delete()
    await sandbox.destroy()
    await volume.delete()
