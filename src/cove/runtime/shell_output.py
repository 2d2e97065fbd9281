"""Capture the output of a shell's commands: two fifos that stay open from command to command.

We hold a write end too, so that a fifo without writers does not look closed. At the end of a command it is let
go for a moment: if the fifo then is at its end, nobody else writes to it, and the next command can use it.
"""

import os
from collections.abc import Callable

from cove.core.capture import Capture
from cove.core.output_log import STDERR, STDOUT
from cove.runtime.pump import Pump
from cove.runtime.shell_channel import ShellChannel

_NAMES = {STDOUT: "out", STDERR: "err"}


class ShellOutput:
    """Owns both ends of the current pair. What comes while no command runs is dropped."""

    def __init__(self, channel: ShellChannel) -> None:
        self._channel = channel
        self._captures: tuple[Capture, Capture] | None = None
        self._streams: list[_Stream] = []
        self._open()

    def begin(self, captures: tuple[Capture, Capture]) -> None:
        """Start to capture a command."""
        self._captures = captures

    def finish(self) -> list[int]:
        """End a capture: take exactly the bytes now there. Returns the read ends that others still write to."""
        is_held = [stream.finish() for stream in self._streams]
        self._captures = None
        if not any(is_held):
            return []
        held = [stream.detach() for stream in self._streams]
        self._channel.renew_output()
        self._open()
        return held

    def close(self) -> None:
        """Stop reading and close everything. Idempotent."""
        for stream in self._streams:
            os.close(stream.detach())
        self._streams.clear()

    def _open(self) -> None:
        self._streams = [
            _Stream(self._channel.output_path(name), self._taker(number)) for number, name in _NAMES.items()
        ]

    def _taker(self, number: int) -> Callable[[bytes], None]:
        def take(data: bytes) -> None:
            if self._captures is not None:
                self._captures[number].append(data)

        return take


class _Stream:
    """One fifo: the end we read, and the end we hold."""

    __slots__ = ("_path", "_writer", "pump")

    def __init__(self, path: str, take: Callable[[bytes], None]) -> None:
        self._path = path
        self.pump = Pump(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), take)
        self._hold()

    def finish(self) -> bool:
        """Take exactly the bytes now there; returns whether anyone but us can still write."""
        os.close(self._writer)
        is_held = not self.pump.take_last()
        self._hold()
        return is_held

    def detach(self) -> int:
        """Give up the fifo; the caller owns the read end."""
        os.close(self._writer)
        return self.pump.detach()

    def _hold(self) -> None:
        self._writer = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
