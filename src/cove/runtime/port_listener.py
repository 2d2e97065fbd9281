"""Expose ports of a sandbox in this program as listening sockets on 127.0.0.1."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from cove.core.exposure import Exposure
from cove.errors import CoveError
from cove.local.tcp_stream import Streams, TcpStream, splice
from cove.model import ExposedPort
from cove.runtime.connection import Connect, open_streams
from cove.tasks import Tasks

_LOOPBACK = "127.0.0.1"

log = logging.getLogger("cove.runtime")


class PortListeners:
    """The listeners of one sandbox. A connection to one is spliced to the port inside, and ends with its listener."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._listeners: dict[Exposure, _Listener] = {}

    async def publish(self, exposures: Iterable[Exposure]) -> None:
        """Listen for those that are new, end those that are gone."""
        wanted = frozenset(exposures)
        for exposure in self._listeners.keys() - wanted:
            await self._listeners.pop(exposure).close()
        for exposure in wanted - self._listeners.keys():
            listener = _Listener(partial(self._open, exposure.port))
            await listener.open()
            self._listeners[exposure] = listener

    async def _open(self, port: int) -> Streams:
        return open_streams(await self._connect(port))

    async def describe(self, exposure: Exposure) -> ExposedPort:
        """The address is all that is needed to connect: the token has no use here."""
        url = f"http://{_LOOPBACK}:{self._listeners[exposure].port}"
        return ExposedPort(port=exposure.port, url=url, path_url=url, token=exposure.token, name=exposure.name)

    async def close(self) -> None:
        """Close all listeners."""
        await self.publish(())


class _Listener:
    """One listening socket and the connections it accepted."""

    def __init__(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        self._connect = connect
        self._background = Tasks(partial(log.error, "a connection to a sandbox's port failed: %r"))
        self.port = 0

    async def open(self) -> None:
        """Listen on any free port."""
        self._server = await asyncio.start_server(self._accept, _LOOPBACK, 0, start_serving=False)
        self.port = int(self._server.sockets[0].getsockname()[1])
        try:
            await self._server.start_serving()
        except BaseException:
            self._server.close()
            raise

    async def close(self) -> None:
        """Stop, and end every connection."""
        self._server.close()
        await self._background.aclose()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._background.start(self._serve((reader, writer)), on_end=writer.close)

    async def _serve(self, accepted: Streams) -> None:
        async def give() -> Streams:
            return accepted

        try:
            async with TcpStream(give) as outside, TcpStream(self._connect) as inside:
                await splice(outside, inside)
        except CoveError:
            return  # nothing listens inside, or the sandbox is gone: the connection is closed, as TCP does
