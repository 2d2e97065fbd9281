"""A terminal: a process on a pty, what it has shown, and its viewers."""

import asyncio
import fcntl
import os
import struct
import termios
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime

from cove import api
from cove.core.capture import Scrollback
from cove.core.command import check_input
from cove.errors import CoveError, ValidationFailed
from cove.local.pipe import Stdin, refuse_ended
from cove.model import Exit, Gap, JournalKind, Output, ProcessExit, Ready, TerminalEvent, TerminalInfo
from cove.runtime.gate import Gate, gated
from cove.runtime.journal import Journal
from cove.runtime.notify import Notify
from cove.runtime.supervised import Supervised
from cove.runtime.tracing import traced
from cove.tasks import Once

SCROLLBACK_BYTES = 1 << 20
# A viewer that must miss nothing holds the program back when it is so far behind, long before bytes are dropped.
_HOLD_BYTES = SCROLLBACK_BYTES // 2
_EVENT_BYTES = 64 << 10
LARGEST_SIZE = 1000
# termios(3); the module of that name does not have it.
_IUTF8 = 0o40000
# The kernel hands out at most a page of terminal output at a time; one call of the loop takes several. After a small
# one there is rarely more: the loop calls again if there is.
_READ_BYTES = 65536
_SMALL_BYTES = 1024
_READS = 16
# More than the kernel keeps of a terminal's output (a page, and 8 KiB on the way there): drivers/tty/pty.c.
_MOST_LEFT_READS = 32


@traced("terminal", api.Terminal)
@gated(starts=False)
class Terminal(api.Terminal):
    """Owns the pty and the process on it. It ends after the last byte the process has written.

    The slave stays open here: a shell may close its terminal and open it again, and the master sees no end.
    """

    def __init__(
        self,
        id: str,
        process: Supervised,
        pty: tuple[int, int],
        size: tuple[int, int],
        on_destroyed: Callable[["Terminal"], None],
        journal: Journal | None = None,
    ) -> None:
        self.id = id
        self._journal = journal or Journal.silent()
        self._began = time.perf_counter()
        self.cols, self.rows = size
        self._process = process
        self._master, self._slave = pty
        self._on_destroyed = on_destroyed
        self._created_at = datetime.now(UTC)
        self._loop = asyncio.get_running_loop()
        self._destroying: Once[None] = Once()
        self._holders: set[TerminalConnection] = set()
        self.scrollback = Scrollback(SCROLLBACK_BYTES)
        self.change = Notify()
        self.end: ProcessExit | None = None
        self.input = Stdin(os.dup(self._master))
        self._pump = TerminalPump(os.dup(self._master), self._take)
        process.ended.add_done_callback(self._on_exit)

    @property
    def gate(self) -> Gate:
        """The gate of its sandbox."""
        return self._process.gate

    @property
    def supervised(self) -> Supervised:
        """The process on it."""
        return self._process

    @property
    def is_running(self) -> bool:
        """The process lives, or its last bytes are still to be read."""
        return self.end is None

    def info(self) -> TerminalInfo:
        """Describe the terminal."""
        code = None if self.end is None else self.end.exit_code
        return TerminalInfo(
            id=self.id,
            cols=self.cols,
            rows=self.rows,
            created_at=self._created_at,
            is_running=self.is_running,
            exit_code=code,
        )

    def connect(self, *, since: str | None = None, lossless: bool = False) -> "TerminalConnection":
        return TerminalConnection(self, since, lossless)

    async def resize(self, cols: int, rows: int) -> None:
        check_size(cols, rows)
        if self._master >= 0:
            set_size(self._master, cols, rows)
            self.cols, self.rows = cols, rows
            self._journal.record(JournalKind.TERMINAL_RESIZED, subject=self.id, cols=cols, rows=rows)

    async def destroy(self) -> None:
        if self._destroying.start(self._destroy):
            self._on_destroyed(self)
        await self._destroying.result()

    async def _destroy(self) -> None:
        await self._process.sweep()
        self.close()

    def close(self) -> None:
        """Take the last bytes and free the pty. Idempotent."""
        self._pump.finish()
        self.input.close(self._refuse_input)
        if self._master >= 0:
            os.close(self._master)
            os.close(self._slave)
            self._master = self._slave = -1
        if self.end is None and self._process.ended.done():
            self.end = self._process.ended.result()
            self.change.notify_all()
            self._record_end(self.end)

    def _record_end(self, end: ProcessExit) -> None:
        with self._journal.call(JournalKind.TERMINAL_ENDED, subject=self.id) as entry:
            entry.use(end)
            entry.fields["outcome"], entry.fields["exit_code"] = end.outcome, end.exit_code
            entry.fields["signal"], entry.fields["output_bytes"] = end.signal, self.scrollback.end
            entry.began = self._began

    def _refuse_input(self) -> CoveError:
        ended = self._process.ended
        return refuse_ended(f"the program on terminal {self.id}", ended.result() if ended.done() else None)

    def hold_back(self, viewer: "TerminalConnection") -> None:
        """Make the program wait for this viewer when it is far behind (backpressure)."""
        self._holders.add(viewer)
        self.pace()

    def let_go(self, viewer: "TerminalConnection") -> None:
        """Wait for this viewer no more. Idempotent."""
        self._holders.discard(viewer)
        self.pace()

    def pace(self) -> None:
        """Take output, or leave the program waiting, as the viewers need it."""
        if not self._holders or self.scrollback.end - min(each.cursor for each in self._holders) <= _HOLD_BYTES:
            self._pump.resume()
        else:
            self._pump.pause()

    def _take(self, data: bytes) -> None:
        self.scrollback.append(data)
        if self._journal.keeps_output:
            self._journal.record_output(JournalKind.TERMINAL_STARTED, self.id, "stdout", data)
        self.change.notify_all()
        if self._holders:
            self.pace()

    def _on_exit(self, _: object) -> None:
        self.close()


