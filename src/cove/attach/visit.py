"""Perform actions on a jail: by a helper process, or, where root needs no other rights, by a thread."""

import array
import errno
import os
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from cove.attach import kernel, program
from cove.attach.actions import Action, CloneTree, Namespace, Step, plan, prelude
from cove.attach.performer import Performer
from cove.attach.target import Target
from cove.errors import CoveError, MountNotFound, PermissionDenied, PortInUse, SandboxUnavailable, from_errno
from cove.linux.thread_user import as_user

SECONDS = 10.0
_ANSWER_BYTES = 4096
# Of one packet; the sizes and a long last step have room beside them.
_MOST_STEPS = 128
_STEPS_BYTES = program.PACKET_BYTES // 2
_CONNECT_SECONDS = 1.0
_CAP_SYS_ADMIN = 21
_ABOUT_PATHS = frozenset({"tree", "place", "move", "clone", "attach", "unmount"})


# A step for the helper, and the descriptors that go with it.
Request = tuple[bytes, list[int]]


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
        performer = Performer()
        try:
            self.attached.refused, _ = _perform(self._target, self._steps, partial(_perform_here, performer))
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
        self._has_begun = False

    def wait_ready(self) -> None:
        """Wait until it runs: what is performed then takes no more time than the kernel's. Raises as `perform` does."""
        until = time.monotonic() + SECONDS
        with _told(SECONDS):
            self._ask([(step.encode(), []) for step in self._first_steps(SECONDS)], until)
        self._becomes = None

    def begin(self, target: Target, actions: Sequence[Action]) -> None:
        """Do what of these actions changes nothing inside: `perform` with the same actions does the rest."""
        until = time.monotonic() + SECONDS
        with _told(SECONDS):
            _perform(target, [*self._first_steps(SECONDS), *prelude(actions)], lambda steps: self._ask(steps, until))
        self._becomes, self._has_begun = None, True

    def perform(self, target: Target, actions: Sequence[Action], seconds: float = SECONDS) -> Attached:
        until = time.monotonic() + seconds
        planned = plan(actions, has_begun=self._has_begun)
        steps = [*self._first_steps(seconds), *planned, Step("give")]
        with _told(seconds):
            refused, given = _perform(target, steps, lambda requests: self._ask(requests, until))
        clones = sum(isinstance(action, CloneTree) for action in actions)
        sockets, trees = given[: len(given) - clones], given[len(given) - clones :]
        return Attached([socket.socket(fileno=each) for each in sockets], trees, refused)

    def isolate(self) -> None:
        """Have it enter a user namespace of its own, for others to map and to hold."""
        until = time.monotonic() + SECONDS
        steps = [*self._first_steps(SECONDS), Step("isolate")]
        self._ask([(step.encode(), []) for step in steps], until)

    def _first_steps(self, seconds: float) -> list[Step]:
        become = [] if self._becomes is None else [Step("become", (str(self._becomes),))]
        return [Step("begin", (f"{seconds:.0f}",)), *become]

    def _ask(self, requests: Sequence[Request], until: float) -> list[int]:
        self._sock.settimeout(max(until - time.monotonic(), 0.001))
        sizes = " ".join(f"{len(step)}.{len(descriptors)}" for step, descriptors in requests)
        descriptors = [each for _, sent in requests for each in sent]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self._sock.sendmsg([sizes.encode(), b"\n", *(step for step, _ in requests)], rights)
        answer, given, _, _ = socket.recv_fds(
            self._sock, _ANSWER_BYTES, program.MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not answer:
            raise ConnectionResetError
        kind, *fields = answer.split(b"\0", 3)
        if kind == b"error":
            number, at, subject = fields
            raise kernel.Failed(int(number), subject.decode("utf-8", "surrogateescape"), int(at))
        return given

    def close(self) -> None:
        self._sock.close()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            self.process.wait()


class Nursery:
    """A helper that enters no jail and forks others: many that start at once pay for one interpreter."""

    def __init__(self, command: Sequence[str]) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = _start_program(command, theirs)
            except BaseException:
                self._sock.close()
                raise

    def fork(self, user_id: int | None) -> Process | None:
        """Have one forked, as that user; None when this one has ended. Any thread may ask."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._sock, [program.FORK], [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        return Process(ours, becomes=user_id)

    def close(self) -> None:
        """End it; those that it has forked go on. Idempotent. Blocks, but not for long."""
        self._sock.close()
        self._process.kill()
        self._process.wait()


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
                process = _start_program(command, theirs)
        except BaseException:
            ours.close()
            raise
    return Process(ours, process)


def _start_program(command: Sequence[str], sock: socket.socket) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command, stdin=sock.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}, cwd="/"
    )


@contextmanager
def _told(seconds: float) -> Iterator[None]:
    """Say what became of the helper itself."""
    try:
        yield
    except TimeoutError as error:
        raise SandboxUnavailable(f"attaching to the sandbox took longer than {seconds:g} s") from error
    except kernel.Failed as failure:
        raise SandboxUnavailable(f"attaching to the sandbox failed: {os.strerror(failure.number)}") from failure
    except ConnectionError as error:
        raise SandboxUnavailable("the helper that attaches to the sandbox has ended: try again") from error


@dataclass(frozen=True, slots=True)
class _Source:
    path: str
    descriptor: int


Perform = Callable[[Sequence[Request]], list[int]]


def _perform(target: Target, steps: Sequence[Step], perform: Perform) -> tuple[list[str], list[int]]:
    """Perform the steps; returns what was refused and may be, and the descriptors that were given."""
    refused: list[str] = []
    given: list[int] = []
    with ExitStack() as stack:
        wanted = {step.namespace for step in steps if step.namespace is not None}
        namespaces = stack.enter_context(target.open(wanted))
        left = deque((step, _request(step, namespaces, stack)) for step in steps)
        while left:
            packet = _take(left)
            try:
                given += perform([request for _, request in packet])
            except kernel.Failed as failure:
                step, _ = packet[failure.at]
                if step.otherwise is not None and failure.number != errno.EADDRINUSE:
                    others = [(each, _request(each, namespaces, stack)) for each in step.otherwise]
                    left.extendleft(reversed(others))
                elif step.may_fail:
                    refused.append(f"{failure.subject}: {os.strerror(failure.number)}")
                else:
                    raise _translate(step, failure) from None
    return refused, given


def _take(left: "deque[tuple[Step, Request]]") -> list[tuple[Step, Request]]:
    """Take the steps of the next packet: what is to go on after a failure goes alone."""
    packet = [left.popleft()]
    size = len(packet[0][1][0])
    while left and not packet[-1][0].can_go_on and not left[0][0].can_go_on and len(packet) < _MOST_STEPS:
        size += len(left[0][1][0])
        if size > _STEPS_BYTES:
            break
        packet.append(left.popleft())
    return packet


def _perform_here(performer: Performer, requests: Sequence[Request]) -> list[int]:
    performer.perform_all([*requests])
    return []


def _request(step: Step, namespaces: Mapping[Namespace, int], stack: ExitStack) -> Request:
    if step.namespace is not None:
        return step.encode(), [namespaces[step.namespace]]
    if step.source is not None:
        source = _open_source(step.source, stack)
        return step.encode(source.path), [source.descriptor]
    return step.encode(), [] if step.descriptor is None else [step.descriptor]


def _open_source(source: str | int, stack: ExitStack) -> _Source:
    """Hold the file; the helper opens its path without links, and goes on only if that leads to the same."""
    try:
        descriptor = os.open(source, os.O_PATH | os.O_CLOEXEC) if isinstance(source, str) else os.dup(source)
        stack.callback(os.close, descriptor)
        return _Source(os.readlink(f"/proc/self/fd/{descriptor}"), descriptor)
    except OSError as error:
        raise from_errno(error.errno or 0, f"file {source} of the host") from None


def _translate(step: Step, failure: kernel.Failed) -> Exception:
    reason = os.strerror(failure.number)
    if failure.number == errno.ENOSYS:
        return SandboxUnavailable(f"this needs Linux 5.14 or newer, the kernel is {os.uname().release}: {reason}")
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
