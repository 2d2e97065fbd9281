"""Put the user's terminal into raw mode, and restore it whatever happens: termios(3)."""

import os
import signal
import termios
import tty
from contextlib import suppress
from typing import Self


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
