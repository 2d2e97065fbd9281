"""Things that must not live on in a forked copy of this program."""

import os
import weakref
from typing import Protocol


class Closable(Protocol):
    """A socket or a file."""

    def close(self) -> None:
        """Close it."""


_ours: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_in_forked_child(thing: Closable) -> None:
    """A child made by fork (multiprocessing) closes its copy, so that the end of this program is seen by the peer."""
    _ours.add(thing)


def _after_fork() -> None:
    for thing in list(_ours):
        thing.close()
    _ours.clear()


os.register_at_fork(after_in_child=_after_fork)
