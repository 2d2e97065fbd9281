"""Judge addresses before this machine connects to them for somebody else."""

import ipaddress
import socket

from cove.core.network_policy import Address, judge_address


def judge_for_host(address: Address, *, private: bool) -> str | None:
    """Return why an address may not be reached, or None. This host's own addresses count as private."""
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
