"""Ports of one sandbox: expose them, and connect to them."""

import asyncio
import builtins
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from cove import api
from cove.core.exposure import Exposure, is_exposed, make_exposure
from cove.core.readiness import check_port
from cove.errors import PortAlreadyExposed, PortNotExposed
from cove.model import ExposedPort, JournalKind
from cove.runtime.connection import Connect, PortConnection
from cove.runtime.gate import Gate, OpenGate, gated
from cove.runtime.journal import Journal
from cove.runtime.tracing import traced


class Publisher(Protocol):
    """The means to make exposures reachable: a listener here, or a record for the gateway. Called once at a time."""

    async def publish(self, exposures: Iterable[Exposure]) -> None:
        """Make these reachable, and no others."""

    async def describe(self, exposure: Exposure) -> ExposedPort:
        """Describe an exposure that was published, with its addresses."""

    async def close(self) -> None:
        """Revoke everything: the sandbox ends."""


@traced("ports", api.Ports)
@gated()
class Ports(api.Ports):
    """An exposure is in `_exposures` from before it is published until it is to be withdrawn.

    `_connections` has every connection that is open, with the exposure it came through.
    """

    def __init__(
        self,
        connect: Connect,
        publisher: Publisher,
        check_running: Callable[[], None],
        exposures: Iterable[Exposure] = (),
        gate: Gate | None = None,
    ) -> None:
        self.gate = gate or OpenGate()
        self.journal = Journal.silent()
        self._connect = connect
        self._publisher = publisher
        self._check_running = check_running
        self._exposures = {exposure.port: exposure for exposure in exposures}
        self._connections: dict[PortConnection, Exposure | None] = {}
        self._publishing = asyncio.Lock()

    async def expose(self, port: int, name: str | None = None, token: str | None = None) -> ExposedPort:
        self._check_running()
        exposure = make_exposure(port, name, token)
        if port in self._exposures:
            raise PortAlreadyExposed(f"port {port} is exposed already")
        self._exposures[port] = exposure
        try:
            async with self._publishing:
                await self._publisher.publish(self._exposures.values())
                self._check_exposed(exposure)
                described = await self._publisher.describe(exposure)
            self.journal.record(JournalKind.PORT, operation="expose", port=port)
            return described
        except BaseException:
            self._forget(exposure)
            raise

    async def unexpose(self, port: int) -> None:
        self._check_running()
        exposure = self._exposures.get(check_port(port))
        if exposure is not None:
            self._forget(exposure)
            async with self._publishing:
                await self._publisher.publish(self._exposures.values())
            self.journal.record(JournalKind.PORT, operation="unexpose", port=port)

    async def list(self) -> builtins.list[ExposedPort]:
        self._check_running()
        async with self._publishing:
            await self._publisher.publish(self._exposures.values())
            return [await self._publisher.describe(self._exposures[port]) for port in sorted(self._exposures)]

    def connect(self, port: int, *, token: str | None = None) -> PortConnection:
        """Connect; with a token as a visitor of the exposure, and only while it is there."""
        exposure = None
        if token is not None:
            exposure = self._exposures.get(port)
            if exposure is None or not is_exposed([exposure], port, token):
                raise PortNotExposed(f"port {port} is not exposed")
        return PortConnection(
            partial(self._connect if token is not None else self._connect_awake, check_port(port)),
            on_open=partial(self._opened, exposure),
            on_close=self._closed,
        )

    async def _connect_awake(self, port: int) -> socket.socket:
        """Connect as a call of the sandbox's own user does, which wakes one that sleeps; a visitor wakes none."""
        if not self.gate.is_open:
            await self.gate.ready()
        self.gate.begin()
        try:
            return await self._connect(port)
        finally:
            self.gate.end()

    def end_connections(self) -> None:
        """End all connections: everything inside has ended."""
        for connection in builtins.list(self._connections):
            connection.abort()

    async def revoke(self) -> None:
        """Revoke every exposure: the sandbox is as it was created."""
        self._exposures.clear()
        self.end_connections()
        async with self._publishing:
            await self._publisher.publish(self._exposures.values())

    async def close(self) -> None:
        """Revoke every exposure: the sandbox ends."""
        self._exposures.clear()
        self.end_connections()
        async with self._publishing:
            await self._publisher.close()

    def _opened(self, exposure: Exposure | None, connection: PortConnection) -> None:
        self._connections[connection] = exposure
        self.gate.begin()
        if exposure is not None and self._exposures.get(exposure.port) is not exposure:
            connection.abort()

    def _closed(self, connection: PortConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self.gate.end()

    def _check_exposed(self, exposure: Exposure) -> None:
        if self._exposures.get(exposure.port) is not exposure:
            raise PortNotExposed(f"port {exposure.port} was unexposed meanwhile")

    def _forget(self, exposure: Exposure) -> None:
        if self._exposures.get(exposure.port) is exposure:
            del self._exposures[exposure.port]
        for connection, through in builtins.list(self._connections.items()):
            if through is exposure:
                connection.abort()
