"""Attempts of root inside to have more than what is the sandbox's own."""

import os
import socket
import stat
from pathlib import Path

from cove.verify.inside.harness import Blocked, Facts, probe

AREA = "root"
# chown, all of DAC but searching, what owners may, set-id bits, signals, identity, ports, own sets, file capabilities
_KNOWN = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 8, 10, 31))
_BEYOND = 1 << 20
_SETTINGS = ("/proc/sys/kernel/shmmax", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces")


@probe(AREA, "root has capabilities beyond those of its own files and processes")
def have_more_capabilities(facts: Facts) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    held = {line.split()[0]: int(line.split()[1], 16) for line in lines if line.startswith("Cap")}
    more = {name: value & ~_KNOWN for name, value in held.items() if value & ~_KNOWN}
    if not more:
        raise Blocked("it has none but those")
    return f"{ {name: hex(value) for name, value in more.items()} }"


@probe(AREA, "the kernel itself leaves room for user namespaces")
def have_room_for_user_namespaces(facts: Facts) -> str:
    """Ask the limit, not the filter: either of them must be enough."""
    if Path("/proc/self/uid_map").read_text().split()[2] == "1":
        raise Blocked("bubblewrap has made the last one that its limit allows")
    most = int(Path("/proc/sys/user/max_user_namespaces").read_text())
    if most == 0:
        raise Blocked("there may be none")
    return f"{most} may be made"


@probe(AREA, "settings of the kernel can be written")
def change_settings(facts: Facts) -> str:
    failures = []
    for path in _SETTINGS:
        try:
            os.close(os.open(path, os.O_WRONLY))
        except OSError as error:
            failures.append(str(error))
        else:
            return f"{path} could be opened for writing"
    raise Blocked("; ".join(failures))


@probe(AREA, "files can belong to users of somebody else")
def own_beyond_the_range(facts: Facts) -> str:
    path = f"{facts['work']}/.cove-verify-beyond"
    Path(path).touch()
    try:
        os.chown(path, _BEYOND, _BEYOND)
        if os.stat(path).st_uid != _BEYOND:
            raise Blocked("it is only said to be so")
    finally:
        os.unlink(path)
    return f"it belongs to {_BEYOND}"


@probe(AREA, "an identity beyond the sandbox's own can be had")
def become_somebody_beyond(facts: Facts) -> str:
    os.setresuid(_BEYOND, _BEYOND, _BEYOND)
    if os.getuid() != _BEYOND:
        raise Blocked("it is only said to be so")
    return f"it is {_BEYOND}"


@probe(AREA, "devices can be made")
def make_a_device(facts: Facts) -> str:
    path = f"{facts['work']}/.cove-verify-device"
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 0))
    os.unlink(path)
    return "a disk could be made"


@probe(AREA, "raw packets can be sent")
def open_a_raw_socket(facts: Facts) -> str:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return "a raw socket could be opened"


@probe(AREA, "what the agent is made of can be changed")
def change_the_agent(facts: Facts) -> str:
    """Try to write what runs as PID 1; the control tries a file of root's own."""
    path = "/run/cove/agent" if os.path.exists("/run/cove/agent") else facts["folder"]
    made = f"{path}/.cove-verify-made"
    os.close(os.open(made, os.O_WRONLY | os.O_CREAT, 0o600))
    os.unlink(made)
    return f"a file could be made in {path}"


@probe(AREA, "the memory of PID 1 can be read")
def read_the_memory_of_init(facts: Facts) -> str:
    """Read the memory of PID 1; the control, whose PID 1 is the host's, that of a process of its own."""
    pid = 1 if os.path.exists("/run/cove/agent") else os.getpid()
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    return f"/proc/{pid}/mem could be opened"
