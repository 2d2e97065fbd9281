"""Fork an executor between two cells, so that the copy is a child of the launcher and shares nothing it must not.

fork(2) is called twice, and the one in the middle ends: the copy then belongs to the launcher, which is a subreaper.
Python and OpenBLAS have handlers to run around it. The C library's own `fork` runs those of OpenBLAS; a raw clone(2)
would not. Those of Python run once, around both forks, and not in the middle: they take about as long as a fork does.
"""

from __future__ import annotations

import _ctypes
import contextlib
import errno
import fcntl
import os
import posix
import resource
import selectors
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

THREADS = "/proc/self/task"
MOST_THREADS_NAMED = 32
MOST_NAME_BYTES = 64
PID_BYTES = 20
# setrlimit(2), RLIMIT_LOCKS; Linux does not use it.
LABEL_LIMIT = 10


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # no subscript when it runs
    _type_ = "i"


class _Function(_ctypes.CFuncPtr):
    """A function that is called with Python's lock held."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the program itself
_fork, _before_fork, _after_fork_in_parent, _after_fork_in_child = [
    _Function(_ctypes.dlsym(_library, name))
    for name in ("fork", "PyOS_BeforeFork", "PyOS_AfterFork_Parent", "PyOS_AfterFork_Child")
]


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
    with contextlib.ExitStack() as pipes:
        pipes.callback(os.close, read)
        with contextlib.ExitStack() as given:
            given.callback(os.close, write)
            _before_fork()
            middle = _fork()
            number = _ctypes.get_errno()
            if not middle:
                fork_and_leave(write)
                _after_fork_in_child()
                raise Copy
            _after_fork_in_parent()
        told = os.read(read, PID_BYTES)
    if middle < 0:
        raise OSError(number, "fork")
    if not told:
        reap(middle)
        raise OSError(errno.EAGAIN, "fork")
    return int(told), middle


def fork_and_leave(write: int) -> None:
    """Fork the copy, which returns from here, and end."""
    pid = _fork()
    if pid > 0:
        posix.write(write, b"%d" % pid)
    if pid:
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
