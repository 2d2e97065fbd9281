"""Let a server reach the registries that its configuration allows, and nothing else. Blocks.

Every host that is asked counts: also those that a registry redirects to, and those that give tokens. What was judged is
what is connected to: a name that resolves to something else the next time (DNS rebinding) gains nothing.
"""

import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass

from cove.core.network_policy import Address
from cove.errors import PermissionDenied
from cove.local.addresses import judge_for_host

_MOST_ADDRESSES = 8


@dataclass(frozen=True, slots=True)
class RegistryGuard:
    """`allowed` and `private` are hosts, each `name` or `name:port`; only those of `private` may be private addresses.

    An allowed one may be `*.name`, for all names below it; such a one is never private.
    """

    allowed: Collection[str]
    private: Collection[str]

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """Connect to an allowed host. Raises PermissionDenied, OSError."""
        if not self._is_allowed(host.lower(), port):
            raise PermissionDenied(
                f"this server does not pull images from {host}:{port}: its `allow_registries` name where from"
            )
        is_private = self._has(self.private, host.lower(), port)
        reasons: list[str] = []
        failure: OSError | None = None
        for address in _resolve(host, port)[:_MOST_ADDRESSES]:
            reason = judge_for_host(address, private=is_private)
            if reason is not None:
                reasons.append(reason)
                continue
            try:
                return socket.create_connection((str(address), port), seconds)
            except OSError as error:
                failure = error
        raise failure or PermissionDenied(f"the registry {host} is refused: {'; '.join(reasons)}")

    def _is_allowed(self, host: str, port: int) -> bool:
        above = [host.partition(".")[2]]
        while above[-1]:
            above.append(above[-1].partition(".")[2])
        patterns = {f"*.{name}" for name in above if name}
        return self._has(self.allowed, host, port) or bool(patterns & set(self.allowed))

    @staticmethod
    def _has(hosts: Collection[str], host: str, port: int) -> bool:
        return host in hosts or f"{host}:{port}" in hosts


def _resolve(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host} is no name") from None
    return list(dict.fromkeys(ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found))
