"""Attach this program's terminal to one of a sandbox: keys in, output out, window size (SIGWINCH)."""

import asyncio
import os
import signal
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Self, assert_never

from cove.api import TerminalConnection
from cove.cli.descriptors import BROKEN_PIPE, STDIN, STDOUT
from cove.cli.streams import Streams
from cove.errors import ConnectionLost, ProcessExitedBeforeReady, SandboxUnavailable, ValidationFailed
from cove.model import Exit, Gap, Output, Ready
from cove.tasks import end, owned

_DEFAULT_SIZE = (80, 24)
_LARGEST_SIZE = 1000


class RawMode:
    """While entered, every key is a byte for whoever reads. In the background the terminal is not ours to change."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._saved = termios.tcgetattr(descriptor)

    def __enter__(self) -> Self:
        tty.setraw(self._descriptor, termios.TCSANOW)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Make the terminal what it was. Waits for nothing: what was printed may never be read."""
        if self._is_foreground():
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._saved)

    def suspend(self) -> None:
        """Stop this program with the terminal as it was; `resume` is for SIGCONT."""
        self.restore()
        os.kill(os.getpid(), signal.SIGSTOP)

    def resume(self) -> None:
        """Raw again after a stop."""
        if self._is_foreground():
            with suppress(termios.error):  # a terminal that goes away sends SIGCONT too
                tty.setraw(self._descriptor, termios.TCSANOW)

    def _is_foreground(self) -> bool:
        """A program in the background is stopped when it changes its terminal: tcsetattr(3), SIGTTOU."""
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:
            return True  # not our controlling terminal: nobody stops us


class Detached(Exception):
    """The viewer went away and the terminal lives on: because its user wanted that, or with its own terminal."""

    def __init__(self, *, is_wanted: bool) -> None:
        super().__init__()
        self.is_wanted = is_wanted


class Viewer:
    """Between two terminals, until the shell ends, the user leaves, or our own terminal goes away."""

    def __init__(self, connection: TerminalConnection, detach_key: bytes) -> None:
        self._connection = connection
        self._detach_key = detach_key
        self._streams = Streams()
        self._changed = asyncio.Event()
        self._is_leaving = False

    async def run(self, mode: RawMode) -> int:
        """The exit code; raises Detached."""
        with self._watched(mode):
            others = [owned(self._feed()), owned(self._follow_size())]
            try:
                return await self._print()
            except BrokenPipeError:
                return BROKEN_PIPE
            except OSError:
                raise Detached(is_wanted=False) from None
            finally:
                for task in others:
                    await end(task)

    @contextmanager
    def _watched(self, mode: RawMode) -> Generator[None, None, None]:
        """Watch our own terminal: it is resized, or is taken away for a while."""

        def resume() -> None:
            mode.resume()
            self._changed.set()

        loop = asyncio.get_running_loop()
        handlers = {signal.SIGWINCH: self._changed.set, signal.SIGTSTP: mode.suspend, signal.SIGCONT: resume}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    async def _feed(self) -> None:
        try:
            while not self._is_leaving and (data := await self._streams.read()):
                await self._type(data)
        except (ProcessExitedBeforeReady, ValidationFailed):
            return  # the shell has ended: what is left is for nobody
        except OSError:
            pass
        await self._connection.close()

    async def _type(self, data: bytes) -> None:
        keys, pressed, _ = data.partition(self._detach_key) if self._detach_key else (data, b"", b"")
        self._is_leaving = bool(pressed)
        if keys:
            try:
                await self._connection.write(keys)
            except ConnectionLost:
                return  # a server that is being restarted: whoever types sees no echo, and types again

    async def _follow_size(self) -> None:
        try:
            while True:
                await self._resize()
                await self._changed.wait()
                self._changed.clear()
        except (ValidationFailed, OSError):
            return  # one of the two terminals is gone, which others see too

    async def _resize(self) -> None:
        try:
            await self._connection.resize(*window_size())
        except (ConnectionLost, SandboxUnavailable):
            return  # a server that is being restarted: the next change is told again

    async def _print(self) -> int:
        async for event in self._connection:
            match event:
                case Output():
                    await self._streams.write(STDOUT, event.data)
                case Exit():
                    return _exit_code(event)
                case Gap() | Ready():
                    pass  # a lossless viewer that saw the beginning has no gap
                case _:
                    assert_never(event)
        raise Detached(is_wanted=self._is_leaving)


def window_size() -> tuple[int, int]:
    """Columns and rows of our own terminal, as far as a terminal inside can have them."""
    found = os.get_terminal_size(STDIN)
    if not found.columns or not found.lines:
        return _DEFAULT_SIZE
    return min(found.columns, _LARGEST_SIZE), min(found.lines, _LARGEST_SIZE)


def _exit_code(end: Exit) -> int:
    if end.exit_code is None:
        raise SandboxUnavailable("the sandbox was lost, and the shell with it: start a new one")
    return end.exit_code