@gated(starts=False, free=("close", "events"))
class TerminalConnection(api.TerminalConnection):
    """One viewer: a cursor, nothing else. A slow one gets a Gap, and slows down nobody unless it asked to."""

    def __init__(self, terminal: Terminal, since: str | None, lossless: bool) -> None:
        self._terminal = terminal
        self._since = since
        self._lossless = lossless
        self.cursor = 0
        self._ready_at: int | None = None
        self._is_open = False

    @property
    def gate(self) -> Gate:
        """The gate of its sandbox."""
        return self._terminal.gate

    async def open(self) -> None:
        if not self._is_open:
            self.gate.begin()
        scrollback = self._terminal.scrollback
        self.cursor = scrollback.fresh_cursor() if self._since is None else self._parse(self._since)
        self._ready_at = scrollback.end
        self._is_open = True
        if self._lossless:
            self._terminal.hold_back(self)

    async def close(self) -> None:
        if self._is_open:
            self.gate.end()
        self._is_open = False
        self._terminal.let_go(self)
        self._terminal.change.notify_all()

    async def events(self) -> AsyncGenerator[TerminalEvent, None]:
        self._check_open()
        while self._is_open:
            event = self._next()
            if event is None:
                await self._terminal.change.wait()
                continue
            yield event
            if isinstance(event, Exit):
                return

    async def write(self, data: bytes | str) -> None:
        self._check_open()
        await self._terminal.input.write(check_input(data))

    async def resize(self, cols: int, rows: int) -> None:
        self._check_open()
        await self._terminal.resize(cols, rows)

    def _next(self) -> TerminalEvent | None:
        """The next event if there is one already."""
        scrollback = self._terminal.scrollback
        until = scrollback.end if self._ready_at is None else self._ready_at
        if self.cursor < until:
            return self._next_bytes(scrollback, until)
        if self._ready_at is not None:
            self._ready_at = None
            return Ready(str(self.cursor))
        end = self._terminal.end
        return None if end is None else Exit(end.outcome, end.exit_code, end.signal, str(self.cursor))

    def _next_bytes(self, scrollback: Scrollback, until: int) -> Output | Gap:
        began = self.cursor
        if began < scrollback.start:
            self.cursor = min(scrollback.fresh_cursor(), until)
            return Gap(self.cursor - began, str(self.cursor))
        data = scrollback.read(began, min(_EVENT_BYTES, until - began))
        self.cursor += len(data)
        if self._lossless:
            self._terminal.pace()
        return Output("stdout", data, str(self.cursor))

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValidationFailed("this terminal connection is not open: use `async with terminal.connect() as …`")

    def _parse(self, since: str) -> int:
        is_cursor = isinstance(since, str) and since.isdecimal() and len(since) <= 20
        if not is_cursor or int(since) > self._terminal.scrollback.end:
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


def expect_utf8(master: int) -> None:
    """Let a deleted character be a whole one: termios(3), IUTF8."""
    attributes = termios.tcgetattr(master)
    attributes[0] |= _IUTF8
    termios.tcsetattr(master, termios.TCSANOW, attributes)


class TerminalPump:
    """Owns a descriptor of the master. Somebody must have the slave open, so that it never looks closed."""

    __slots__ = ("_descriptor", "_is_paused", "_loop", "_take")

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._take = take
        self._is_paused = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._on_readable)

    def pause(self) -> None:
        """Take no more for now: the program waits, as on any terminal that is full."""
        if self._descriptor >= 0 and not self._is_paused:
            self._is_paused = True
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        """Take again."""
        if self._descriptor >= 0 and self._is_paused:
            self._is_paused = False
            self._loop.add_reader(self._descriptor, self._on_readable)

    def finish(self) -> None:
        """Take what was printed before this call, then stop. Idempotent.

        A read that finds nothing has first moved everything on its way to us: n_tty_read, tty_buffer_flush_work.
        """
        if self._descriptor >= 0:
            self._read(_MOST_LEFT_READS, 0)
            self.pause()
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_readable(self) -> None:
        self._read(_READS, _SMALL_BYTES)

    def _read(self, times: int, enough: int) -> None:
        """Up to so many reads, or until one gives less than `enough`."""
        chunks: list[bytes] = []
        try:
            while len(chunks) < times:
                chunks.append(os.read(self._descriptor, _READ_BYTES))
                if len(chunks[-1]) < enough:
                    break
        except BlockingIOError:
            pass
        except OSError:  # EIO: the slave we were given was not this master's
            self.pause()
        if chunks:
            self._take(b"".join(chunks))
