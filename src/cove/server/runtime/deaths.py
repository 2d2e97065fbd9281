"""Notice runtimes that die: the zygote's own are its children, and those of zygotes before it are watched by pidfd.

The signal of a child's end can come at any moment; all that is done then is to collect it. What there is to say of it
is said in the zygote's loop, which an eventfd(2) wakes up.
"""

import os
import select
from contextlib import suppress
from itertools import islice

from cove.errors import CoveError
from cove.linux.pidfd import open_process
from cove.model import SandboxStatus
from cove.server.announcement import Death, LogFormat, announce_death
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.start_protocol import RUNTIME_KILLED

_NOBODYS = "it had no sandbox, or one that nobody was given"
# Each takes a descriptor.
_MOST_WATCHED = 512


class Deaths:
    """The runtimes whose end is announced, if nobody wanted it. Single-threaded, as the zygote is."""

    def __init__(self, directory: Directory, form: LogFormat, supervisor: int) -> None:
        self._directory = directory
        self._form = form
        self._supervisor = supervisor
        self.runtimes: set[int] = set()
        self._reaped: list[tuple[int, int]] = []
        self._others: dict[int, tuple[int, Record]] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.poll = select.poll()
        self.poll.register(self._wake, select.POLLIN)

    def watch_others(self) -> None:
        """Watch the runtimes that an earlier zygote has forked."""
        for record in islice(self._directory.list(), _MOST_WATCHED):
            holder = self._directory.holder(record.key) if self._directory.is_held(record.key) else None
            pidfd = None if holder is None else open_process(*holder)
            if holder is not None and pidfd is not None:
                self._others[pidfd] = holder[0], record
                self.poll.register(pidfd, select.POLLIN)

    def reap(self) -> None:
        """Collect what has ended. What was killed has left something, which is swept."""
        with suppress(ChildProcessError, ProcessLookupError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                end = os.waitstatus_to_exitcode(found[1])
                self._reaped.append((found[0], end))
                os.eventfd_write(self._wake, 1)
                if end < 0:
                    os.kill(self._supervisor, RUNTIME_KILLED)

    def tell(self, ready: int) -> None:
        """Say what there is to say when one of the descriptors is ready."""
        if ready in self._others:
            self._tell_other(ready)
            return
        os.eventfd_read(self._wake)
        while self._reaped:
            pid, end = self._reaped.pop(0)
            if pid in self.runtimes:
                self.runtimes.discard(pid)
                if end:
                    self._announce(pid, end, self._find(pid))

    def _tell_other(self, pidfd: int) -> None:
        """Of one that is no child, its record says how it has ended."""
        pid, record = self._others.pop(pidfd)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        with suppress(CoveError):
            left = self._directory.read(record.key)
            if left is not None and self._directory.status(left) is SandboxStatus.LOST:
                self._announce(pid, None, left)
                os.kill(self._supervisor, RUNTIME_KILLED)

    def _find(self, pid: int) -> Record | None:
        """Find the sandbox whose runtime it was, by what that has left."""
        for record in self._directory.list():
            holder = self._directory.holder(record.key)
            if holder is not None and holder[0] == pid:
                return record
        return None

    def _announce(self, pid: int, end: int | None, record: Record | None) -> None:
        then = _NOBODYS if record is None else f"what ran in sandbox {record.id} is lost, and its files are kept"
        death = Death("runtime", pid, end, then)
        id, owner = (None, None) if record is None else (record.id, record.tenant or None)
        announce_death(self._directory.home, self._form, death, sandbox=id, owner=owner)
