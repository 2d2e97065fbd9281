"""Judge the endpoint of a bucket, and pin its addresses: what was judged is what rclone connects to. Blocks."""

import ipaddress
import socket

from cove.core.network_grants import NetworkGrants
from cove.core.network_policy import Address, judge_address
from cove.errors import PermissionDenied, SandboxUnavailable
from cove.model import BucketMount

_MOST_ADDRESSES = 8


def pin_endpoint(mount: BucketMount, grants: NetworkGrants) -> str:
    """The only names that its rclone may know, in the form of hosts(5). Raises PermissionDenied."""
    private = mount.host in grants.private or f"{mount.host}:{mount.port}" in grants.private
    reasons, allowed = [], []
    for address in _resolve(mount):
        reason = _judge(address, private=private)
        if reason is None:
            allowed.append(address)
        else:
            reasons.append(reason)
    if not allowed:
        raise PermissionDenied(f"endpoint {mount.host} is refused: {'; '.join(reasons)}")
    return "".join(f"{address} {mount.host}\n" for address in allowed[:_MOST_ADDRESSES])


def _resolve(mount: BucketMount) -> list[Address]:
    try:
        found = socket.getaddrinfo(mount.host, mount.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise SandboxUnavailable(f"endpoint {mount.host} cannot be resolved: {error}") from None
    return list(dict.fromkeys(ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found))


def _judge(address: Address, *, private: bool) -> str | None:
    reason = judge_address(address, private=private)
    if reason is None and not private and _is_own(address):
        return f"{address} is an address of this host"
    return reason


def _is_own(address: Address) -> bool:
    """Return whether this host has the address: the kernel would then send from it. A UDP connect sends nothing."""
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((str(address), 9))
        except OSError:
            return False
        return ipaddress.ip_address(str(sock.getsockname()[0]).partition("%")[0]) == address
