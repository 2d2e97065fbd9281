"""A snapshot of a shell's state, written by the shell: opaque bytes, kept and passed on.

What makes a script of them runs inside: see `agent.shell_state`.
"""

import fcntl
import os

from cove.agent.protocol import COPY, SESSION

# More than this is dropped: a session with such a state cannot be restored, nor be the start of a process.
MOST_STATE_BYTES = 16 << 20
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


class StateTooLarge(Exception):
    """The shell has more state than is kept."""


class ShellSnapshot:
    """Owns an anonymous file; sealed, it can be handed to whoever is to become the same."""

    def __init__(self, descriptor: int | None = None, kind: bytes = SESSION, size: int = 0) -> None:
        made = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create("cove", made) if descriptor is None else descriptor
        self.size = size
        self.kind = kind

    def share(self) -> "ShellSnapshot":
        """Return the same, sealed, to be closed on its own."""
        return ShellSnapshot(os.dup(self.descriptor), self.kind, self.size)

    def for_copy(self) -> "ShellSnapshot":
        """Return the same, sealed, for another session: it is restored without traps."""
        return ShellSnapshot(os.dup(self.descriptor), COPY, self.size)

    def append(self, data: bytes) -> None:
        """Take the next bytes that the shell writes."""
        if self.size + len(data) <= MOST_STATE_BYTES:
            os.pwrite(self.descriptor, data, self.size)
        self.size += len(data)

    def seal(self) -> None:
        """Seal it: nothing more comes, and nobody can change it. Raises StateTooLarge when not all of it is there."""
        if self.size > MOST_STATE_BYTES:
            raise StateTooLarge
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def close(self) -> None:
        """Free it. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def read_snapshot(descriptor: int, kind: bytes = SESSION) -> ShellSnapshot:
    """Copy a state out of a file, up to the bound. Blocks."""
    snapshot = ShellSnapshot(kind=kind)
    try:
        while data := os.pread(descriptor, 1 << 20, snapshot.size):
            snapshot.append(data)
            if snapshot.size > MOST_STATE_BYTES:
                break
        snapshot.seal()
    except BaseException:
        snapshot.close()
        raise
    return snapshot
