"""A server that does exactly what a script says, once for each connection."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


@asynccontextmanager
async def scripted(
    script: Script, listen: Callable[[Connected], Awaitable[asyncio.Server]]
) -> AsyncIterator[asyncio.Server]:
    """Serve the script on the server that `listen` makes; scripts that still run at the end are cancelled."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await script(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(run(reader, writer)))

    server = await listen(begin)
    try:
        yield server
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
