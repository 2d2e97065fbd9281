"""A terminal: a process on a pty, what it has shown, and its viewers."""

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime

from cove import api
from cove.core.scrollback import Scrollback
from cove.errors import ValidationFailed
from cove.model import Exit, Gap, Output, ProcessExit, Ready, TerminalEvent, TerminalInfo
from cove.runtime.change import Change
from cove.runtime.stdin import Stdin
from cove.runtime.supervised import Supervised
from cove.runtime.terminal_pump import TerminalPump

SCROLLBACK_BYTES = 1 << 20
_EVENT_BYTES = 64 << 10
# When the shell has ended but a background job still has the terminal open, this is how long we listen.
_LAST_WORDS_SECONDS = 0.1
LARGEST_SIZE = 1000


class Terminal(api.Terminal):
    """Owns the master of a pty and the process on it. It ends after the last byte the process has written."""

    def __init__(
        self, id: str, process: Supervised, master: int, cols: int, rows: int, on_destroyed: Callable[[], None]
    ) -> None:
        self.id = id
        self.cols = cols
        self.rows = rows
        self._process = process
        self._master = master
        self._on_destroyed = on_destroyed
        self._created_at = datetime.now(UTC)
        self._loop = asyncio.get_running_loop()
        self._destroying: asyncio.Task[None] | None = None
        self._last_words: asyncio.TimerHandle | None = None
        self.scrollback = Scrollback(SCROLLBACK_BYTES)
        self.change = Change()
        self.end: ProcessExit | None = None
        self.input = Stdin(os.dup(master))
        self._pump = TerminalPump(os.dup(master), self._take, self._on_output_end)
        process.ended.add_done_callback(self._on_exit)

    @property
    def is_running(self) -> bool:
        """The process lives, or its last bytes are still to be read."""
        return self.end is None

    def info(self) -> TerminalInfo:
        """The facts."""
        code = None if self.end is None else self.end.exit_code
        return TerminalInfo(
            id=self.id,
            cols=self.cols,
            rows=self.rows,
            created_at=self._created_at,
            is_running=self.is_running,
            exit_code=code,
        )

    def connect(self, *, since: str | None = None) -> "TerminalConnection":
        """See api.Terminal."""
        return TerminalConnection(self, since)

    async def resize(self, cols: int, rows: int) -> None:
        """See api.Terminal."""
        check_size(cols, rows)
        if self.is_running:
            set_size(self._master, cols, rows)
        self.cols, self.rows = cols, rows

    async def destroy(self) -> None:
        """See api.Terminal."""
        if self._destroying is None:
            self._on_destroyed()
            self._destroying = self._loop.create_task(self._destroy())
        await asyncio.shield(self._destroying)

    async def _destroy(self) -> None:
        await self._process.sweep()
        self.close()

    def close(self) -> None:
        """Free the pty after the process has ended. Idempotent."""
        self._pump.close()
        self.input.close()
        if self._last_words is not None:
            self._last_words.cancel()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def _take(self, data: bytes) -> None:
        self.scrollback.append(data)
        self.change.announce()

    def _on_exit(self, _: object) -> None:
        if self._pump.is_open:
            self._last_words = self._loop.call_later(_LAST_WORDS_SECONDS, self._pump.close)
        else:
            self._finish()

    def _on_output_end(self) -> None:
        if self._process.ended.done():
            self._finish()

    def _finish(self) -> None:
        if self.end is None:
            self.end = self._process.ended.result()
            self.change.announce()
            self.close()


class TerminalConnection(api.TerminalConnection):
    """One viewer: a cursor, nothing else. A slow one gets a Gap, and slows down nobody."""

    def __init__(self, terminal: Terminal, since: str | None) -> None:
        self._terminal = terminal
        self._since = since
        self._cursor = 0
        self._ready_at = 0
        self._is_open = False

    async def open(self) -> None:
        """See api.TerminalConnection."""
        scrollback = self._terminal.scrollback
        self._cursor = scrollback.fresh_cursor() if self._since is None else self._parse(self._since)
        self._ready_at = scrollback.end
        self._is_open = True

    async def close(self) -> None:
        """See api.TerminalConnection."""
        self._is_open = False
        self._terminal.change.announce()

    async def events(self) -> AsyncGenerator[TerminalEvent, None]:
        """See api.TerminalConnection."""
        if not self._is_open:
            raise ValidationFailed("this terminal connection is not open: use `async with terminal.connect() as …`")
        async for event in self._read_until(self._ready_at):
            yield event
        yield Ready(str(self._cursor))
        while self._is_open:
            async for event in self._read_until(self._terminal.scrollback.end):
                yield event
            if self._cursor < self._terminal.scrollback.end:
                continue
            if self._terminal.end is not None:
                end = self._terminal.end
                yield Exit(end.outcome, end.exit_code, end.signal, str(self._cursor))
                return
            await self._terminal.change.wait()

    async def write(self, data: bytes | str) -> None:
        """See api.TerminalConnection."""
        await self._terminal.input.write(data.encode() if isinstance(data, str) else data)

    async def resize(self, cols: int, rows: int) -> None:
        """See api.TerminalConnection."""
        await self._terminal.resize(cols, rows)

    async def _read_until(self, end: int) -> AsyncGenerator[TerminalEvent, None]:
        scrollback = self._terminal.scrollback
        while self._is_open and self._cursor < end:
            if self._cursor < scrollback.start:
                missing, self._cursor = scrollback.start - self._cursor, scrollback.start
                yield Gap(missing, str(self._cursor))
                continue
            data = scrollback.read(self._cursor, min(_EVENT_BYTES, end - self._cursor))
            self._cursor += len(data)
            yield Output("stdout", data, str(self._cursor))

    def _parse(self, since: str) -> int:
        if not since.isdecimal() or len(since) > 20 or int(since) > self._terminal.scrollback.end:
            raise ValidationFailed(f"{since!r} is not a cursor of this terminal: use one that an event carried")
        return int(since)


def check_size(cols: int, rows: int) -> None:
    """Raise ValidationFailed for a size that no terminal has."""
    for name, value in (("cols", cols), ("rows", rows)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE:
            raise ValidationFailed(f"{name} must be a number from 1 to {LARGEST_SIZE}, not {value!r}")


def set_size(master: int, cols: int, rows: int) -> None:
    """Set the window size; the foreground programs get SIGWINCH: ioctl_tty(2)."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
