"""Where the commands of a shell print: two fifos that stay open from command to command.

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
        self._streams: dict[int, _Stream] = {}
        self._open()

    def begin(self, captures: tuple[Capture, Capture]) -> None:
        """A command starts."""
        self._captures = captures

    def finish(self) -> list[int]:
        """A command has ended: take exactly the bytes now there. Returns the read ends that others still write to."""
        for stream in self._streams.values():
            stream.pump.take_waiting()
        self._captures = None
        if not any([stream.has_other_writer() for stream in self._streams.values()]):  # noqa: C419  # look at both
            return []
        held = [stream.detach() for stream in self._streams.values()]
        self._channel.renew_output()
        self._open()
        return held

    def close(self) -> None:
        """Stop reading and close everything. Idempotent."""
        for stream in self._streams.values():
            os.close(stream.detach())
        self._streams.clear()

    def _open(self) -> None:
        for number, name in _NAMES.items():
            self._streams[number] = _Stream(self._channel.output_path(name), self._taker(number))

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

    def has_other_writer(self) -> bool:
        """Whether anyone but us can still write."""
        os.close(self._writer)
        has_other = not self.pump.is_at_end()
        self._hold()
        return has_other

    def detach(self) -> int:
        """Give up the fifo; the caller owns the read end."""
        os.close(self._writer)
        return self.pump.detach()

    def _hold(self) -> None:
        self._writer = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
