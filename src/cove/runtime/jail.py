"""Start and end one jail: the bwrap process, the agent in it, and their control groups."""

import asyncio
import os
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cove.attach import (
    SECONDS,
    Action,
    Attached,
    Binds,
    CloneTree,
    MountOptions,
    NetworkSysctls,
    NoNamespaces,
    ReadOnly,
    ShowLayers,
    Sysctls,
    Target,
)
from cove.core.jail import copied_masks
from cove.core.limits import CORE_BYTES
from cove.core.mount import bound
from cove.errors import CoveError, SandboxUnavailable, ValidationFailed
from cove.layers.record import System
from cove.linux.bubblewrap import explain_refusal
from cove.linux.packets import socket_pair
from cove.linux.pidfd import parent_of, reap, wait_for_end
from cove.linux.thread_user import as_user
from cove.linux.user_map import write_user_map
from cove.local.threads import close_in_thread, in_starter_thread, in_thread, start_in_thread
from cove.model import Network, SandboxSpec
from cove.runtime.attachment import Attachment
from cove.runtime.attachment import attach as attach_to
from cove.runtime.cgroups import SandboxGroups
from cove.runtime.home import Place
from cove.runtime.isolation import Launch, backend_of
from cove.runtime.link import Link
from cove.runtime.machine import Machine
from cove.runtime.mounts import OpenMounts, open_mounts
from cove.runtime.shared_limits import shared_limits
from cove.tasks import Tasks, settled

_START_SECONDS = 30.0
_STOP_SECONDS = 5.0


def _start_fails(_: str) -> None:
    """Do nothing: who starts a jail sees for itself that it did not start."""


def _do_nothing(_: "Jail") -> None:
    """Wait with the launchers until the jail stands."""


@dataclass(slots=True)
class Jail:
    """A living jail. `pid` is our child: bwrap, or the agent itself where the backend has no process of its own.

    `agent_pid` is the agent's on the host. `_agent` is a pidfd of it when that is bwrap's child: all inside is gone
    when the agent is, not bwrap. `sockets` are those that were asked for with its start, until somebody takes them.
    """

    pid: int
    link: Link
    groups: SandboxGroups
    _errors: int
    exited: "asyncio.Future[None]"
    _agent: int | None = None
    agent_pid: int = 0
    lose: Callable[[str], None] = _start_fails
    sockets: list[socket.socket] = field(default_factory=list)
    _machine: Machine | None = None
    _user_id: int | None = None

    async def attach(self, actions: Sequence[Action]) -> list[socket.socket]:
        """Do what the actions say, and return the sockets that they give. See cove.attach for what is raised.

        A cancelled call waits until it is known what was done, and closes them.
        """
        return (await self._perform(actions)).sockets

    async def clone_tree(self, action: CloneTree) -> int:
        """Return a detached tree, which the caller closes."""
        (tree,) = (await self._perform([action])).trees
        return tree

    async def _perform(self, actions: Sequence[Action]) -> Attached:
        assert self._machine is not None
        return await settled(start_in_thread(attach_to, self._machine, self.target, actions), discard=Attached.close)

    def perform(self, actions: Sequence[Action], seconds: float = SECONDS) -> Attached:
        """Do what the actions say. Blocks."""
        assert self._machine is not None
        return attach_to(self._machine, self.target, actions, seconds)

    @property
    def target(self) -> Target:
        """The agent, as somebody to attach to."""
        if self._agent is None or self.link.closed:
            raise ValidationFailed("nothing can be attached to a sandbox without isolation, or one that has ended")
        return Target(self._agent, self.agent_pid, self._user_id)

    @property
    def is_confined(self) -> bool:
        """Return whether the agent is PID 1 of namespaces of its own."""
        return self._agent is not None

    def read_errors(self) -> str:
        """Return what bwrap or the agent has written to standard error."""
        try:
            return os.read(self._errors, 65536).decode("utf-8", "replace")
        except BlockingIOError:
            return ""

    def kill(self) -> None:
        """End the agent, and with it everything inside, whatever any of it does: pid_namespaces(7). Idempotent.

        Where it is no PID 1, nobody but the agent itself can end what it started: it does when the link is closed.
        """
        self.link.close()
        self._kill_agent()

    def _kill_agent(self) -> None:
        if self._agent is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._agent, signal.SIGKILL)

    async def close(self) -> None:
        """End the agent and with it everything inside; returns when it is gone. Once only."""
        self.kill()
        done, _ = await asyncio.wait([self.exited], timeout=_STOP_SECONDS)
        if not done:
            os.kill(self.pid, signal.SIGKILL)
            await self.exited
        if self._agent is not None:
            await _readable(self._agent)
            os.close(self._agent)
        os.close(self._errors)
        for sock in self.sockets:
            sock.close()
        await close_in_thread([])  # after what it was given to close before
        await in_thread(self.groups.remove)

    def abandon(self) -> None:
        """End it without an event loop. Blocks until it is gone."""
        self.link.abandon()
        self._kill_agent()
        if not self.exited.done():
            child = os.pidfd_open(self.pid)
            if not wait_for_end(child, _STOP_SECONDS):
                os.kill(self.pid, signal.SIGKILL)
            os.close(child)
            reap(self.pid)
        if self._agent is not None:
            wait_for_end(self._agent, _STOP_SECONDS)
        self.groups.remove()


