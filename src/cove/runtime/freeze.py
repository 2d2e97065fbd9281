"""Freeze all that runs in a jail, and thaw it: by its control group, else by SIGSTOP to every process. Blocks.

The freezer of the unified tree is invisible inside. Signals are not: parents of stopped processes could hear of it. So
parents are stopped before their children and go on after them, and who was stopped already stays so. What forks while
it is being stopped is looked for until a look finds nobody new. A vfork(2) takes no signal until its child runs another
program: whose child stands still stands still too.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cove.errors import SandboxUnavailable
from cove.runtime.cgroups import SandboxGroups
from cove.runtime.usage import frozen_processes_of, processes_of

FREEZE_SECONDS = 5.0
_LOOK_SECONDS = 0.0002
_STOPPED = ("T", "t", "Z", "X")
_FORKS = {"x86_64": (56, 58, 435), "aarch64": (220, 435)}.get(os.uname().machine, ())  # clone, vfork, clone3


class Frozen:
    """A jail that stands still; `stopped` are those that a signal has stopped, parents first, each with a pidfd."""

    def __init__(self, groups: SandboxGroups) -> None:
        self._group = groups.tree
        self._is_ours = False
        self.stopped: list[tuple[int, int]] = []

    def freeze(self, groups: SandboxGroups, jail_pid: int) -> None:
        """Freeze. What was frozen already stays so after `thaw`."""
        if self._group is None:
            _stop_all(groups, jail_pid, self.stopped, time.monotonic() + FREEZE_SECONDS)
        elif not self._group.is_frozen:
            self._is_ours = True
            if not self._group.freeze(FREEZE_SECONDS):
                raise SandboxUnavailable("the sandbox could not be frozen: something in it does not stop. Try again.")

    def thaw(self) -> None:
        """Let go on what was frozen here. Idempotent."""
        if self._group is not None and self._is_ours:
            self._group.thaw()
        for _, process in reversed(self.stopped):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGCONT)
            os.close(process)
        self.stopped.clear()


def freeze(groups: SandboxGroups, jail_pid: int) -> Frozen:
    """Hold everything inside still, the agent too. Raises SandboxUnavailable, and has thawed it, when it cannot be."""
    held = Frozen(groups)
    try:
        held.freeze(groups, jail_pid)
    except BaseException:
        held.thaw()
        raise
    return held


@contextmanager
def frozen(groups: SandboxGroups, jail_pid: int) -> Iterator[None]:
    """Hold everything inside still meanwhile. What is paused stays so."""
    held = freeze(groups, jail_pid)
    try:
        yield
    finally:
        held.thaw()


def _stop_all(groups: SandboxGroups, jail_pid: int, stopped: list[tuple[int, int]], until: float) -> None:
    """Parents come before children in a list of processes: `processes_of` without groups goes down from the jail.

    The first look is a quick one, which finds nearly all; those after it look at every process of the machine.
    """
    known: set[int] = set()
    found = frozen_processes_of(groups, jail_pid)
    while True:
        known.update(found)
        for pid in found:
            _stop(pid, stopped)
        for pid, _ in stopped:
            _await_stop(pid, known, until)
        found = [pid for pid in processes_of(groups, jail_pid) if pid not in known]
        if not found:
            return


def _stop(pid: int, stopped: list[tuple[int, int]]) -> None:
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        if all(_state(pid, task) in _STOPPED for task in _tasks(pid)):
            os.close(process)
            return
        stopped.append((pid, process))
        signal.pidfd_send_signal(process, signal.SIGSTOP)


def _await_stop(pid: int, known: set[int], until: float) -> None:
    while not all(_stands_still(pid, task, known) for task in _tasks(pid)):
        if time.monotonic() > until:
            raise SandboxUnavailable("the sandbox could not be stopped: a process of it waits for a disk. Try again.")
        time.sleep(_LOOK_SECONDS)  # nothing tells of a stop but the process's parent


def _tasks(pid: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def _stands_still(pid: int, task: str, known: set[int]) -> bool:
    state = _state(pid, task)
    return state in _STOPPED or (state == "D" and _forks(pid, task) and any(_is_held(child, pid) for child in known))


def _forks(pid: int, task: str) -> bool:
    with suppress(OSError, ValueError), open(f"/proc/{pid}/task/{task}/syscall") as file:
        return int(file.read().split()[0]) in _FORKS
    return False


def _is_held(child: int, parent: int) -> bool:
    fields = _stat(str(child))
    return fields[:1] in (["T"], ["t"]) and fields[1] == str(parent)


def _state(pid: int, task: str) -> str:
    return (_stat(f"{pid}/task/{task}") or ["X"])[0]


def _stat(process: str) -> list[str]:
    """Return what the kernel tells of a process from its state on: proc(5). Of one that is gone, nothing."""
    with suppress(OSError), open(f"/proc/{process}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
    return []
