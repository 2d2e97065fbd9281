"""Attempts to get past a network policy that allows one name, on a port on which the host has a service."""

import os
import socket

from cove.verify.inside.harness import Blocked, Facts, probe
from cove.verify.inside.network import OWN_NAME_SERVER, find_route

AREA = "network policy"
_SECONDS = 3.0


@probe(AREA, "the host's loopback is reached on a port that the policy allows")
def reach_the_hosts_loopback_on_an_allowed_port(facts: Facts) -> str:
    with socket.create_connection(("127.0.0.1", int(facts["port"])), _SECONDS) as sock:
        try:
            sock.recv(1)
        except TimeoutError:
            return "it holds the connection"
    raise Blocked("the connection was ended at once")


@probe(AREA, "there is a way past the policy by address")
def have_a_route_past_the_policy(facts: Facts) -> str:
    for address in ("192.0.2.1", "169.254.169.254", "10.0.0.1"):
        try:
            return find_route(address)
        except OSError as error:
            refusal = error
    raise refusal


@probe(AREA, "a name that the policy does not allow is resolved")
def resolve_another_name(facts: Facts) -> str:
    return str(socket.getaddrinfo(facts["hostname"], 80, socket.AF_INET)[0][4])


@probe(AREA, "code inside answers for the name server")
def take_the_name_servers_place(facts: Facts) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((OWN_NAME_SERVER, 53))
    return "its address was free"


@probe(AREA, "the process that carries connections is seen")
def see_the_egress_process(facts: Facts) -> str:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/comm") as file:
                    if file.read() == "cove-egress\n":
                        return f"process {entry.name}"
            except OSError:
                continue  # it has ended
    raise Blocked("it is in no list of processes")
