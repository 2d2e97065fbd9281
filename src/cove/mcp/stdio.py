"""Serve the protocol on standard input and output: one JSON message on each line, until the client closes its side.

Reading needs no thread, so that a signal ends it at once, and no line grows beyond a budget.
"""

import asyncio
import os
from contextlib import suppress
from typing import Final, TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from cove.errors import ValidationFailed
from cove.mcp.server import make_server
from cove.tasks import Tasks
from cove.tools import Toolset

_MOST_LINE_BYTES: Final = 32 << 20

Incoming: TypeAlias = "SessionMessage | Exception"


async def serve_stdio(toolset: Toolset, stdin: int = 0, stdout: int = 1) -> None:
    """Serve one client on these descriptors. Returns when it has closed its side, or is gone."""
    reader, writer = await _open(os.dup(stdin), os.dup(stdout))
    received, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)
    server = make_server(toolset)
    async with Tasks(lambda _: None) as tasks:
        tasks.start(_read(reader, received))
        writing = tasks.start(_write(sent, writer))
        serving = tasks.start(server.run(incoming, outgoing, server.create_initialization_options()))
        await asyncio.wait([writing, serving], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            outgoing.close()
            await asyncio.wait([writing])
    writer.close()


async def _open(stdin: int, stdout: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Make streams of descriptors, which are theirs from then on."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_MOST_LINE_BYTES)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdin, "rb", 0))
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(stdout, "wb", 0)
        )
    except ValueError:
        raise ValidationFailed("standard input and output must be pipes: let an MCP host start this command") from None
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def _read(reader: asyncio.StreamReader, received: "MemoryObjectSendStream[Incoming]") -> None:
    """Read messages until the end; one that is no message is answered with an error, one without end is the end."""
    with suppress(ValueError, ConnectionError, anyio.BrokenResourceError):
        async with received:
            while line := await reader.readline():
                await received.send(_decode(line))


def _decode(line: bytes) -> Incoming:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError as error:
        return error


async def _write(sent: "MemoryObjectReceiveStream[SessionMessage]", writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        async with sent:
            async for message in sent:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(text.encode() + b"\n")
                await writer.drain()
