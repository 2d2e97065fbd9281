"""A person at a terminal who runs `cove shell`: a real pty, a real program, keys and a screen."""

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COVE = str(Path(sys.executable).parent / "cove")
PROMPT = b"in> "
# A shell that shows this prompt and nothing else: no start-up files, no line editor.
PLAIN_SHELL = ("--env", "PS1=in> ", "--", "bash", "--norc", "--noediting")
_TIMEOUT_SECONDS = 60.0


class User:
    """Types, reads, changes the size of the window."""

    def __init__(self, master: int, slave: int, program: "subprocess.Popen[bytes]") -> None:
        self.master = master
        self.slave = slave
        self.program = program
        self._screen = b""

    def type(self, keys: bytes) -> None:
        while keys:
            keys = keys[os.write(self.master, keys) :]

    def read(self) -> bytes:
        """What appears next on the screen."""
        if self._screen:
            screen, self._screen = self._screen, b""
            return screen
        if not select.select([self.master], [], [], _TIMEOUT_SECONDS)[0]:
            raise TimeoutError("nothing more appears")
        return os.read(self.master, 65536)

    def wait_for(self, text: bytes) -> bytes:
        """Everything up to and with that text."""
        seen = b""
        while text not in seen:
            try:
                seen += self.read()
            except TimeoutError:
                raise AssertionError(f"{text!r} did not appear, only {seen!r}") from None
        before, _, self._screen = seen.partition(text)
        return before + text

    def run(self, line: bytes) -> bytes:
        """Type a command at the prompt; what it prints, without the line itself."""
        self.type(line + b"\n")
        shown = self.wait_for(PROMPT)
        return shown.removeprefix(line + b"\r\n").removesuffix(PROMPT)

    def set_size(self, cols: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def modes(self) -> list[Any]:  # numbers, and a list of characters
        return termios.tcgetattr(self.slave)

    def is_raw(self) -> bool:
        return not self.modes()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def unread_input(self) -> int:
        """How many bytes of input the terminal holds that nobody has read."""
        raw = self.modes()
        raw[3] = 0
        termios.tcsetattr(self.slave, termios.TCSANOW, raw)
        return int.from_bytes(fcntl.ioctl(self.slave, termios.FIONREAD, b"\0\0\0\0"), "little")

    def exit_code(self) -> int:
        """How the program ended; what it still prints is read away, as a screen does."""
        until = time.monotonic() + _TIMEOUT_SECONDS
        while (code := self.program.poll()) is None:
            assert time.monotonic() < until, "the program does not end"
            if select.select([self.master], [], [], 0.01)[0]:
                self._screen += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0)[0]:
            self._screen += os.read(self.master, 65536)
        return code

    def screen(self) -> bytes:
        """What was read away and not yet looked at."""
        return self._screen


@contextmanager
def cove_shell(*arguments: str, cols: int = 80, rows: int = 24, stdout: int | None = None) -> Iterator[User]:
    """`cove shell` in a terminal of its own, with job control, as a person's shell starts it."""
    master, slave = os.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    program = subprocess.Popen(
        [COVE, "shell", *arguments],
        stdin=slave,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        preexec_fn=take_terminal,
    )
    user = User(master, slave, program)
    try:
        yield user
    finally:
        if program.poll() is None:
            program.kill()
        program.wait()
        for descriptor in {user.master, user.slave} - {-1}:
            os.close(descriptor)
