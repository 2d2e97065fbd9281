"""The control channel of a session's shell: fifos and files. See shell/session.bash.

They lie in a directory that the sandbox sees read-only: a fifo there can be opened for writing, but not be
removed or replaced. Commands and input are written here; output and reports are read here.
"""

import contextlib
import fcntl
import os
import struct
import termios
from dataclasses import dataclass
from pathlib import Path

from cove.archive.remove_tree import remove_tree
from cove.core.shell_protocol import GO, INTERNAL, encode_command
from cove.linux.access_list import admit_user
from cove.linux.path_walk import admit_group

_FIFO_MODE = 0o600
_READABLE_INSIDE = 0o640
_COMMAND, _INPUT = "command", "input"
# The last is for the shell alone.
_FIFOS = ("go", "done", "exports", "state", "debug")
NOWHERE = "/dev/null"
_NOTHING = struct.pack("i", 0)


@dataclass(slots=True)
class ShellChannel:
    """Our end. `inside` is the directory as the shell sees it."""

    path: Path
    inside: str
    user_id: int | None
    group_id: int | None
    visitor: int | None
    go: int
    done: int
    exports: int
    state: int
    debug: int
    command: int
    pair: int = 0
    closed: bool = False
    _root: str = ""
    _input: str = ""
    _outputs: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        self._root = str(self.path)
        self._input = f"{self.inside}/{_INPUT}"
        self._name_outputs()

    def _name_outputs(self) -> None:
        self._outputs = (f"{self.inside}/out.{self.pair}", f"{self.inside}/err.{self.pair}")

    def send(self, id: str, command: bytes, stdin: bytes | None) -> None:
        """Tell the shell to run a command. Raises BlockingIOError when somebody has filled the fifo."""
        if stdin:
            descriptor = os.open(f"{self._root}/{_INPUT}", os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                _write_all(descriptor, stdin)
            finally:
                os.close(descriptor)
        source = self._input if stdin else NOWHERE
        stdout, stderr = (NOWHERE, NOWHERE) if id.startswith(INTERNAL) else self._outputs
        _write_all(self.command, encode_command(id, source, stdout, stderr, command))
        os.write(self.go, GO)

    @property
    def ban_user(self) -> int | None:
        """Return the host user who may set limits of the shell; None where that is ourselves, or root for all."""
        return self.user_id if self.user_id == self.group_id else None

    @property
    def has_been_read(self) -> bool:
        """Return whether the shell has taken the last word to go: pipe(7), FIONREAD."""
        return fcntl.ioctl(self.go, termios.FIONREAD, _NOTHING) == _NOTHING

    def output_path(self, name: str) -> str:
        """Return the path of the fifo `out` or `err` of the current pair."""
        return f"{self._root}/{name}.{self.pair}"

    def renew_output(self) -> None:
        """Make a fresh pair for the next command: somebody still writes to the current one."""
        self.pair += 1
        for name in ("out", "err"):
            _make_fifo(self.output_path(name), self.user_id, self.group_id, self.visitor)
        self._name_outputs()

    def remove_output(self, pair: int) -> None:
        """Remove a pair that no command will use again. Blocks."""
        for name in ("out", "err"):
            with contextlib.suppress(FileNotFoundError):  # the whole directory is gone
                os.unlink(f"{self._root}/{name}.{pair}")

    def close(self) -> None:
        """Close what is open. Idempotent."""
        if not self.closed:
            self.closed = True
            for descriptor in (self.go, self.done, self.exports, self.state, self.debug, self.command):
                os.close(descriptor)

    def remove(self) -> None:
        """Remove the directory. Blocks."""
        remove_tree(self._root)


def open_channel(
    path: Path, inside: str, user_id: int | None, group_id: int | None, visitor: int | None = None
) -> ShellChannel:
    """Make the directory, for that host user and group, and open what stays open. Blocks.

    A `visitor` is a user to whom we can give nothing: an access control list admits that one.
    """
    path.mkdir(mode=0o700)
    admit_group(path, group_id)
    if visitor is not None:
        admit_user(path, visitor, 0o1)
    with contextlib.ExitStack() as undo:
        undo.callback(remove_tree, str(path))
        for name in (*_FIFOS, "out.0", "err.0"):
            _make_fifo(path / name, user_id, group_id, visitor)
        for name in (_COMMAND, _INPUT):
            _make_file(path / name, group_id, visitor)
        opened = []
        for name in (*_FIFOS, _COMMAND):
            # Read and write: a fifo of which we hold both ends never ends and never refuses to open.
            opened.append(os.open(path / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            undo.callback(os.close, opened[-1])
        undo.pop_all()
        go, done, exports, state, debug, command = opened
        return ShellChannel(path, inside, user_id, group_id, visitor, go, done, exports, state, debug, command)


def _write_all(descriptor: int, content: bytes) -> None:
    written = os.pwrite(descriptor, content, 0)
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], written)


def _make_file(path: Path, group: int | None, visitor: int | None) -> None:
    """Make a file that the shell can only read, and others not even that."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        if group is not None:
            os.fchown(file.fileno(), -1, group)
        os.fchmod(file.fileno(), _READABLE_INSIDE)
    if visitor is not None:
        admit_user(path, visitor, 0o4)


def _make_fifo(path: Path | str, user_id: int | None, group_id: int | None, visitor: int | None) -> None:
    os.mkfifo(path, _FIFO_MODE)
    if user_id is not None and group_id is not None:
        os.chown(path, user_id, group_id)
    if visitor is not None:
        admit_user(path, visitor, 0o6)
