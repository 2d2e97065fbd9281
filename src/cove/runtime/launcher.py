"""Launchers: the parked parents of commands, and the pool that keeps one ready."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from cove.agent import protocol
from cove.agent.protocol import ProtocolError
from cove.errors import CoveError, SpawnFailed
from cove.linux.cgroup import Group
from cove.linux.packets import Packet, pass_credentials, receive_packet, release_socket, send_packet, socket_pair
from cove.local.threads import close_all, close_in_thread, in_thread
from cove.runtime.clock import Clock, ClockTimer
from cove.runtime.gate import Gate
from cove.runtime.link import ANSWER_SECONDS, MOST_PACKETS, Link
from cove.tasks import Tasks, shared

MOST_PARKED = 8
# From the request to the launcher's first word and its control group; for an overloaded machine.
START_SECONDS = 30.0
# Another launcher is made when the last parked one is not back after so long.
_REFILL_SECONDS = 0.005
# The longest message of a launcher is `exit` with five numbers, of a copy with its label.
_MOST_BYTES, _MOST_FIELDS = 256, 9


class LauncherGone(SpawnFailed):
    """A launcher was killed before it had read what to start; another one may do."""


class Tenant(Protocol):
    """The user of a launcher: told what it says, and when it is gone."""

    def launcher_said(self, fields: list[bytes]) -> None:
        """Receive one message."""

    def launcher_gone(self) -> None:
        """The launcher ended; its tree is being swept by init."""


class Launcher:
    """Our end of one launcher. While it has a tenant, everything it says goes there."""

    def __init__(
        self, sock: socket.socket, group: Group | None, on_fault: Callable[[str], None], clock: Clock | None = None
    ) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._clock = clock or Clock()
        self._on_fault = on_fault
        self.group = group
        self.pid = 0
        self.tenant: Tenant | None = None
        self._replies: deque[tuple[asyncio.Future[int], float]] = deque()
        self._overdue: ClockTimer | None = None
        self._is_spawn_last = False
        self._has_left_unread = False
        self.closed = False
        self.host_pid: asyncio.Future[int] = self._loop.create_future()
        pass_credentials(sock, True)
        self._loop.add_reader(sock, self.hear)

    def spawn(self, request: bytes, descriptors: Sequence[int]) -> None:
        """Start a command; the answer goes to the tenant. Raises ConnectionError when the launcher is gone."""
        if self.closed:
            raise ConnectionResetError("the launcher is gone")
        send_packet(self._sock, request, descriptors)
        self._is_spawn_last = True

    @property
    def never_read_spawn(self) -> bool:
        """Return whether it ended before it read the last spawn request: nothing was started."""
        return self._is_spawn_last and self._has_left_unread

    def signal(self, number: int, scope: bytes = b"tree", label: bytes = b"", ticks: int = 0) -> "asyncio.Future[int]":
        """Signal what `scope` says: see `agent.protocol`. Gives their number; 0 when it is gone."""
        return self._ask(b"signal\0%d\0%s\0%s\0%d" % (number, scope, label, ticks))

    def adopt(self, label: bytes, pid: int) -> "asyncio.Future[int]":
        """Have the end of a child reported under this label. Gives 0 when it is none, or nobody's."""
        return self._ask(b"adopt\0%s\0%d" % (label, pid))

    def end_branch(self, label: bytes) -> "asyncio.Future[int]":
        """Kill what has this label. Gives the number of processes left."""
        return self._ask(b"end\0%s" % label)

    def _ask(self, packet: bytes) -> "asyncio.Future[int]":
        reply: asyncio.Future[int] = self._loop.create_future()
        if self.closed:
            reply.set_result(0)
        else:
            due = self._clock.time() + ANSWER_SECONDS
            self._replies.append((reply, due))
            if self._overdue is None:
                self._overdue = self._clock.call_at(due, self._on_overdue)
            self._tell(packet)
        return reply

    def _on_overdue(self) -> None:
        """Give up a launcher that does not answer: init ends it and what it started."""
        self._overdue = None
        if self._replies and self._replies[0][1] <= self._clock.time():
            self._end()
        elif self._replies:
            self._overdue = self._clock.call_at(self._replies[0][1], self._on_overdue)

    def drain(self, descriptors: Sequence[int]) -> None:
        """Hand over pipes that only left-over processes write to, and close them here."""
        self._tell(b"drain", descriptors)
        close_all(descriptors)

    def _tell(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        self._is_spawn_last = False
        try:
            send_packet(self._sock, packet, descriptors)
        except OSError:
            return  # it is gone, or never reads again: `hear` sees the end of the socket and tells the tenant

    def close(self) -> None:
        """Let go: the launcher exits and init ends what it leaves. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        if self._overdue is not None:
            self._overdue.cancel()
        if (unread := release_socket(self._sock)) is not None:
            close_in_thread([unread])
        if not self.host_pid.done():
            self.host_pid.set_exception(ConnectionResetError("it ended before it was ready"))
            self.host_pid.exception()  # whoever still waits gets it; nobody has to
        for reply, _ in self._replies:
            _resolve(reply, 0)
        self._replies.clear()

    def hear(self) -> None:
        """Take what it has said, up to so much at once, and notice its end."""
        try:
            for _ in range(MOST_PACKETS):
                packet = None if self.closed else self._receive()
                if packet is None:
                    self._end()
                    return
                if packet.descriptors:
                    close_in_thread(packet.descriptors)
                    raise ProtocolError("a launcher sent descriptors")
                packet.check()
                if len(packet.data) > _MOST_BYTES:
                    raise ProtocolError(f"a message of {len(packet.data)} bytes")
                self._take(protocol.decode(packet.data, _MOST_FIELDS), packet.pid)
        except BlockingIOError:
            return
        except ConnectionError:
            self._end()
        except ProtocolError as error:
            self.close()
            self._on_fault(f"a launcher broke the protocol: {error}")

    def _receive(self) -> Packet | None:
        """A socket closed with something unread in it is reset; that is said once, before what had been sent."""
        try:
            return receive_packet(self._sock)
        except ConnectionResetError:
            self._has_left_unread = True
            return receive_packet(self._sock)

    def _take(self, fields: list[bytes], sender: int | None) -> None:
        if not self.host_pid.done():
            if fields != [b"ready"] or sender is None:
                raise ProtocolError("a launcher did not say it was ready")
            pass_credentials(self._sock, False)
            self.host_pid.set_result(sender)
        elif fields[0] == b"signaled" and len(fields) == 2 and self._replies:
            _resolve(self._replies.popleft()[0], protocol.number(fields[1]))
        elif self.tenant is not None:
            self.tenant.launcher_said(fields)
        else:
            raise ProtocolError("a parked launcher spoke")

    def _end(self) -> None:
        if self.closed:
            return
        self.close()
        if self.tenant is not None:
            self.tenant.launcher_gone()


class LauncherPool:
    """Parked launchers of one sandbox. Taking one never waits while one is parked."""

    def __init__(self, link: Link, group: Group | None, background: Tasks, on_fault: Callable[[str], None]) -> None:
        self._link = link
        self.clock = link.clock
        self._group = group
        self._background = background
        self._on_fault = on_fault
        self._parked: list[Launcher] = []
        self._all: set[Launcher] = set()
        self._making = 0
        self._count = 0
        self._closed = False
        self._begun = asyncio.Event()

    def begin(self) -> None:
        """Have the first launcher made while whoever will `open` does something else."""
        self._background.start(self._refill(), on_end=self._begun.set)

    async def open(self) -> None:
        """Park the first launcher, which may have begun."""
        if self._making:
            await self._begun.wait()
        if not self._parked:
            self._parked.append(await self._make())

    async def acquire(self) -> Launcher:
        """A parked launcher, or a new one."""
        launcher = self.acquire_nowait()
        return launcher if launcher is not None else await self._make()

    def acquire_nowait(self) -> Launcher | None:
        """A parked launcher if there is one; another is made ready when it was the last."""
        while self._parked:
            launcher = self._parked.pop()
            if not self._parked and not self._making:
                self._background.start(self._refill_later())
            if not launcher.closed:
                return launcher
            self.release(launcher)  # killed while parked
        return None

    def release(self, launcher: Launcher) -> None:
        """Take back a launcher whose tree is empty, or forget one that is gone."""
        launcher.tenant = None
        if not launcher.closed and len(self._parked) < MOST_PARKED:
            self._parked.append(launcher)
            return
        launcher.close()
        self._all.discard(launcher)
        if launcher.group is not None:
            self._background.start(self._remove_group(launcher.group, launcher.pid))

    def explain(self, may_have_run: bool) -> CoveError:
        """Make the error for a call that lost its jail: `Link.explain`."""
        return self._link.explain(may_have_run)

    @property
    def gate(self) -> Gate:
        """The gate of the sandbox."""
        return self._link.gate

    async def end(self, launcher: Launcher) -> None:
        """Kill everything below the launcher, and the launcher; returns when nothing of it is left.

        Where that cannot be done in ANSWER_SECONDS, the sandbox is lost: it ends as a whole.
        """
        if launcher.group is not None:
            await in_thread(_kill_group, launcher.group)
        try:
            await self._link.request(b"end", b"%d" % launcher.pid)
        except CoveError:
            if not self._link.closed:
                self._on_fault(f"processes inside could not be ended within {ANSWER_SECONDS:g} s")
            raise

    async def wake(self, launcher: Launcher) -> None:
        """Continue what code inside may have stopped before it could become the command."""
        try:
            await self._link.request(b"wake", b"%d" % launcher.pid)
        except CoveError:
            return  # who waits for the command has a bound of its own

    def tenants(self) -> list[Tenant]:
        """Return the users of launchers, also where only left-overs still run."""
        return [launcher.tenant for launcher in self._all if launcher.tenant is not None]

    def close(self) -> None:
        """Let go of every launcher."""
        self._closed = True
        for launcher in self._all:
            launcher.close()
        self._parked.clear()

    async def _refill_later(self) -> None:
        """Refill unless the launcher comes back soon, as it does from most commands."""
        self._making += 1
        try:
            await asyncio.sleep(_REFILL_SECONDS)
        finally:
            self._making -= 1
        if not self._parked:
            await self._refill()

    async def _refill(self) -> None:
        self._making += 1
        try:
            launcher = await self._make()
        except CoveError:
            return  # whoever needs one makes it, and hears why it cannot be made
        finally:
            self._making -= 1
        self._parked.insert(0, launcher)

    async def _make(self) -> Launcher:
        try:
            ours, theirs = socket_pair()
        except OSError as error:
            raise SpawnFailed(f"no launcher for the command: {error}. Nothing was started.") from error
        self._count += 1
        group = None if self._group is None else Group(f"{self._group.path}/{self._count}")
        launcher = Launcher(ours, group, self._on_fault, self.clock)
        self._all.add(launcher)
        try:
            with theirs:
                answer = await self._link.request(b"launcher", send=[theirs.fileno()], expect_fields=1, subject="fork")
            launcher.pid = protocol.number(answer.fields[0])
            # Shielded: a cancelled caller must not make the launcher's first word look like one nobody waits for.
            async with self.clock.timeout(START_SECONDS):
                host_pid = await shared(launcher.host_pid)
            if group is not None:
                await in_thread(_join, group, host_pid)
        except BaseException as error:
            launcher.close()
            self.release(launcher)
            if isinstance(error, ProtocolError):
                self._on_fault(f"the agent broke the protocol: {error}")
            if self._link.closed or self._closed:
                raise self._link.explain(False) from error
            if isinstance(error, ConnectionError | ProcessLookupError):
                raise LauncherGone(f"the launcher for the command: {error}. Nothing was started.") from error
            if isinstance(error, OSError | CoveError):
                reason = str(error) or f"it was not ready within {START_SECONDS:g} s"
                raise SpawnFailed(f"no launcher for the command: {reason}. Nothing was started.") from error
            raise
        return launcher

    async def _remove_group(self, group: Group, pid: int) -> None:
        try:
            if pid:
                await self._link.request(b"end", b"%d" % pid)
        except CoveError:
            return  # the sandbox is ending, and removes its whole group itself
        await in_thread(group.remove)


def _resolve(reply: "asyncio.Future[int]", count: int) -> None:
    if not reply.done():
        reply.set_result(count)


def _join(group: Group, pid: int) -> None:
    group.create()
    group.add(pid)


def _kill_group(group: Group) -> None:
    try:
        group.kill()
    except OSError:
        return  # not made yet, or no descriptor left for us: init ends them one by one
