"""A connection to a server that is raw after an upgrade."""

import asyncio

from yarl import URL

from cove.errors import ConnectionLost
from cove.linux.tcp_stream import Streams
from cove.wire.errors import decode_error
from cove.wire.upgrade import END_OF_HEAD, parse_upgrade, render_upgrade

_LIMIT_BYTES = 256 << 10
_MOST_ERROR_BYTES = 64 << 10


async def open_raw(url: URL, socket_path: str | None, authorization: str | None) -> Streams:
    """Raises OSError where nobody answers, and the error that the server sent."""
    streams = await _dial(url, socket_path)
    try:
        await _upgrade(url, authorization, streams)
    except BaseException:
        streams[1].transport.abort()
        raise
    return streams


async def _dial(url: URL, socket_path: str | None) -> Streams:
    if socket_path is not None:
        return await asyncio.open_unix_connection(socket_path, limit=_LIMIT_BYTES)
    is_encrypted = True if url.scheme == "https" else None
    return await asyncio.open_connection(url.host, url.port, ssl=is_encrypted, limit=_LIMIT_BYTES)


async def _upgrade(url: URL, authorization: str | None, streams: Streams) -> None:
    reader, writer = streams
    writer.write(render_upgrade(url.raw_path_qs, url.host_port_subcomponent or "", authorization))
    try:
        status, body_bytes = parse_upgrade(await reader.readuntil(END_OF_HEAD))
        if status != 101:
            raise decode_error(await reader.readexactly(min(body_bytes, _MOST_ERROR_BYTES)), status)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
        raise ConnectionLost(f"the connection to {url.origin()} broke: {error}") from None
