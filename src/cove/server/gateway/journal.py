"""Read the journal of a sandbox from its files, whether it runs or not: that wakes nothing, and keeps nothing awake."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cove.core.journal import parse_cursor
from cove.errors import LimitExceeded
from cove.linux.inotify import watched
from cove.local.threads import in_thread
from cove.model import JournalEvent, SandboxStatus
from cove.runtime.journal import read_rest
from cove.runtime.journal_files import JOURNAL, JournalReader
from cove.runtime.kept_journals import kept_path
from cove.server.sandboxes.directory import Directory, Record
from cove.wire.operation import SANDBOXES

_FLUSH_SECONDS: Final = 5.0
_END: Final = "9" * 18
_MOST_BYTES: Final = 65536


async def read_journal(
    directory: Directory, record: Record, status: SandboxStatus, since: str | None, follow: bool
) -> AsyncGenerator[JournalEvent, None]:
    """Give the events after a cursor; with `follow`, until the sandbox is destroyed."""
    paths = (directory.place(record.key) / JOURNAL, kept_path(directory.home, record.key))
    reader = JournalReader(paths, parse_cursor(since))
    if status in (SandboxStatus.RUNNING, SandboxStatus.PAUSED):
        await _flush(directory.socket(record), record.id)
    async with aclosing(_follow(reader, paths[0]) if follow else read_rest(reader)) as events:
        async for event in events:
            yield event


async def _follow(reader: JournalReader, path: Path) -> AsyncGenerator[JournalEvent, None]:
    """Give what comes, until the journal is moved away and read to its end."""
    try:
        async with watched(path) as changed:
            is_there = True
            while is_there:
                changed.clear()
                is_there = await in_thread(path.is_dir)
                async with aclosing(read_rest(reader)) as events:
                    async for event in events:
                        yield event
                if is_there:
                    await changed.wait()
    except FileNotFoundError:
        return  # destroyed just now
    except OSError as error:
        raise LimitExceeded(f"this journal cannot be followed: {error.strerror}; read it without `follow`") from None


async def _flush(socket: Path, id: str) -> None:
    """Have the runtime write what it has: a caller finds what it did before. One that is just ending does it itself."""
    head = f"GET {SANDBOXES}/{quote(id, safe='')}/journal?since={_END} HTTP/1.1\r\nhost: runtime\r\n"
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_FLUSH_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(f"{head}connection: close\r\n\r\n".encode())
                while await reader.read(_MOST_BYTES):
                    pass
            finally:
                writer.close()
