"""Perform actions on a jail: by a helper process, or, where root needs no other rights, by a thread."""

import array
import errno
import os
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cove.attach import program
from cove.attach.actions import Action, CloneTree, Namespace, Step, plan
from cove.attach.target import Target
from cove.errors import CoveError, MountNotFound, PermissionDenied, PortInUse, SandboxUnavailable, from_errno
from cove.linux.thread_user import as_user

SECONDS = 10.0
_ANSWER_BYTES = 4096
_CONNECT_SECONDS = 1.0
_CAP_SYS_ADMIN = 21
_ABOUT_PATHS = frozenset({"tree", "place", "move", "clone", "attach", "unmount"})


class MountBusy(Exception):
    """Somebody has a file open for writing by a mount that was to be sealed: nothing has changed."""


@dataclass(slots=True)
class Attached:
    """Result of actions: the sockets and trees that were made, in order, and the limits that the kernel did not take.

    A tree is a descriptor of a detached mount.
    """

    sockets: list[socket.socket] = field(default_factory=list)
    trees: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Close the sockets and trees that nobody wants."""
        for sock in self.sockets:
            sock.close()
        for tree in self.trees:
            os.close(tree)


class Helper(Protocol):
    """Performs actions on one jail, once."""

    def perform(self, target: Target, actions: Sequence[Action], seconds: float = SECONDS) -> Attached:
        """Do all, or raise at the first that fails. Blocks, but not for longer."""

    def close(self) -> None:
        """End it at whatever point. Idempotent. Blocks, but not for long."""


class Thread(Helper):
    """A thread of ours that enters the mount and network namespaces, and ends there: root with CAP_SYS_ADMIN may."""

    def perform(self, target: Target, actions: Sequence[Action], seconds: float = SECONDS) -> Attached:
        visit = _Visit(target, [step for step in plan(actions) if step.namespace is not Namespace.USER])
        visit.start()
        visit.join()
        if visit.failure is not None:
            raise visit.failure
        return visit.attached

    def close(self) -> None:
        return


class _Visit(threading.Thread):
    """Has namespaces, root and working directory of its own, so that no other thread goes where it does."""

    def __init__(self, target: Target, steps: Sequence[Step]) -> None:
        super().__init__(name="cove-attach")
        self._target = target
        self._steps = steps
        self.attached = Attached()
        self.failure: Exception | None = None

    def run(self) -> None:
        performer = program.Performer()
        try:
            self.attached.refused = _perform(self._target, self._steps, performer.perform)
            self.attached.sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in performer.sockets]
        except (OSError, CoveError) as error:
            self.failure = error
        finally:
            performer.close()


class Process(Helper):
    """A process of the sandbox's user, whose interpreter starts while there is nothing to do for it yet."""

    def __init__(
        self, sock: socket.socket, process: "subprocess.Popen[bytes] | None" = None, *, becomes: int | None = None
    ) -> None:
        """`process` is our child, if it is; it `becomes` that user before all else."""
        self._sock = sock
        self.process = process
        self._becomes = becomes

    def perform(self, target: Target, actions: Sequence[Action], seconds: float = SECONDS) -> Attached:
        until = time.monotonic() + seconds
        try:
            self._ask(f"begin\0{seconds:.0f}".encode(), [], until)
            if self._becomes is not None:
                self._ask(f"become\0{self._becomes}".encode(), [], until)
            refused = _perform(target, plan(actions), lambda packet, sent: self._ask(packet, sent, until))
            given = self._ask(b"give", [], until)
        except TimeoutError as error:
            raise SandboxUnavailable(f"attaching to the sandbox took longer than {seconds:g} s") from error
        except program.Failed as failure:
            raise SandboxUnavailable(f"attaching to the sandbox failed: {os.strerror(failure.number)}") from failure
        except ConnectionError as error:
            raise SandboxUnavailable("the helper that attaches to the sandbox has ended: try again") from error
        clones = sum(isinstance(action, CloneTree) for action in actions)
        sockets, trees = given[: len(given) - clones], given[len(given) - clones :]
        return Attached([socket.socket(fileno=each) for each in sockets], trees, refused)

    def isolate(self) -> None:
        """Have it enter a user namespace of its own, for others to map and to hold."""
        until = time.monotonic() + SECONDS
        self._ask(f"begin\0{SECONDS:.0f}".encode(), [], until)
        self._ask(b"isolate", [], until)

    def _ask(self, packet: bytes, descriptors: Sequence[int], until: float) -> list[int]:
        self._sock.settimeout(max(until - time.monotonic(), 0.001))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self._sock.sendmsg([packet], rights)
        answer, given, _, _ = socket.recv_fds(
            self._sock, _ANSWER_BYTES, program.MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not answer:
            raise ConnectionResetError
        kind, *fields = answer.split(b"\0", 2)
        if kind == b"error":
            raise program.Failed(int(fields[0]), fields[1].decode("utf-8", "surrogateescape"))
        return given

    def close(self) -> None:
        self._sock.close()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            self.process.wait()


def can_enter_namespaces() -> bool:
    """Return whether this process has CAP_SYS_ADMIN: root in a container may not."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def fork_process(socket_path: str, user_id: int | None) -> Process | None:
    """Have a helper forked by whoever listens there, as that user; None when nobody does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(_CONNECT_SECONDS)
    try:
        sock.connect(socket_path)
    except OSError:
        sock.close()
        return None
    return Process(sock, becomes=user_id)


def start_process(command: Sequence[str], user_id: int | None) -> Process:
    """Start the helper as that user, or as ours. Blocks."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            with as_user(user_id):
                process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                )
        except BaseException:
            ours.close()
            raise
    return Process(ours, process)


@dataclass(frozen=True, slots=True)
class _Source:
    path: str
    descriptor: int


Perform = Callable[[bytes, list[int]], object]


def _perform(target: Target, steps: Sequence[Step], perform: Perform) -> list[str]:
    """Perform the steps; returns what was refused and may be."""
    refused = []
    with ExitStack() as stack:
        wanted = {step.namespace for step in steps if step.namespace is not None}
        namespaces = stack.enter_context(target.open(wanted))
        left = deque(steps)
        while left:
            step = left.popleft()
            try:
                _perform_step(step, namespaces, stack, perform)
            except program.Failed as failure:
                if step.otherwise is not None and failure.number != errno.EADDRINUSE:
                    left.extendleft(reversed(step.otherwise))
                elif step.may_fail:
                    refused.append(f"{failure.subject}: {os.strerror(failure.number)}")
                else:
                    raise _translate(step, failure) from None
    return refused


def _perform_step(step: Step, namespaces: Mapping[Namespace, int], stack: ExitStack, perform: Perform) -> None:
    fields, descriptors = list(step.fields), []
    if step.namespace is not None:
        descriptors = [namespaces[step.namespace]]
    elif step.source is not None:
        source = _open_source(step.source, stack)
        fields, descriptors = [*step.fields, source.path], [source.descriptor]
    elif step.descriptor is not None:
        descriptors = [step.descriptor]
    perform("\0".join([step.verb, *fields]).encode("utf-8", "surrogateescape"), descriptors)


def _open_source(source: str | int, stack: ExitStack) -> _Source:
    """Hold the file; the helper opens its path without links, and goes on only if that leads to the same."""
    try:
        descriptor = os.open(source, os.O_PATH | os.O_CLOEXEC) if isinstance(source, str) else os.dup(source)
        stack.callback(os.close, descriptor)
        return _Source(os.readlink(f"/proc/self/fd/{descriptor}"), descriptor)
    except OSError as error:
        raise from_errno(error.errno or 0, f"file {source} of the host") from None


def _translate(step: Step, failure: program.Failed) -> Exception:
    reason = os.strerror(failure.number)
    if step.verb in ("socket", "listen", "lead") and failure.number == errno.EADDRINUSE:
        return PortInUse(
            f"port {failure.subject} is in use inside the sandbox: end what listens on it, or leave it out",
            port=int(failure.subject),
        )
    if step.verb == "readonly" and failure.number == errno.EBUSY:
        return MountBusy(failure.subject)
    if failure.number == errno.ELOOP:
        return PermissionDenied(f"mount target {failure.subject}: there is a symbolic link, and none is followed")
    if failure.number == errno.ESTALE and step.verb == "unmount":
        return MountNotFound(f"nothing that was mounted there stands at {failure.subject}: its parent was moved away")
    if failure.number == errno.ESTALE:
        return PermissionDenied(f"file {failure.subject} of the host was replaced by another meanwhile")
    if step.verb == "copytree":
        return SandboxUnavailable(f"the sandbox's files could not be copied: {failure.subject}")
    if step.verb in _ABOUT_PATHS:
        return from_errno(failure.number, f"mount {failure.subject}")
    return SandboxUnavailable(f"the kernel does not let Cove attach to the sandbox: {failure.subject}: {reason}")
