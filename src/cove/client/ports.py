"""Client of the ports of a sandbox."""

from functools import partial

from cove import api
from cove.client.handle import Handle
from cove.core.readiness import check_port
from cove.local.tcp_stream import TcpStream
from cove.wire import operations
from cove.wire.target import Target


class Ports(Handle, api.Ports, target=Target.PORTS):
    """Exposed ports are reached through the server's preview port; connections go through its API."""

    def connect(self, port: int) -> TcpStream:
        path = self._calls.path(operations.CONNECT_PORT, str(check_port(port)))
        return TcpStream(partial(self._calls.transport.raw, path))
