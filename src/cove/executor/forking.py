"""Fork an executor between two cells, so that the copy is a child of the launcher and shares nothing it must not.

fork(2) is called twice, and the one in the middle ends: the copy then belongs to the launcher, which is a subreaper.
It is `os.fork` and no raw clone(2), because Python and OpenBLAS have handlers to run around it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import posix
import resource
import selectors
import socket
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

THREADS = "/proc/self/task"
MOST_THREADS_NAMED = 32
MOST_NAME_BYTES = 64
PID_BYTES = 20
# setrlimit(2), RLIMIT_LOCKS; Linux does not use it.
LABEL_LIMIT = 10


class Copy(BaseException):
    """Raised in the copy."""


def threads_in_the_way() -> list[bytes]:
    """Return the names of all threads that would be missing in a copy.

    Some libraries, OpenBLAS among them, end their threads in a handler around a fork, and start them again when they
    are needed. So where there are any, it is tried whether they go.
    """
    names = other_threads()
    if names:
        probe = posix.fork()
        if not probe:
            posix._exit(0)
        reap(probe)
        names = other_threads()
    return names


def other_threads() -> list[bytes]:
    """Return the names of all threads but this one, as Python knows them or as the kernel does: proc(5), comm."""
    threading = sys.modules.get("threading")
    known = {} if threading is None else {thread.native_id: thread.name for thread in threading.enumerate()}
    names: list[bytes] = []
    for thread in sorted(map(int, os.listdir(THREADS))):
        if thread != os.getpid() and len(names) < MOST_THREADS_NAMED:
            with contextlib.suppress(OSError), open("%s/%d/comm" % (THREADS, thread)) as file:
                name = str(known.get(thread) or file.read().strip())
                names.append(name.encode("utf-8", "replace")[:MOST_NAME_BYTES].replace(b"\0", b""))
    return names


def reap(pid: int) -> None:
    """Wait for a child's end; a handler of the user's may have reaped it."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def fork_twice() -> tuple[int, int]:
    """Return the pid of the copy, and that of the process in the middle, which is about to end and is to be reaped.

    Its end takes about as long as a fork, for it gives up as much memory: nobody has to wait for that. Raises Copy in
    the copy, and OSError.
    """
    read, write = os.pipe()
    with contextlib.ExitStack() as pipes, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that must not matter
        pipes.callback(os.close, read)
        with contextlib.ExitStack() as given:
            given.callback(os.close, write)
            middle = posix.fork()
            if not middle:
                fork_and_leave(write)
                raise Copy
        told = os.read(read, PID_BYTES)
    if not told:
        reap(middle)
        raise OSError(errno.EAGAIN, "fork")
    return int(told), middle


def fork_and_leave(write: int) -> None:
    """Fork the copy, which returns from here, and end."""
    try:
        pid = posix.fork()
    except OSError:
        posix._exit(1)
    if pid:
        posix.write(write, b"%d" % pid)
        posix._exit(0)


def leave_parent(channel: int, streams: list[int], label: int, lowest: int) -> int:
    """Exchange what the copy shares with its parent; returns the descriptor of its own channel."""
    stdout, stderr, own = streams
    posix.setsid()
    posix.dup2(stdout, 1)
    posix.dup2(stderr, 2)
    for descriptor in (stdout, stderr, channel):
        posix.close(descriptor)
    moved: int = fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, lowest)
    posix.close(own)
    with contextlib.suppress(OSError, ValueError):  # without it, its orphans go when the family does
        resource.setrlimit(LABEL_LIMIT, (label, label))
    renew_loop(getattr(sys.modules.get("IPython.core.async_helpers"), "_asyncio_event_loop", None))
    return moved


def renew_loop(loop: Any) -> None:
    """Give the event loop of top-level `await` a selector and a wake-up pair that are not its parent's too.

    An epoll instance is shared after fork(2): what is registered or removed in one process is in the other: epoll(7).
    """
    with contextlib.suppress(AttributeError):  # none, or no loop of asyncio's own
        shared, own = loop._selector, selectors.DefaultSelector()
        for key in list(shared.get_map().values()):
            if key.fileobj != loop._ssock.fileno():
                own.register(key.fileobj, key.events, key.data)
        shared._selector.close()
        loop._selector = own
        for end in (loop._ssock, loop._csock):
            end.close()
        loop._ssock, loop._csock = socket.socketpair()
        loop._ssock.setblocking(False)
        loop._csock.setblocking(False)
        loop._add_reader(loop._ssock.fileno(), loop._read_from_self)
