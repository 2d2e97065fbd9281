"""A browser as a server sees it: cookies, headers, streams; nothing of it is drawn."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from support.raw_http import Client, Reply, connect
from support.servers import Server

WEBSOCKET = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec_websocket_version": "13",
    "sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


class ConsoleClient:
    """One browser: it keeps its cookie."""

    def __init__(self, server: Server) -> None:
        self.port = urlsplit(server.url).port or 0
        self.origin = "http://localhost"
        self.cookie = ""
        self.set_cookie = ""

    async def log_in(self, key: str) -> int:
        """Come in; tests of one server are more than may come in a second."""
        while (status := await self.try_to_log_in(key)) == 429:
            await asyncio.sleep(0.1)
        return status

    async def try_to_log_in(self, key: str) -> int:
        body = json.dumps({"key": key}).encode()
        reply = await self.ask("/console/login", method="POST", body=body, origin=self.origin)
        if reply.status == 204:
            self.set_cookie = reply.headers["set-cookie"]
            self.cookie = self.set_cookie.partition(";")[0]
        return reply.status

    async def ask(self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
        async with connect(self.port) as connection:
            return await connection.ask(path, method=method, body=body, **self._with_cookie(headers))

    async def status(self, path: str = "/v1/sandboxes", *, method: str = "GET", **headers: str) -> int:
        """The status of what the console's script asks for."""
        return (await self.ask(path, method=method, body=None, cove_console="1", **headers)).status

    async def session(self) -> dict[str, object]:
        reply = await self.ask("/console/session", cove_console="1")
        found: dict[str, object] = json.loads(reply.body)
        return found

    @asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator[Client]:
        """An answer of which only the head was read."""
        named = {"host": "localhost", **self._with_cookie(headers)}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in named.items()]
        async with connect(self.port) as connection:
            connection.send("\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode())
            yield connection

    def _with_cookie(self, headers: dict[str, str]) -> dict[str, str]:
        return {"cookie": self.cookie, **headers} if self.cookie else headers


async def next_event(connection: Client) -> tuple[str, dict[str, object]]:
    """The next server-sent event: its name and its data. Heartbeats are passed over."""
    while size := int(await connection.reader.readuntil(b"\r\n"), 16):
        chunk = (await connection.reader.readexactly(size + 2)).decode()
        fields = dict(line.split(": ", 1) for line in chunk.splitlines() if ": " in line)
        if "event" in fields:
            return fields["event"], json.loads(fields["data"])
    raise EOFError
