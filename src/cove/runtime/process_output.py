"""The output of one process: its pipes, pumped into a sink while anybody may print there."""

import os
from collections.abc import Callable
from functools import partial

from cove.core.output_log import STDERR
from cove.runtime.family import Parent
from cove.runtime.pump import Pump
from cove.runtime.spawn_request import Pipes

# Takes what was printed to a stream.
Take = Callable[[int, bytes], None]


class ProcessOutput:
    """Owns the read ends of the pipes until it is finished."""

    __slots__ = ("_pumps", "take")

    def __init__(self, take: Take) -> None:
        self.take = take
        self._pumps: list[Pump] = []

    def take_from(self, pipes: Pipes) -> None:
        """Take what is printed there from now on."""
        for stream, (read, _) in pipes.items():
            os.set_blocking(read, False)
            self._pumps.append(Pump(read, partial(self.take, stream)))

    def explain(self, reason: str) -> None:
        """Say there what happens to the process, unless its output is complete, or goes to a terminal."""
        if self._pumps:
            self.take(STDERR, f"cove: {reason}\n".encode())

    def take_waiting(self) -> None:
        """Take everything that is printed and not yet taken."""
        for pump in self._pumps:
            if pump.is_open:
                pump.take_waiting()

    def pause(self) -> None:
        """Take no more for now."""
        for pump in self._pumps:
            pump.pause()

    def resume(self) -> None:
        """Take more again."""
        for pump in self._pumps:
            pump.resume()

    def finish(self, launcher: Parent | None) -> None:
        """Take what is there now, and no more. Pipes that are still held go to the launcher. Idempotent."""
        held = [descriptor for pump in self._pumps if (descriptor := pump.finish()) is not None]
        self._pumps = []
        if held and launcher is not None and not launcher.closed:
            launcher.drain(held)
        else:
            for descriptor in held:
                os.close(descriptor)
