"""Own the egress process of one sandbox: start it, give it policy and sockets, restart it, hear what happens.

Theory of operation. The sockets that listen inside the sandbox are made by attach, and kept here: a connection that
comes while no egress process runs waits in the kernel's queue, and the process that comes next accepts it. So the
process can be started beside everything else, and killed at any time. What holds is always the policy that this object
was last told: a process that does not confirm a new one in time is killed, and its connections with it.

What can go wrong: the process dies (it is started anew, with a pause that grows; what was open breaks); it cannot be
started any more (the sockets are closed, so that every connection is refused at once); it speaks nonsense (it is
killed). No fault of it opens anything.
"""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from cove.attach.actions import DNS_ADDRESS, DNS_PORT
from cove.core.egress_protocol import (
    ANY_PORT,
    DNS_TCP,
    DNS_UDP,
    Configure,
    Report,
)
from cove.core.network_grants import NetworkGrants
from cove.core.network_log import NetworkLog, parse_cursor
from cove.core.network_policy import Policy
from cove.errors import SandboxUnavailable
from cove.linux.forking import close_in_forked_child
from cove.local.threads import in_thread
from cove.model import ExecResult, Network, NetworkEvent, NetworkPolicy
from cove.runtime.egress_process import START_SECONDS, EgressFiles, EgressProcess, OpenFiles
from cove.runtime.journal import Journal
from cove.runtime.notify import Notify
from cove.runtime.secrets import read_secrets
from cove.tasks import Tasks

_MOST_STARTS = 5
_FIRST_PAUSE = 0.1
_STEADY_SECONDS = 30.0
_BATCH = 256

Listening = dict[int | str, socket.socket]
OpenSockets = Callable[[Sequence[int], Sequence[str], bool], Awaitable[list[socket.socket]]]


def _name(sock: socket.socket) -> int | str:
    """Return what a socket of attach is for."""
    if sock.type == socket.SOCK_DGRAM:
        return DNS_UDP
    address, port = sock.getsockname()
    if address == DNS_ADDRESS:
        return DNS_TCP if port == DNS_PORT else ANY_PORT
    return int(port)


