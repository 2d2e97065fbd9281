"""Gate of one sandbox to the outside: its policy, its names, its listeners and its open connections."""

import asyncio
import logging
import os
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial

from cove.core.cassette import MOST_BYTES, Player, Recorded, encode_recorded
from cove.core.egress_protocol import ANY_PORT, DNS_TCP, DNS_UDP, Configure
from cove.core.network_policy import Policy, Refused, Verdict
from cove.core.synthetic_address import SyntheticAddresses
from cove.egress.certificates import Authority
from cove.egress.connection import Connection, original_destination, own_address, reset
from cove.egress.event_report import CONNECTIONS, RECEIVED_BYTES, REQUESTS, SENT_BYTES, EventReport
from cove.egress.intercept import MOST_LARGE
from cove.egress.name_server import NameServer
from cove.egress.resolver import Resolver
from cove.egress.trust import HostTrust
from cove.model.network import Network, NetworkEventKind
from cove.tasks import Tasks

MOST_CONNECTIONS = 2048
_MINUTE = 60.0
_MOST_RECORDING = 128 << 20

log = logging.getLogger("cove.egress")


def _log_failure(error: BaseException) -> None:
    log.error("a connection or a listener failed", exc_info=error)


class Gate:
    """One sandbox's. Until it is configured nothing is allowed."""

    def __init__(self, report: EventReport, trust: HostTrust) -> None:
        self._report = report
        self.trust = trust
        self.policy = Policy(Network.NONE)
        self._is_limited = False
        self.secrets: Mapping[str, str] = {}
        self.resolver = Resolver(None)
        self._resolver_address: str | None = None
        self._authority: Authority | None = None
        self._cassette: int | None = None
        self._recording = 0
        self._large_left = MOST_LARGE
        self._player: Player | None = None
        self._requests: deque[float] = deque()
        self._tasks = Tasks(_log_failure)
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self._hosts: Counter[str] = Counter()
        self._names = SyntheticAddresses(lambda name: self._hosts[name] > 0)
        self._name_server = NameServer(
            self.resolver,
            self._judge_name,
            self._names.address_of,
            lambda name, refused: report.refuse(NetworkEventKind.NAME, name, None, refused),
        )
        self._listening: dict[int | str, asyncio.Task[None]] = {}

    def _judge_name(self, name: str) -> Verdict:
        return self.policy.judge_name(name)

    def configure(
        self, message: Configure, key_file: int, cassette: int | None, sockets: list[socket.socket]
    ) -> str | None:
        """Let this policy hold at once; returns the certificate of the authority where it intercepts.

        Listeners on ports that it does not have are closed.
        """
        self.policy = Policy(message.network, any_port=ANY_PORT in {*message.sockets, *self._listening})
        self.secrets = message.secrets
        if message.resolver != self._resolver_address:
            self._resolver_address = message.resolver
            self.resolver = self._name_server.resolver = Resolver(message.resolver)
        self._is_limited = self.policy.limits.total_bytes is not None
        self._use_cassette(cassette)
        names = self.policy.intercepted_names
        self._authority = Authority(key_file, names) if names else None
        self._listen(message, sockets)
        for connection, task in list(self._open.items()):
            if not connection.is_allowed_still:
                task.cancel()
        return None if self._authority is None else self._authority.certificate

    def _listen(self, message: Configure, sockets: list[socket.socket]) -> None:
        for what, sock in zip(message.sockets, sockets, strict=True):
            sock.setblocking(False)
            self._stop_listening(what)
            self._listening[what] = self._tasks.start(self._work_of(what)(sock))
        for port in [each for each in self._listening if isinstance(each, int) and each not in self.policy.ports]:
            self._stop_listening(port)

    def _work_of(self, what: int | str) -> Callable[[socket.socket], Coroutine[object, object, None]]:
        if what == DNS_UDP:
            return self._name_server.serve_datagrams
        if what == DNS_TCP:
            return self._serve_dns
        return partial(self._accept, original_destination if what == ANY_PORT else own_address)

    def _stop_listening(self, what: int | str) -> None:
        if (task := self._listening.pop(what, None)) is not None:
            task.cancel()

    async def _serve_dns(self, sock: socket.socket) -> None:
        server = await asyncio.start_server(self._name_server.serve_stream, sock=sock)
        async with server:
            await server.serve_forever()

    async def _accept(self, find: Callable[[socket.socket], tuple[str, int]], listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    sock, _ = await loop.sock_accept(listener)
                except OSError as error:  # too many open files: what waits is accepted when others have ended
                    log.warning("cannot accept a connection: %s", error)
                    await asyncio.sleep(0.1)
                    continue
                self._begin(sock, *find(sock))

    def _begin(self, sock: socket.socket, address: str, port: int) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, sock, address, port)
        most = min(self.policy.limits.connections or MOST_CONNECTIONS, MOST_CONNECTIONS)
        if len(self._open) >= most:
            reset(sock)
            sock.close()
            refused = Refused(f"more than {most} connections at a time")
            self.report_connection(NetworkEventKind.CONNECTION, connection.host, connection.port, refused)
            return
        self._report.counters[CONNECTIONS] += 1
        self._hosts[connection.host] += 1
        self._open[connection] = self._tasks.start(connection.run(), on_end=partial(self._forget, connection))

    def _forget(self, connection: Connection) -> None:
        del self._open[connection]
        self._hosts[connection.host] -= 1
        if not self._hosts[connection.host]:
            del self._hosts[connection.host]

    def name_of(self, address: str) -> str | None:
        """The name behind an address that the sandbox connected to."""
        return address if address in self.policy.addresses else self._names.name_of(address)

    def authority_context(self, name: str) -> ssl.SSLContext:
        """TLS for a name that is intercepted."""
        assert self._authority is not None, "a policy that intercepts has an authority"
        return self._authority.context_for(name)

    def take_large(self) -> bool:
        """Count an intercepted connection; whether it is one of the few that may hold much memory."""
        if not self._large_left:
            return False
        self._large_left -= 1
        return True

    def give_back_large(self) -> None:
        """Let another connection hold much."""
        self._large_left += 1

    def count_sent(self, size: int) -> bool:
        """Count bytes that go out; whether more may pass."""
        self._report.counters[SENT_BYTES] += size
        return not self._is_limited or self.is_exhausted is None

    def count_received(self, size: int) -> bool:
        """Count bytes that come in; whether more may pass."""
        self._report.counters[RECEIVED_BYTES] += size
        return not self._is_limited or self.is_exhausted is None

    @property
    def is_exhausted(self) -> str | None:
        """Reason why no more bytes may pass, if so."""
        most, counters = self.policy.limits.total_bytes, self._report.counters
        if most is not None and counters[SENT_BYTES] + counters[RECEIVED_BYTES] > most:
            return f"the sandbox has used its {most} bytes (limits.total_bytes)"
        return None

    def admit_request(self) -> Refused | None:
        """Count an intercepted request; why it is refused, if there were too many in the last minute."""
        self._report.counters[REQUESTS] += 1
        most = self.policy.limits.requests_per_minute
        if most is None:
            return None
        now = asyncio.get_running_loop().time()
        while self._requests and self._requests[0] <= now - _MINUTE:
            self._requests.popleft()
        if len(self._requests) >= most:
            return Refused(f"more than {most} requests in a minute (limits.requests_per_minute)")
        self._requests.append(now)
        return None

    def _use_cassette(self, cassette: int | None) -> None:
        if self._cassette is not None:
            os.close(self._cassette)
        self._cassette, self._player = cassette, None
        if self.policy.replay is not None and cassette is not None:
            self._player = Player(os.pread(cassette, MOST_BYTES, 0))

    def record(self, recorded: Recorded) -> None:
        """Keep an exchange, as long as the cassette has room."""
        if self._cassette is not None and os.fstat(self._cassette).st_size < MOST_BYTES:
            os.write(self._cassette, encode_recorded(recorded))

    def reserve(self, size: int) -> bool:
        """Take memory for an answer that is being recorded; whether there is some left. `release` gives it back."""
        if self._recording + size > _MOST_RECORDING:
            return False
        self._recording += size
        return True

    def release(self, size: int) -> None:
        """Give back memory of an answer."""
        self._recording -= size

    def replay(self, method: str, url: str, digest: str) -> Recorded | None:
        """The answer that the cassette has next for this request."""
        return None if self._player is None else self._player.take(method, url, digest)

    def report_connection(
        self, kind: NetworkEventKind, host: str, port: int, verdict: Verdict, **facts: object
    ) -> None:
        """Report the end of a connection or a request."""
        if isinstance(verdict, Refused):
            self._report.refuse(kind, host, port, verdict, **facts)
        else:
            self._report.add(kind, host, port, verdict, **facts)
