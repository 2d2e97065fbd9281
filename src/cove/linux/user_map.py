"""Map whole ranges of users into the user namespace of another process: user_namespaces(7)."""

import os
from pathlib import Path

from cove.linux.pidfd import open_fact

# CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN
_NEEDED = sum(1 << number for number in (0, 1, 3, 6, 7, 21))


def can_map_users(first: int, count: int) -> bool:
    """Return whether we are root with the rights to map these users, and they exist here: not in every container."""
    return os.geteuid() == 0 and _has_rights() and are_mapped(first, count)


def are_mapped(first: int, count: int) -> bool:
    """Return whether these users exist in our own user namespace."""
    return _covers(Path("/proc/self/uid_map").read_text(), first, count)


def write_user_map(pidfd: int, pid: int, first: int, count: int) -> None:
    """Let the users of that process's new user namespace, from 0 on, be so many of the host's."""
    for name in ("gid_map", "uid_map"):
        descriptor = open_fact(pidfd, pid, name, os.O_WRONLY)
        try:
            os.write(descriptor, f"0 {first} {count}\n".encode())
        finally:
            os.close(descriptor)


def _has_rights() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16) & _NEEDED == _NEEDED
    return False


def _covers(text: str, first: int, count: int) -> bool:
    extents = [tuple(map(int, line.split())) for line in text.splitlines()]
    return any(inside <= first and first + count <= inside + length for inside, _, length in extents)
