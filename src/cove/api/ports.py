"""Interface of the ports inside a sandbox: port forwarding and preview URLs."""

import builtins
from abc import ABC, abstractmethod
from typing import Self

from cove.model import ExposedPort


class TcpConnection(ABC):
    """A connection to a port inside, opened and closed by `with`."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def open(self) -> None:
        """Connect; ServiceNotResponding when nothing listens there."""

    @abstractmethod
    async def read(self, most: int = 65536) -> bytes:
        """Return what has come, at most so many bytes; waits for the first. b"" at the end of the stream."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send; returns when the system has taken it all. ConnectionLost when the other side is gone."""

    @abstractmethod
    async def write_eof(self) -> None:
        """Say that nothing more will be written; reading goes on."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection. Idempotent."""


class Ports(ABC):
    """The listening ports inside the sandbox, and who outside can reach them."""

    @abstractmethod
    async def expose(self, port: int, name: str | None = None, token: str | None = None) -> ExposedPort:
        """Let whoever knows the URL reach the port; `token` is what makes it hard to guess.

        Nothing has to listen yet. PortAlreadyExposed if it is exposed.
        """

    @abstractmethod
    async def unexpose(self, port: int) -> None:
        """Revoke the URL: it leads nowhere from here on, and connections that came through it end. Idempotent."""

    @abstractmethod
    async def list(self) -> builtins.list[ExposedPort]:
        """Return all exposed ports, in order."""

    @abstractmethod
    def connect(self, port: int) -> TcpConnection:
        """Connect to the port, exposed or not, for this program alone: `async with ports.connect(5432) as c`."""
