"""Attempts to reach the network. Nothing is sent: to connect a datagram socket only asks for a route."""

import fcntl
import os
import socket
import struct

from cove.verify.inside.harness import Blocked, Facts, probe

AREA = "network"
OWN_NAME_SERVER = "127.0.0.53"


@probe(AREA, "a service on the host's loopback interface can be reached")
def reach_the_hosts_loopback(facts: Facts) -> str:
    socket.create_connection(("127.0.0.1", int(facts["port"])), 3).close()
    return "it answers"


@probe(AREA, "an abstract socket of the host can be reached")
def reach_an_abstract_socket(facts: Facts) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\0" + facts["abstract"])
    return "it answers"


@probe(AREA, "a socket file of the host can be reached")
def reach_a_socket_file(facts: Facts) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(facts["socket"])
    return "it answers"


def find_route(address: str, family: int = socket.AF_INET) -> str:
    """Return the address that packets to this one would come from. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((address, 9))
        return f"from {sock.getsockname()[0]}"


@probe(AREA, "there is a way to the internet")
def have_a_route(facts: Facts) -> str:
    return find_route("192.0.2.1")


@probe(AREA, "there is a way to the cloud's metadata service")
def have_a_route_to_metadata(facts: Facts) -> str:
    return find_route("169.254.169.254")


@probe(AREA, "there is a way to the host's private network")
def have_a_route_to_private_addresses(facts: Facts) -> str:
    return find_route("10.0.0.1")


@probe(AREA, "the host's interfaces are seen")
def see_interfaces(facts: Facts) -> str:
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    if not names:
        raise Blocked("there is only loopback")
    return ", ".join(names)


@probe(AREA, "the host's sockets are seen")
def see_sockets(facts: Facts) -> str:
    wanted = f":{int(facts['port']):04X} "
    with open("/proc/net/tcp") as table:
        if not any(wanted in line and " 0A " in line for line in table):
            raise Blocked("its port is not listed")
    return "its port is listed"


@probe(AREA, "an interface can be brought up")
def change_an_interface(facts: Facts) -> str:
    set_flags, up = 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", up | 0x40 | 0x8)
        fcntl.ioctl(sock, set_flags, request)
    return "it was changed"


@probe(AREA, "raw packets can be sent")
def make_a_raw_socket(facts: Facts) -> str:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return "a raw socket was made"


@probe(AREA, "the host's network namespace can be entered")
def enter_the_hosts_network(facts: Facts) -> str:
    own = os.stat("/proc/self/ns/net").st_ino
    if str(own) != facts["network_namespace"]:
        raise Blocked("it is another one")
    return "it is the host's"


@probe(AREA, "a name server of the host is configured")
def find_a_name_server(facts: Facts) -> str:
    with open("/etc/resolv.conf") as file:
        servers = [line.split()[1] for line in file if line.startswith("nameserver ")]
    if all(server == OWN_NAME_SERVER for server in servers):
        raise Blocked("there is none but the sandbox's own")
    return "it is"
