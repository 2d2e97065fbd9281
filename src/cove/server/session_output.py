"""Stream the output of a command in a session as it comes, for protocols that tell it to their clients."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from cove.model import ExecResult
from cove.model.event import StreamName
from cove.runtime.session import Session
from cove.tasks import Tasks

CHUNK_BYTES: Final = 48 << 10
_MOST_UNREAD_BYTES: Final = 32 << 20
_LOST: Final = b"cove: there was more output than was read; some of it is left out\n"


class SessionOutput:
    """One command: `chunks` runs it, then `result` returns or raises how it ended."""

    def __init__(self) -> None:
        self._unread = _Unread()
        self._running: asyncio.Task[ExecResult] | None = None

    async def chunks(
        self,
        session: Session,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[tuple[StreamName, bytes], None]:
        """Run the command; it ends when nobody reads any more, and its session stays."""
        unread = self._unread
        work = session.exec(
            command, cwd=cwd, env=env, timeout=timeout, max_output=CHUNK_BYTES, on_output=self._unread.add
        )
        async with Tasks() as tasks:
            running = self._running = tasks.start(work, on_end=unread.wake)
            while not running.done() or unread.chunks:
                await unread.wait()
                while unread.chunks:
                    yield unread.take()
        if unread.has_dropped:
            yield "stderr", _LOST

    def result(self) -> ExecResult:
        """Return the result of the command, which has ended."""
        assert self._running is not None
        return self._running.result()


class _Unread:
    """Output that the client has not taken. A session is not held back: what is too much is lost."""

    def __init__(self) -> None:
        self.chunks: deque[tuple[StreamName, bytes]] = deque()
        self.has_dropped = False
        self._bytes = 0
        self._changed = asyncio.Event()

    def add(self, stream: StreamName, data: bytes) -> None:
        """The command has printed this."""
        if self._bytes > _MOST_UNREAD_BYTES:
            self.has_dropped = True
            return
        self.chunks.append((stream, data))
        self._bytes += len(data)
        self._changed.set()

    def take(self) -> tuple[StreamName, bytes]:
        """The oldest of what there is."""
        stream, data = self.chunks.popleft()
        self._bytes -= len(data)
        return stream, data

    def wake(self) -> None:
        """The command has ended."""
        self._changed.set()

    async def wait(self) -> None:
        """Wait until there is something, or the command has ended."""
        await self._changed.wait()
        self._changed.clear()
