"""One living jail: attach to it, read what it complains of, end it with everything inside."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cove.attach import SECONDS, Action, Attached, CloneTree, Target
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.linux.pidfd import reap, wait_for_end
from cove.local.threads import close_in_thread, in_thread, start_in_thread
from cove.runtime.attachment import attach as attach_to
from cove.runtime.cgroups import SandboxGroups
from cove.runtime.link import Link
from cove.runtime.machine import Machine
from cove.tasks import settled

_STOP_SECONDS = 5.0


def _start_fails(_: str) -> None:
    """Do nothing: who starts a jail sees for itself that it did not start."""


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
        if self.link.closed:
            raise SandboxUnavailable("the sandbox has ended: nothing was attached to it")
        if self._agent is None:
            raise ValidationFailed("nothing can be attached to a sandbox without isolation")
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
        self.kill_agent()

    def kill_agent(self) -> None:
        """End it from whatever thread: the end of the link tells the loop that the jail is lost."""
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
            await wait_readable(self._agent)
            os.close(self._agent)
        os.close(self._errors)
        for sock in self.sockets:
            sock.close()
        await close_in_thread([])  # after what it was given to close before
        await in_thread(self.groups.remove)

    def abandon(self) -> None:
        """End it without an event loop. Blocks until it is gone."""
        self.link.abandon()
        self.kill_agent()
        if not self.exited.done():
            with suppress(ProcessLookupError):  # the loop has taken its end, and had no time to say so
                self._end_child()
        if self._agent is not None:
            wait_for_end(self._agent, _STOP_SECONDS)
        self.groups.remove()

    def _end_child(self) -> None:
        child = os.pidfd_open(self.pid)
        if not wait_for_end(child, _STOP_SECONDS):
            os.kill(self.pid, signal.SIGKILL)
        os.close(child)
        reap(self.pid)


async def wait_readable(descriptor: int) -> None:
    """Wait until there is something to read, or its other end is closed."""
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
