"""Programs inside that listen, reached from outside."""

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from cove.api import Process
from cove.errors import ConnectionLost, PortAlreadyExposed, ServiceNotResponding
from cove.model import ExposedPort
from soak.hand import Hand, Step, Surface
from soak.model import check
from soak.possible import Possible, Violation

_FIRST_PORT = 20_000
_PORTS = 6_000  # two users: all stay below the ports that outgoing connections take, ip_local_port_range in ip(7)
_SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", {port}))
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: {length}\\r\\n\\r\\n{text}")
    connection.close()
"""


@dataclass
class _Known:
    """A listening program and what it answers; `is_exposed` is whether others reach it."""

    port: int
    process: Process
    text: str
    is_exposed: Possible[bool]
    exposed: ExposedPort | None = None


class PortServers(Surface):
    """At most one program listens; its port is exposed and taken back."""

    weight = 0.5

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        self._known: _Known | None = None
        self._left_exposed: set[int] = set()

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        known = self._known
        return {
            self._start: 0.5 if known is None else 0,
            self._visit: 2 if known else 0,
            self._expose: 0.5 if known else 0,
            self._fetch: 1 if known and known.exposed and known.is_exposed.is_certain else 0,
            self._unexpose: 0.4 if known else 0,
            self._end: 0.3 if known else 0,
            self._visit_nobody: 0.3,
        }

    def forget(self) -> None:
        """See Surface. An exposure lives longer than what listens."""
        if self._known is not None:
            self._left_exposed.add(self._known.port)
        self._known = None

    def _new_port(self) -> int:
        """The two users of a sandbox take different ones."""
        return _FIRST_PORT + 2 * (self.hand.number() % _PORTS) + self.hand.name.endswith("right")

    async def _start(self) -> None:
        port, text = self._new_port(), f"answer-{self.hand.new_id('port')}"
        program = _SERVER.format(port=port, length=len(text), text=text)
        started = self.hand.sandbox.start_process(["python3", "-I", "-c", program], id=self.hand.new_id("server"))
        answer = await self.hand.call(f"start server on {port}", started)
        if answer.is_done:
            ready = answer.get().wait_for_port(port, mode="tcp", timeout=30)
            if (await self.hand.call(f"wait-for-port {port}", ready, is_steady=True)).is_done:
                self._known = _Known(port, answer.get(), text, Possible(False))

    async def _visit(self) -> None:
        assert self._known is not None
        known = self._known
        # A program that is killed while it answers breaks the connection.
        answer = await self.hand.call(f"connect {known.port}", self._get(known.port), ConnectionLost)
        check("nobody broke the connection", answer.error is None or self.hand.is_disturbed, answer.error)
        if answer.is_done and not self.hand.is_disturbed:
            check("the port answers", answer.get().endswith(known.text.encode()), answer.value)

    async def _get(self, port: int) -> bytes:
        data = b""
        async with self.hand.sandbox.ports.connect(port) as connection:
            await connection.write(b"GET / HTTP/1.0\r\n\r\n")
            while piece := await connection.read():
                data += piece
        return data

    async def _visit_nobody(self) -> None:
        answer = await self.hand.call("connect nobody", self._get(9), ServiceNotResponding)
        check("nobody listens there", not answer.is_done, answer.value)

    async def _expose(self) -> None:
        assert self._known is not None
        known = self._known
        exposed = self.hand.sandbox.ports.expose(known.port)
        answer = await self.hand.call(f"expose {known.port}", exposed, PortAlreadyExposed)
        if answer.is_done:
            known.is_exposed.observe(False, f"the exposure of {known.port}")
            known.is_exposed.become(True)
            known.exposed = answer.get()
        elif answer.is_certain:
            known.is_exposed.observe(True, f"the exposure of {known.port}")
        else:
            known.is_exposed.may_become(True)

    async def _unexpose(self) -> None:
        assert self._known is not None
        known = self._known
        answer = await self.hand.call(f"unexpose {known.port}", self.hand.sandbox.ports.unexpose(known.port))
        if answer.is_done:
            known.is_exposed.become(False)
        else:
            known.is_exposed.may_become(False)

    async def _fetch(self) -> None:
        """As somebody who only knows the URL."""
        assert self._known is not None
        known = self._known
        assert known.exposed is not None
        is_exposed, url = known.is_exposed.certain, known.exposed.path_url
        answer = await self.hand.call(f"fetch {known.port}", self._fetch_text(url), is_steady=True)
        if not answer.is_done or not answer.get()[0]:
            return
        status, text = answer.get()
        if is_exposed and status in (502, 503) and self.hand.is_disturbed:
            return
        if (status == 200 and text == known.text) is not is_exposed:
            raise Violation(f"a preview gives {status} {text[:200]!r}; exposed: {is_exposed}")

    async def _fetch_text(self, url: str) -> tuple[int, str]:
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as reply:
                return reply.status, await reply.text()
        except aiohttp.ClientError:
            return 0, ""  # the port is closed, or the server is being disturbed

    async def _end(self) -> None:
        assert self._known is not None
        known, self._known = self._known, None
        self._left_exposed.add(known.port)
        await self.hand.call(f"kill {known.process.id}", known.process.kill("KILL"), is_steady=True)

    async def empty(self) -> None:
        """See Surface."""
        self.forget()
        for port in self._left_exposed:
            await self.hand.call(f"unexpose {port}", self.hand.sandbox.ports.unexpose(port), is_steady=True)
        self._left_exposed.clear()
