"""Wait for changes in directories: inotify(7), one instance for all that one event loop waits for."""

import asyncio
import ctypes
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

from cove.linux.forking import close_in_forked_child

_libc = ctypes.CDLL(None, use_errno=True)
_MODIFY, _CREATE, _DELETE_SELF, _MOVE_SELF = 0x2, 0x100, 0x400, 0x800
_MASK = _MODIFY | _CREATE | _DELETE_SELF | _MOVE_SELF
_HEAD = struct.Struct("iIII")
_READ_BYTES = 65536

_watchers: "WeakKeyDictionary[asyncio.AbstractEventLoop, DirectoryWatcher]" = WeakKeyDictionary()


class DirectoryWatcher:
    """The directories that tasks of one loop wait for. The instance is open while anybody waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = -1
        self._waiting: dict[int, set[asyncio.Event]] = {}

    def close(self) -> None:
        """Close the instance. Idempotent."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def add(self, path: Path) -> tuple[int, asyncio.Event]:
        """Watch a directory; the event is set whenever something in it has changed. Raises OSError."""
        if self._descriptor < 0:
            self._descriptor = _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
            self._loop.add_reader(self._descriptor, self._on_readable)
        try:
            watch = _checked(_libc.inotify_add_watch(self._descriptor, os.fsencode(path), _MASK))
        except OSError:
            self._close_if_unused()
            raise
        event = asyncio.Event()
        self._waiting.setdefault(watch, set()).add(event)
        return watch, event

    def remove(self, watch: int, event: asyncio.Event) -> None:
        """Forget one that waits."""
        waiting = self._waiting[watch]
        waiting.discard(event)
        if not waiting:
            del self._waiting[watch]
            _libc.inotify_rm_watch(self._descriptor, watch)  # fails for a directory that is gone, which is no matter
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._waiting:
            self.close()

    def _on_readable(self) -> None:
        data = os.read(self._descriptor, _READ_BYTES)
        position = 0
        while position < len(data):
            watch, _, _, length = _HEAD.unpack_from(data, position)
            position += _HEAD.size + length
            for event in self._waiting.get(watch, ()):
                event.set()


def _checked(number: int) -> int:
    if number < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return number


@asynccontextmanager
async def watched(path: Path) -> AsyncIterator[asyncio.Event]:
    """Watch a directory; clear the event, look, then wait for it. Raises OSError."""
    loop = asyncio.get_running_loop()
    watcher = _watchers.setdefault(loop, DirectoryWatcher())
    close_in_forked_child(watcher)
    watch, event = watcher.add(path)
    try:
        yield event
    finally:
        watcher.remove(watch, event)
