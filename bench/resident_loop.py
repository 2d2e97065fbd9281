"""The floor of a session: a bare bash that stays and runs what it is told, without Cove."""

import os
import select
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from bench.shell import ENVIRONMENT

_LOOP = Path(__file__).with_suffix(".bash")
_TOLD, _REPORTS = 3, 4
_READ_BYTES = 65536


class ResidentLoop:
    """One shell. Output of a command must fit in its pipes, since they are read after it has ended."""

    def __enter__(self) -> "ResidentLoop":
        self._directory = tempfile.TemporaryDirectory(prefix="bench-")
        place = self._directory.name
        self._out, self._err = _make_fifo(f"{place}/out"), _make_fifo(f"{place}/err")
        self._command = os.open(f"{place}/command", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        told, self._tell = os.pipe()
        self._status, reports = os.pipe()
        # Descriptors 3 and 4 are what the loop expects; ours may have any number.
        start = f'exec bash --norc --noprofile "$0" "$1" {_TOLD}<&{told} {_REPORTS}>&{reports}'
        self._shell = subprocess.Popen(
            ["bash", "-c", start, str(_LOOP), place], pass_fds=(told, reports), env=ENVIRONMENT
        )
        os.close(told)
        os.close(reports)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._tell)
        self._shell.wait()
        for descriptor in (self._status, self._out, self._err, self._command):
            os.close(descriptor)
        self._directory.cleanup()

    def run(self, command: bytes, timeout: float | None = None) -> tuple[int, bytes, bytes]:
        """The exit status, output and errors of one command; nothing is done about one that takes longer."""
        os.pwrite(self._command, command, 0)
        os.ftruncate(self._command, len(command))
        os.write(self._tell, b"\n")
        if timeout is not None and not select.select([self._status], [], [], timeout)[0]:
            raise TimeoutError
        return int(os.read(self._status, 16)), _read_all(self._out), _read_all(self._err)


def _make_fifo(path: str) -> int:
    """A FIFO whose reader gets the end of file whenever nobody has it open for writing: fifo(7)."""
    os.mkfifo(path, 0o600)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor


def _read_all(descriptor: int) -> bytes:
    data = b""
    while chunk := os.read(descriptor, _READ_BYTES):
        data += chunk
    return data