async def start_jail(
    machine: Machine,
    place: Place,
    spec: SandboxSpec,
    groups: SandboxGroups,
    on_lost: Callable[[str], None],
    attach: Sequence[Action] = (),
    directories: Sequence[Path] = (),
    on_settled: Callable[[Jail], None] = lambda _: None,
    system: System | None = None,
) -> Jail:
    """Start the agent, confined as the spec says, and wait for its first word. The caller shields it from cancel.

    What is to be attached is, before anything runs inside; the sockets are the jail's. `on_settled` is called when the
    agent is in its control groups, and so will be what it forks: from then on it can be asked for launchers. With the
    `system` of an image that is when it has its root.
    """
    with ExitStack() as stack:
        ours, theirs = socket_pair()
        stack.callback(theirs.close)
        undo = stack.enter_context(ExitStack())
        undo.callback(ours.close)
        info = _pipe(stack, stack)
        errors = _pipe(undo, stack)
        block = _pipe(stack, stack) if place.users > 1 else None
        if block is not None:
            os.set_blocking(block[0], True)
        mounts = OpenMounts()
        if binds := bound(spec.mounts):
            mounts = await in_thread(stack.enter_context, open_mounts(binds, str(machine.home.path)))
        launch = Launch(
            machine=machine,
            place=place,
            spec=spec,
            mounts=mounts,
            system=system,
            limits=groups.process_limits,
            directories=directories,
            control=theirs.fileno(),
            info=info[1],
            block=None if block is None else block[0],
        )
        pid, pidfd, attachment = await in_starter_thread(_launch, launch, stack, errors[1], attach)
        undo.pop_all()
        link = Link(ours, lambda reason: jail.lose(reason))  # noqa: PLW0108  # the jail is made in the next line
        jail = Jail(pid, link, groups, errors[0], _watch(pidfd, pid), _machine=machine, _user_id=place.user_id)
        try:
            async with asyncio.timeout(_START_SECONDS):
                # A process that is forked while the root is replaced may keep the old one: pivot_root(2).
                await _begin(jail, info[0], block and block[1], launch, on_settled if system is None else _do_nothing)
                if attachment is not None:  # nothing has run inside yet
                    await in_thread(_finish, jail, attachment, mounts)
                if system is not None:
                    on_settled(jail)
        except BaseException as error:
            if attachment is not None:
                await in_thread(attachment.close)
            complaint = jail.read_errors()
            await jail.close()
            if not isinstance(error, TimeoutError | OSError):
                raise
            reason = await in_thread(explain_refusal, complaint or _guess(error, spec))
            raise SandboxUnavailable(f"the sandbox did not start: {reason}") from error
        jail.lose = on_lost
        return jail


def _pipe(read_stack: ExitStack, write_stack: ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    read_stack.callback(os.close, read)
    write_stack.callback(os.close, write)
    return read, write


def _launch(
    launch: Launch, stack: ExitStack, errors: int, attach: Sequence[Action]
) -> tuple[int, int, Attachment | None]:
    """Start our child and, beside it, what will attach to its jail: one visit to the thread."""
    backend = backend_of(launch.spec.isolation)
    command, keep = backend.command(launch, stack)
    pid, pidfd = _popen(command, keep, errors, launch.place.user_id if backend.has_user_of_its_own else None)
    if not backend.tells_agent_pid:
        return pid, pidfd, None
    attachment = Attachment(launch.machine, launch.place.user_id, _actions(launch, attach))
    try:
        attachment.prepare()
        return pid, pidfd, attachment
    except OSError:
        os.kill(pid, signal.SIGKILL)
        reap(pid)
        os.close(pidfd)
        raise


def _actions(launch: Launch, attach: Sequence[Action]) -> list[Action]:
    """All that is done to a jail before anything runs in it."""
    masks = copied_masks(launch.host)
    layers = [_with_mounts(launch, action) for action in attach if isinstance(action, ShowLayers)]
    others = [action for action in attach if not isinstance(action, ShowLayers)]
    return [
        *shared_limits(),
        *_user_actions(launch),
        *([Binds(masks)] if masks else []),
        *layers,
        *launch.mounts.moves,
        *others,
    ]


def _user_actions(launch: Launch) -> list[Action]:
    """Keep root of an image from namespaces and settings; let all have every port where the network is their own."""
    if launch.system is None:
        return []
    actions: list[Action] = [NoNamespaces()] if launch.place.users > 1 else []
    actions.append(ReadOnly(["/proc/sys"]))
    if launch.spec.network is not Network.HOST:
        actions.append(NetworkSysctls({"ipv4/ip_unprivileged_port_start": "0"}))
    return actions


def _with_mounts(launch: Launch, layers: ShowLayers) -> ShowLayers:
    """Take what bubblewrap has mounted in the old root along to the new one."""
    if launch.system is None:
        return layers
    staged = launch.mounts.staged.values()
    targets = [mount.target for mount in launch.mounts.mounts if mount not in staged]
    if launch.spec.network is Network.HOST and launch.host.resolv_conf is not None:
        targets.append("/etc/resolv.conf")
    return replace(layers, below=(*layers.below, *targets))


def _finish(jail: Jail, attachment: Attachment, mounts: OpenMounts) -> None:
    """Mask, limit and mount what only a jail that stands can be given. What fails here fails the start.

    Limits that do not hold fail nothing: the sandbox says so.
    """
    target = jail.target
    try:
        attached = attachment.perform(target)
    except CoveError as error:
        if not all(isinstance(action, Sysctls | MountOptions) for action in attachment.actions):
            raise
        attached = Attached(refused=[error.message])
    finally:
        attachment.close()
    jail.sockets = attached.sockets
    jail.groups.not_held = "; ".join(attached.refused) or None
    mounts.check(target)


def _popen(command: list[str], keep: Sequence[int], errors: int, user_id: int | None) -> tuple[int, int]:
    """Start our child, as that user, with nothing of ours but these descriptors: no environment, no terminal."""
    with as_user(user_id):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=keep,
            env={},
            cwd="/",
            start_new_session=True,
        )
    with process:
        pidfd = os.pidfd_open(process.pid)
        process.returncode = 0  # from here on the child is waited for by its pidfd
    return process.pid, pidfd


