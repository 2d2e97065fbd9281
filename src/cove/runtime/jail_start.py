"""Start one jail: bwrap, the agent in it, its control groups, and what is attached before anything runs inside.

Theory of operation. While bwrap builds the jail and the agent's interpreter starts, which takes most of the time, all
that needs neither is done beside it: the agent enters its control groups, the layers that it will see are opened with
the owners that they are to have and, where its users are mapped by us, put together in its user namespace. When the
agent has said its first word the jail stands, and only then its mounts are changed.
"""

import asyncio
import errno
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from cove.attach import (
    Action,
    Attached,
    Binds,
    MountOptions,
    NetworkSysctls,
    NoNamespaces,
    ReadOnly,
    ShowLayers,
    Sysctls,
)
from cove.core.jail import copied_masks
from cove.core.limits import CORE_BYTES
from cove.core.mount import bound
from cove.errors import CoveError, SandboxUnavailable
from cove.layers.record import System
from cove.linux.bubblewrap import explain_refusal
from cove.linux.packets import socket_pair
from cove.linux.pidfd import parent_of, reap
from cove.linux.thread_user import as_user
from cove.linux.user_map import write_user_map
from cove.local.threads import finished, in_starter_thread, in_thread, start_in_thread
from cove.model import Network, SandboxSpec
from cove.runtime.attachment import Attachment
from cove.runtime.cgroups import SandboxGroups
from cove.runtime.home import Place
from cove.runtime.isolation import Launch, backend_of
from cove.runtime.isolation.bubblewrap import most_processes
from cove.runtime.jail import Jail, wait_readable
from cove.runtime.link import Link
from cove.runtime.machine import Machine
from cove.runtime.mounts import OpenMounts, open_mounts
from cove.runtime.shared_limits import shared_limits
from cove.runtime.slices import SliceFiles
from cove.tasks import Tasks, settled

# Holds the actions that show layers, and what these need.
Layers = Callable[[], AbstractContextManager[Sequence[Action]]]

_START_SECONDS = 30.0


async def start_jail(
    machine: Machine,
    place: Place,
    spec: SandboxSpec,
    groups: SandboxGroups,
    on_lost: Callable[[str], None],
    attach: Sequence[Action] = (),
    attachment: Attachment | None = None,
    directories: Sequence[Path] = (),
    on_settled: Callable[[Jail], None] = lambda _: None,
    system: System | None = None,
    layers: Layers | None = None,
) -> Jail:
    """Start the agent, confined as the spec says, and wait for its first word. The caller shields it from cancel.

    What is to be attached is, before anything runs inside, by the `attachment` if one has begun; the sockets are the
    jail's. `layers` are shown, if there are
    any. `on_settled` is called when the agent is in its control groups, and so will be what it forks: from then on it
    can be asked for launchers. With the `system` of an image that is when it has its root.
    """
    with ExitStack() as stack:
        ours, theirs = socket_pair()
        stack.callback(theirs.close)
        undo = stack.enter_context(ExitStack())
        undo.callback(ours.close)
        info = _pipe(stack, stack)
        errors = _pipe(undo, stack)
        block = _pipe(stack, stack) if place.users > 1 and place.slice is None else None
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
        if place.slice is not None:
            users = await in_thread(stack.enter_context, SliceFiles(place.slice).namespace(most_processes(launch)))
            launch = replace(launch, users=users)
        placeholder: list[Action] = [] if layers is None else [ShowLayers((), "", {})]
        actions = [*placeholder, *attach]
        pid, pidfd, attachment = await in_starter_thread(_launch, launch, stack, errors[1], actions, attachment)
        undo.pop_all()
        link = Link(ours, lambda reason: jail.lose(reason))  # noqa: PLW0108  # the jail is made in the next line
        jail = Jail(pid, link, groups, errors[0], _watch(pidfd, pid), _machine=machine, _user_id=place.user_id)
        start = _Start(jail, launch, attachment, attach, layers, info[0], block and block[1])
        try:
            async with asyncio.timeout(_START_SECONDS):
                await start.run(stack, on_settled)
        except BaseException as error:
            if attachment is not None:
                await in_thread(attachment.close)
            complaint = jail.read_errors()
            await jail.close()
            if not isinstance(error, TimeoutError | OSError):
                raise
            reason = await in_thread(explain_refusal, complaint or guess_reason(error, spec))
            raise SandboxUnavailable(f"the sandbox did not start: {reason}") from error
        jail.lose = on_lost
        return jail


