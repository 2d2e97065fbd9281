"""Judge the endpoint of a bucket, and pin its addresses: what was judged is what rclone connects to. Blocks."""

import ipaddress
import socket

from cove.core.network_grants import NetworkGrants
from cove.core.network_policy import Address
from cove.errors import PermissionDenied, SandboxUnavailable
from cove.local.addresses import judge_for_host
from cove.model import BucketMount

_MOST_ADDRESSES = 8


def pin_endpoint(mount: BucketMount, grants: NetworkGrants) -> str:
    """The only names that its rclone may know, in the form of hosts(5). Raises PermissionDenied."""
    private = mount.host in grants.private or f"{mount.host}:{mount.port}" in grants.private
    reasons, allowed = [], []
    for address in _resolve(mount):
        reason = judge_for_host(address, private=private)
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
