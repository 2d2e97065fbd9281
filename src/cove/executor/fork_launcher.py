"""The launcher of Python contexts: forks an executor instead of spawning a program, and adopts copies of it.

Theory of operation. An executor that is told to fork does so twice, and the one in the middle ends: the copy becomes a
child of this launcher, which is a subreaper. `adopt` makes it one of the family: its end is reported under a label, and
it can be signalled and ended alone, with all that it started. The process that was spawned has the empty label.

What belongs to whom? A copy sets its label as its limit of file locks, which means nothing to Linux and which every
process inherits (setrlimit(2), RLIMIT_LOCKS). A *branch* is one of the family, all below it, and of the other children
of the launcher those with its label. Those without a label that is in use belong to the spawned process.

What can go wrong, and why it does not:

- The executor names a process that is none of ours, or another one's copy: `adopt` takes a child only, and only once.
- A branch forks while it is ended: it is stopped first, until nothing new is found, and killed then. What is left after
  a second is counted, and the runtime asks again; in the end it ends the whole family.
- Code takes off its label and forks orphans. They outlive their branch, and go with the spawned process's, or with the
  launcher, which the runtime ends when the last of the family has ended.
"""

from __future__ import annotations

import _signal
import fcntl
import os
import posix
import select
import time

from cove.agent import init, kernel, launcher, protocol, spawn
from cove.executor import executor

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import resource

END_SECONDS = 1.0
ADOPT_SECONDS = 5.0
SPAWNED = b""


class ForkLauncher(launcher.Launcher):
    """A launcher whose processes are copies of itself that become executors.

    `copies` are the adopted ones by their labels; 0 stands for one that has ended.
    """

    def __init__(self, sock: _socket.socket, wakeup: int) -> None:
        super().__init__(sock, wakeup)
        self.copies: dict[bytes, int] = {}

    def start(
        self, argv: list[bytes], environ: dict[bytes, bytes], targets: list[int], descriptors: list[int], tty: bytes
    ) -> int:
        self.copies.clear()
        pid = posix.fork()
        if not pid:
            try:
                become_executor(environ, targets, descriptors)
            finally:
                posix._exit(1)
        return pid

    def obey(self, verb: bytes, rest: bytes) -> None:
        if verb == b"adopt":
            label, pid = rest.split(b"\0")
            answer = int(self.adopt(label, int(pid)))
        elif verb == b"end":
            answer = self.end(rest)
        else:
            raise protocol.ProtocolError("unknown verb")
        self.send(b"signaled", protocol.encode_number(answer))

    def choose(self, scope: bytes, label: bytes) -> list[int]:
        if scope == b"branch":
            return self.branch(label)
        if scope == b"copy":
            pid = self.copies.get(label, 0)
            return [pid] if pid else []
        return super().choose(scope, label)

    def adopt(self, label: bytes, pid: int) -> bool:
        """Report the end of a child from now on; returns whether it is one, and nobody's yet.

        It becomes one when the process in the middle has ended, which may be just ending.
        """
        facts = kernel.stat_fields(pid)
        if facts and int(facts[1]) != posix.getpid():
            await_end(int(facts[1]))
            facts = kernel.stat_fields(pid)
        known = (self.main, *self.copies.values())
        if not facts or int(facts[1]) != posix.getpid() or pid in known or label in self.copies:
            return False
        self.copies[label] = pid
        return True

    def branch(self, label: bytes) -> list[int]:
        """Find one of the family and what it started."""
        own = posix.getpid()
        members = {pid: each for each, pid in self.copies.items() if pid}
        owners: dict[int, bytes] = {}
        for pid, parent in kernel.descendants(own).items():
            if parent != own:
                owners[pid] = owners[parent]
            elif pid in members or pid == self.main:
                owners[pid] = members.get(pid, SPAWNED)
            else:
                inherited = kernel.label(pid)
                owners[pid] = inherited if inherited in (label, *self.copies) else SPAWNED
        return [pid for pid, owner in owners.items() if owner == label]

    def end(self, label: bytes) -> int:
        """Kill a branch and reap it; returns how many processes are left."""
        until = time.monotonic() + END_SECONDS
        held: set[int] = set()
        chosen = self.branch(label)
        while not held.issuperset(chosen) and time.monotonic() < until:
            kernel.signal_all([pid for pid in chosen if pid not in held], _signal.SIGSTOP)
            held.update(chosen)
            chosen = self.branch(label)
        kernel.signal_all(held, _signal.SIGKILL)
        while chosen and time.monotonic() < until:
            kernel.signal_all(chosen, _signal.SIGKILL)
            self.reap()
            chosen = self.branch(label)
        if not chosen:
            self.copies.pop(label, None)
        return len(chosen)

    def reaped(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        for label in [label for label, copy in self.copies.items() if copy == pid]:
            if posix.WIFSTOPPED(status):
                self.send(b"copy", label, b"stopped")
            else:
                self.copies[label] = 0
                self.report(status, usage, False, b"copy", label)


def await_end(pid: int) -> None:
    """Wait until a process has ended, so long at most: pidfd_open(2)."""
    try:
        ending = posix.pidfd_open(pid)
    except OSError:
        return  # it has
    try:
        poll = select.poll()
        poll.register(ending, select.POLLIN)
        poll.poll(ADOPT_SECONDS * 1000)
    finally:
        posix.close(ending)


def become_executor(environ: dict[bytes, bytes], targets: list[int], descriptors: list[int]) -> None:
    """Leave everything of the launcher behind, then serve the context's channel."""
    posix.setsid()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, spawn.FIRST_SPARE_DESCRIPTOR) for fd in descriptors]
    for fd, target in zip(high, targets):
        posix.dup2(fd, target)
    posix.closerange(max(targets) + 1, init.EVERY_DESCRIPTOR)
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)  # as in every Python: a broken pipe is an OSError
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    kernel.unguard_process()
    os.environ.clear()
    for name, value in environ.items():
        os.environb[name] = value
    executor.run(channel=3)
