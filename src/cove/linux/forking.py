"""Fork copies of this program: what must not live on in them, how they are named and end (prctl(2))."""

import ctypes
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

_PR_SET_PDEATHSIG = 1


class Closable(Protocol):
    """A socket or a file."""

    def close(self) -> None:
        """Close it."""


_ours: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_in_forked_child(thing: Closable) -> None:
    """Close the copy of a child made by fork (multiprocessing), so that the end of this program is seen by the peer."""
    _ours.add(thing)


def work_and_exit(work: Callable[[], None]) -> NoReturn:
    """Run as a forked copy, without the program's exit handlers: exit 0 if it returns, 1 if it raises."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  # the program it is a copy of must not go on here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _after_fork() -> None:
    for thing in list(_ours):
        thing.close()
    _ours.clear()


os.register_at_fork(after_in_child=_after_fork)


def name_process(name: str) -> None:
    """Set the name; the kernel keeps 15 characters."""
    Path("/proc/self/comm").write_text(name)


def end_with_parent(parent: int) -> None:
    """Arrange to be killed when the parent, which was that process, is gone; also when it is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
