"""The egress process: takes its policy and listening sockets from the runtime, and ends with it.

It holds what the sandbox's connections need and nothing else of the runtime's: no control socket of the sandbox, no
log, no key of a server. A fault in a parser here costs connections, not commands.
"""

import asyncio
import ctypes
import encodings.idna  # noqa: F401  # names are encoded by it, when root's files can no longer be read
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

import dns.rdata
import uvloop

from cove.core.egress_protocol import CONFIGURE, Configure, Configured, Synced, decode_configuration, decode_sync
from cove.egress.event_report import EventReport
from cove.egress.gate import Gate
from cove.egress.trust import HostTrust
from cove.linux.forking import name_process
from cove.linux.packets import receive_packet
from cove.local.threads import close_all

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_OPEN_FILES = 16_384
_MOST_CONFIGURATION = 4 << 20


def main() -> None:
    """Arguments: the descriptor of the socket to the runtime, and the user to be, or nothing."""
    descriptor, user_id = sys.argv[1:]
    trust = HostTrust()
    _harden(int(user_id) if user_id else None)
    control = socket.socket(fileno=int(descriptor))
    control.setblocking(False)
    uvloop.run(_serve(control, trust))


def _harden(user_id: int | None) -> None:
    """No other process of this user can look into it, it gains no rights, and it may have many connections.

    As root it becomes the sandbox's own host user: what it reads comes from hostile programs and hosts.
    """
    name_process("cove-egress")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that the sandbox belongs to
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if user_id is not None:
        dns.rdata.load_all_types()  # type: ignore[no-untyped-call]  # parsers are imported when they are needed, perhaps from where only root can read
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


async def _serve(control: socket.socket, trust: HostTrust) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    report = EventReport(control)
    gate = Gate(report, trust)

    def read() -> None:
        with suppress(BlockingIOError):
            if not _take(control, gate, report) and not ended.done():
                ended.set_result(None)

    loop.add_reader(control, read)
    await ended
    os._exit(0)  # connections end with the process; nothing is to be saved


def _take(control: socket.socket, gate: Gate, report: EventReport) -> bool:
    """Do what one packet says; whether there was one."""
    try:
        packet = receive_packet(control)
    except ConnectionError:
        return False
    if packet is None:
        return False
    if packet.data == CONFIGURE:
        configuration, key_file, totals, *rest = packet.descriptors
        message = _read_configuration(configuration)
        cassette = rest.pop(0) if message.has_cassette else None
        try:
            report.count_in(totals)
            certificate = gate.configure(message, key_file, cassette, [socket.socket(fileno=each) for each in rest])
        finally:
            close_all([key_file, totals])
        report.answer(Configured(certificate=certificate))
    else:
        close_all(packet.descriptors)
        report.answer(Synced(tag=decode_sync(packet.data).tag))
    return True


def _read_configuration(descriptor: int) -> Configure:
    with open(descriptor, "rb") as file:
        return decode_configuration(file.read(_MOST_CONFIGURATION))


if __name__ == "__main__":
    main()
