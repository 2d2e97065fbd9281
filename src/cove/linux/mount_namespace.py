"""Bind mounts in another mount namespace: setns(2) and mount(2), by a thread that ends there. For root.

A bind costs some microseconds so. bubblewrap, which reads the mount table again for every one, needs a hundred.
"""

import ctypes
import os
import threading
from collections.abc import Mapping
from pathlib import Path

_CAP_SYS_ADMIN = 21
_CLONE_FS = 0x200
_CLONE_NEWNS = 0x20000
_MS_BIND = 0x1000

_library = ctypes.CDLL(None, use_errno=True)


def can_enter_namespaces() -> bool:
    """Return whether this process has CAP_SYS_ADMIN: root in a container may not."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def bind_inside(namespace: int, binds: Mapping[str, str]) -> None:
    """Bind, for each target, its source, both as paths in that namespace. A bind keeps the flags of its source."""
    visit = _Visit(namespace, binds)
    visit.start()
    visit.join()
    if visit.failure is not None:
        raise visit.failure


class _Visit(threading.Thread):
    """Has root and working directory of its own, so that no other thread goes where it does."""

    def __init__(self, namespace: int, binds: Mapping[str, str]) -> None:
        super().__init__(name="cove-mounts")
        self._namespace = namespace
        self._binds = binds
        self.failure: OSError | None = None

    def run(self) -> None:
        try:
            _check(_library.unshare(_CLONE_FS), "unshare")
            _check(_library.setns(self._namespace, _CLONE_NEWNS), "setns")
            for target, source in self._binds.items():
                _check(_library.mount(source.encode(), target.encode(), None, _MS_BIND, None), target)
        except OSError as error:
            self.failure = error


def _check(result: int, subject: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{subject}: {os.strerror(number)}")