class Egress:
    """One sandbox's way out. `open_sockets` attaches: ports, addresses, and whether the name server is wanted."""

    def __init__(self, open_sockets: OpenSockets, files: EgressFiles, log: NetworkLog, journal: Journal) -> None:
        self._open_sockets = open_sockets
        self._files = files
        self.log = log
        self._journal = journal
        self._lock = asyncio.Lock()
        self.network: Network | NetworkPolicy = Network.NONE
        self.grants: NetworkGrants | None = None
        self._listening: Listening = {}
        self._addresses: set[str] = set()
        self._process: EgressProcess | None = None
        self._tasks = Tasks(lambda _: self._give_up())
        self._changed = Notify()
        self._generation = self._confirmed = 0
        self._is_supervised = False
        self._certificate: str | None = None
        self.failure: str | None = None

    @property
    def is_open(self) -> bool:
        """Return whether anything may leave."""
        return bool(self._listening)

    @property
    def has_every_port(self) -> bool:
        """Return whether connections to every port come here, not only those to the ports of the policy."""
        return ANY_PORT in self._listening

    async def set_network(
        self,
        network: Network | NetworkPolicy,
        grants: NetworkGrants | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> str | None:
        """Let this policy hold when the call returns, for open connections too.

        `grants` are those of a server's configuration. `sockets` are those that attach has opened for it already, of a
        sandbox that begins. Raises PortInUse, and the old policy stays. Returns the certificate of the authority, where
        the policy intercepts.
        """
        async with self._lock:
            if network is Network.NONE:
                self.network, self.failure = network, None
                await self._end()
                return None
            policy = Policy(network)
            await in_thread(self._files.prepare, network)
            await self._listen(policy, sockets)
            self.network, self.grants = network, grants
            self._generation += 1
            self.failure = None
            if self._process is not None:
                await self._confirm(self._process)
            elif not self._is_supervised:
                self._is_supervised = True
                self._tasks.start(self._supervise(), on_end=self._unsupervised)
        if not policy.intercepted_names:
            return None
        await self._wait_until_confirmed()
        return self._certificate

    async def _wait_until_confirmed(self) -> None:
        """A sandbox whose requests are judged begins when its programs can be told whom to trust."""
        wanted = self._generation
        patience = START_SECONDS if self._process is None else self._process.patience
        try:
            async with asyncio.timeout(patience):
                while self._confirmed < wanted and self.failure is None:
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self._confirmed < wanted:
            raise SandboxUnavailable(self.failure or "the egress process of the sandbox did not start: try again")

    async def _listen(self, policy: Policy, sockets: Sequence[socket.socket]) -> None:
        """Open what is missing; on failure nothing has changed."""
        wanted = [port for port in policy.ports if port not in self._listening and not self.has_every_port]
        needs_names = DNS_UDP not in self._listening
        new = [address for address in policy.addresses if address not in self._addresses]
        if (wanted or needs_names or new) and not sockets:
            sockets = await self._open_sockets(wanted, new, needs_names)
        for sock in sockets:
            close_in_forked_child(sock)
        self._addresses.update(policy.addresses)
        self._listening.update({_name(sock): sock for sock in sockets})

    async def _confirm(self, process: "EgressProcess") -> None:
        """Hand over the policy. A process that does not confirm is killed: the next one begins with it."""
        sent, generation = process.sockets, self._generation
        for port in [each for each in self._listening if isinstance(each, int) and each not in self._ports()]:
            self._listening.pop(port).close()
            sent.discard(port)
        new = {name: sock for name, sock in self._listening.items() if name not in sent}
        try:
            message = await in_thread(self._configuration, new)
            with OpenFiles(self._files, self.network) as files:
                descriptors = [*files.descriptors, *(sock.fileno() for sock in new.values())]
                self._certificate = await process.configure(message, descriptors)
            sent.update(new)
            self._confirmed = generation
            self._changed.notify_all()
        except (OSError, TimeoutError):
            process.kill()

    def _ports(self) -> tuple[int, ...]:
        return Policy(self.network).ports

    def _configuration(self, new: Listening) -> Configure:
        network, grants = self.network, self.grants
        policy = network if isinstance(network, NetworkPolicy) else NetworkPolicy()
        names = {secret.name for rule in policy.rules for secret in rule.secrets}
        return Configure(
            network=network,
            sockets=tuple(new),
            has_cassette=(policy.record or policy.replay) is not None,
            secrets=read_secrets(names, None if grants is None else grants.secrets),
            resolver=os.environ.get("COVE_RESOLVER") if grants is None else grants.resolver,
        )

    async def _supervise(self) -> None:
        """Keep a process running; give up when several in a row do not last."""
        loop = asyncio.get_running_loop()
        failures = 0
        while failures < _MOST_STARTS:
            began = loop.time()
            process = EgressProcess(self._take)
            try:
                await process.start(self._files.user_id)
                self._process = process
                async with self._lock:
                    await self._confirm(process)
                await process.ended
            finally:
                self._process = None
                await process.close()
            failures = 1 if loop.time() - began > _STEADY_SECONDS else failures + 1
            await asyncio.sleep(_FIRST_PAUSE * 2**failures)
        self._give_up()

    def _unsupervised(self) -> None:
        self._is_supervised = False

    def _give_up(self) -> None:
        """Refuse every connection at once: nothing carries them."""
        self.failure = "the process that carries its connections does not stay alive: set its network again"
        self._changed.notify_all()
        self._close_sockets()

    def _take(self, message: Report) -> None:
        self.log.append(message.events, message.lost)
        self._journal.record_network(message.events)
        self._changed.notify_all()

    async def sync(self) -> None:
        """Hear of everything that has happened so far: nothing, in a process that has no policy yet."""
        process = self._process
        if process is not None and process.is_configured:
            with suppress(OSError, TimeoutError):
                await process.sync()

    def mark(self) -> int | None:
        """Return the end of the log; None when no policy holds."""
        return self.log.end if self._listening else None

    async def add_denials(self, result: ExecResult, mark: int) -> ExecResult:
        """The result, with what was refused since then."""
        await self.sync()
        denied = self.log.denials_since(mark)
        return msgspec.structs.replace(result, denied=denied) if denied else result

    async def events(self, since: str | None, follow: bool) -> AsyncGenerator[NetworkEvent, None]:
        """The log from that cursor on; with `follow`, what comes later too, until the sandbox ends."""
        position = parse_cursor(since)
        await self.sync()
        while True:
            batch = self.log.read(min(position, self.log.end), _BATCH)
            for event in batch:
                position = int(event.cursor)
                yield event
            if not batch:
                if not follow or self._tasks.closed:
                    return
                await self._changed.wait()

    async def _end(self) -> None:
        await self._tasks.aclose()
        self._tasks = Tasks(lambda _: self._give_up())
        self._close_sockets()

    def _close_sockets(self) -> None:
        for sock in self._listening.values():
            sock.close()
        self._listening.clear()

    async def close(self) -> None:
        """End everything. Idempotent."""
        await self._tasks.aclose()
        self._close_sockets()
        self._changed.notify_all()