def _watch(pidfd: int, pid: int) -> "asyncio.Future[None]":
    """A future that is done when our child has ended and is reaped."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[None] = loop.create_future()

    def on_exit() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        reap(pid)
        exited.set_result(None)

    loop.add_reader(pidfd, on_exit)
    return exited


async def _await_hello(jail: Jail) -> None:
    await asyncio.wait([jail.link.hello, jail.exited], return_when=asyncio.FIRST_COMPLETED)
    if not jail.link.hello.done() or jail.link.hello.cancelled():
        raise ConnectionResetError("bwrap gave no reason")


def _guess(error: Exception, spec: SandboxSpec) -> str:
    """Guess what a jail that ended without a word may have died of."""
    memory = spec.limits.memory
    if memory is None or not isinstance(error, ConnectionResetError):
        return str(error)
    return f"it ended before it was ready: {memory} bytes of memory may be too few, try a higher limit"


async def _begin(jail: Jail, info: int, block: int | None, launch: Launch, on_settled: Callable[[Jail], None]) -> None:
    """Wait for the agent's first word; meanwhile, while its interpreter still starts, move it to its groups."""
    async with Tasks() as tasks:
        entering = tasks.start(_settle(jail, info, block, launch, on_settled))
        await _await_hello(jail)
        await entering


async def _settle(jail: Jail, info: int, block: int | None, launch: Launch, on_settled: Callable[[Jail], None]) -> None:
    """Do what is done to the agent from outside while it starts."""
    jail.agent_pid = jail.pid
    if backend_of(launch.spec.isolation).tells_agent_pid:
        jail.agent_pid = await _read_child_pid(info)
        jail._agent = await _pin(jail.agent_pid, jail.pid)
    if block is not None:
        await in_thread(_map_users, jail, block, launch.place)
    await in_thread(_settle_agent, jail, launch)
    on_settled(jail)


def _map_users(jail: Jail, block: int, place: Place) -> None:
    """Map the users of the place, for which bubblewrap waits."""
    assert jail._agent is not None
    assert place.user_id is not None
    write_user_map(jail._agent, jail.agent_pid, place.user_id, place.users)
    os.write(block, b"1")


async def _pin(pid: int, parent: int) -> int:
    """Open a pidfd of that child of our child, which is not reaped: a process that has its pid after it has another."""
    pidfd = os.pidfd_open(pid)
    try:
        if await in_thread(parent_of, pid) != parent:
            raise ConnectionResetError("the agent has ended")
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def _settle_agent(jail: Jail, launch: Launch) -> None:
    """Its limits as its own user: root may lack the capability to set those of another user's process."""
    if jail._agent is not None:
        with as_user(launch.place.user_id):
            resource.prlimit(jail.agent_pid, resource.RLIMIT_CORE, (CORE_BYTES, CORE_BYTES))
    jail.groups.enter(jail.agent_pid)


async def _read_child_pid(info: int) -> int:
    """The agent's pid on the host as bwrap tells it."""
    await _readable(info)
    found = re.search(rb'"child-pid": *(\d+)', os.read(info, 4096))
    if found is None:
        raise ConnectionResetError("bwrap gave no reason")
    return int(found[1])


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        loop.remove_reader(descriptor)
        readable.set_result(None)

    loop.add_reader(descriptor, on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
