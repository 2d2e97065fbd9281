"""Client of the ports of a sandbox."""

import builtins
from functools import partial

from cove import api
from cove.client.calls import Calls
from cove.core.exposure import make_exposure
from cove.core.readiness import check_port
from cove.local.tcp_stream import TcpStream
from cove.model import ExposedPort
from cove.wire import operations, requests


class Ports(api.Ports):
    """Exposed ports are reached through the server's preview port; connections go through its API."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def expose(self, port: int, name: str | None = None, token: str | None = None) -> ExposedPort:
        make_exposure(port, name, token)
        request = requests.ExposePort(port=port, name=name, token=token)
        return await self._calls.get(operations.EXPOSE_PORT, ExposedPort, request=request)

    async def unexpose(self, port: int) -> None:
        await self._calls.do(operations.UNEXPOSE_PORT, str(check_port(port)))

    async def list(self) -> builtins.list[ExposedPort]:
        return await self._calls.get(operations.LIST_PORTS, builtins.list[ExposedPort])

    def connect(self, port: int) -> TcpStream:
        path = self._calls.path(operations.CONNECT_PORT, str(check_port(port)))
        return TcpStream(partial(self._calls.transport.raw, path))