@dataclass(frozen=True, slots=True)
class _Start:
    """A jail whose bwrap runs. `info` tells the agent's pid; at `block` bwrap waits until its users are mapped."""

    jail: Jail
    launch: Launch
    attachment: Attachment | None
    attach: Sequence[Action]
    layers: Layers | None
    info: int
    block: int | None

    async def run(self, held: ExitStack, on_settled: Callable[[Jail], None]) -> None:
        """Wait until the jail stands and has all that belongs to it. Layers are `held` until then."""
        async with Tasks() as tasks:
            entering = tasks.start(self._settle(tasks, held, on_settled))
            await _await_hello(self.jail)
            await entering
        if self.attachment is not None:  # nothing has run inside yet
            await in_thread(_finish, self.jail, self.attachment, self.launch.mounts)
        if self.launch.system is not None:
            on_settled(self.jail)

    async def _settle(self, tasks: Tasks, held: ExitStack, on_settled: Callable[[Jail], None]) -> None:
        """Do what is done from outside while the agent starts."""
        jail = self.jail
        jail.agent_pid = jail.pid
        if backend_of(self.launch.spec.isolation).tells_agent_pid:
            jail.agent_pid = await _read_child_pid(self.info)
            pin = start_in_thread(_pin, jail.agent_pid, jail.pid, self.launch.place, self.block)
            jail._agent = await settled(pin, discard=os.close)
        showing = None if self.layers is None else tasks.start(finished(self._show, held))
        await in_thread(_settle_agent, jail, self.launch)
        if showing is not None:
            await showing
        # A process that is forked while the root is replaced may keep the old one: pivot_root(2).
        if self.launch.system is None:
            on_settled(jail)

    def _show(self, held: ExitStack) -> None:
        """Open the layers; put them together where the jail's users are mapped already."""
        assert self.attachment is not None
        assert self.layers is not None
        shown = held.enter_context(self.layers())
        self.attachment.actions = _actions(self.launch, [*shown, *self.attach])
        if self.block is not None or self.launch.users is not None:
            self.attachment.begin(self.jail.target)


def _pipe(read_stack: ExitStack, write_stack: ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    read_stack.callback(os.close, read)
    write_stack.callback(os.close, write)
    return read, write


def _launch(
    launch: Launch, stack: ExitStack, errors: int, attach: Sequence[Action], attachment: Attachment | None
) -> tuple[int, int, Attachment | None]:
    """Start our child and, beside it, what will attach to its jail: one visit to the thread."""
    backend = backend_of(launch.spec.isolation)
    command, keep = backend.command(launch, stack)
    pid, pidfd = _popen(command, keep, errors, launch.place.user_id if backend.has_user_of_its_own else None)
    if not backend.tells_agent_pid:
        return pid, pidfd, None
    attachment = attachment or Attachment(launch.machine, launch.place.user_id)
    attachment.actions = _actions(launch, attach)
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


def guess_reason(error: Exception, spec: SandboxSpec) -> str:
    """Guess what a jail that ended without a word may have died of."""
    if isinstance(error, OSError) and error.errno == errno.ENOSYS:
        return f"images and mounts need Linux 5.14 or newer, this is {os.uname().release}: {error.strerror}"
    if isinstance(error, TimeoutError):
        return f"it was not ready within {_START_SECONDS:g} s. The machine may be too busy, or its limits too low."
    memory = spec.limits.memory
    if memory is None or not isinstance(error, ConnectionResetError):
        return str(error)
    return f"it ended before it was ready: {memory} bytes of memory may be too few, try a higher limit"


def _pin(pid: int, parent: int, place: Place, block: int | None) -> int:
    """Open a pidfd of that child of our child, which is not reaped: a process that has its pid after it has another.

    Its users are mapped, if bubblewrap waits for that.
    """
    pidfd = os.pidfd_open(pid)
    try:
        if parent_of(pid) != parent:
            raise ConnectionResetError("the agent has ended")
        if block is not None:
            _map_users(pidfd, pid, block, place)
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def _map_users(pidfd: int, pid: int, block: int, place: Place) -> None:
    """Map the users of the place, for which bubblewrap waits."""
    assert place.user_id is not None
    write_user_map(pidfd, pid, place.user_id, place.users)
    os.write(block, b"1")


def _settle_agent(jail: Jail, launch: Launch) -> None:
    """Its limits as its own user: root may lack the capability to set those of another user's process."""
    if jail._agent is not None:
        with as_user(launch.place.user_id):
            resource.prlimit(jail.agent_pid, resource.RLIMIT_CORE, (CORE_BYTES, CORE_BYTES))
    jail.groups.enter(jail.agent_pid)


async def _read_child_pid(info: int) -> int:
    """The agent's pid on the host as bwrap tells it."""
    await wait_readable(info)
    found = re.search(rb'"child-pid": *(\d+)', os.read(info, 4096))
    if found is None:
        raise ConnectionResetError("bwrap gave no reason")
    return int(found[1])
