"""Spawn a program by posix_spawn(3): its file, its descriptors, and the script made from a shell's snapshot."""

from __future__ import annotations

import errno
import fcntl
import posix

from cove.agent import kernel, protocol

FIRST_SPARE_DESCRIPTOR = 100


def restore_states(targets: list[bytes], descriptors: list[int]) -> list[int]:
    """Parse the targets. Where one is a shell's snapshot, its descriptor becomes the script made from it."""
    numbers = []
    for at, target in enumerate(targets):
        numbers.append(int(target.rstrip(protocol.SNAPSHOTS)))
        if not target.isdigit():
            from cove.agent import shell_state

            try:
                text = shell_state.script(kernel.read_all(descriptors[at]), target[-1:])
            except shell_state.BadSnapshot:
                raise OSError(errno.EBADMSG, "not a snapshot") from None
            posix.close(descriptors[at])
            descriptors[at] = kernel.memory_file(text)
    return numbers


def file_actions(targets: list[int], descriptors: list[int], tty: bytes) -> list[tuple[object, ...]]:
    """Build the file actions of posix_spawn(3); afterwards only the targets are open in the child.

    A standard input that is not among them is the launcher's own, which is /dev/null.
    """
    actions: list[tuple[object, ...]] = []
    if tty:
        # A session leader without a terminal gets the first one it opens: tty_ioctl(4), TIOCSCTTY.
        actions.append((posix.POSIX_SPAWN_OPEN, 0, tty, posix.O_RDWR, 0))
        actions.append((posix.POSIX_SPAWN_DUP2, 0, 1))
        actions.append((posix.POSIX_SPAWN_DUP2, 0, 2))
    if targets and max(targets) > 2:
        # Out of the way of the targets, so that no dup2 overwrites a source still to come.
        for at, fd in enumerate(descriptors):
            descriptors[at] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE_DESCRIPTOR)
            posix.close(fd)
    for fd, target in zip(descriptors, targets):
        actions.append((posix.POSIX_SPAWN_DUP2, fd, target))
    return actions


def start(argv: list[bytes], environ: dict[bytes, bytes], actions: list[tuple[object, ...]]) -> int:
    """Start a program as the leader of a new session, with no signal blocked."""
    program = find_program(argv[0], environ.get(b"PATH", b""))
    return posix.posix_spawn(program, argv, environ, file_actions=actions, setsid=True, setsigmask=())


def find_program(name: bytes, path: bytes) -> bytes:
    """Return the file that execvp(3) would execute: a candidate that may not be executed is remembered, not taken."""
    if b"/" in name:
        return name
    forbidden = b""
    for folder in path.split(b":"):
        candidate = folder + b"/" + name
        if folder and posix.access(candidate, posix.X_OK):
            return candidate
        if folder and not forbidden and posix.access(candidate, posix.F_OK):
            forbidden = candidate
    if not forbidden:
        raise FileNotFoundError(errno.ENOENT, "not found")
    return forbidden
