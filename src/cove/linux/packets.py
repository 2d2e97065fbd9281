"""Packets with descriptors over SOCK_SEQPACKET: unix(7)."""

import array
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cove.agent.protocol import LARGE, LIMIT, MAX_DESCRIPTORS, ProtocolError
from cove.linux.forking import close_in_forked_child
from cove.linux.memory_file import sealed_file

_CREDENTIALS = struct.Struct("iII")
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4) + socket.CMSG_SPACE(_CREDENTIALS.size)
# A received packet names at most this many payload bytes; larger ones go by memfd.
_PACKET_BYTES = LIMIT - 1024
_MSG_CMSG_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


@dataclass(slots=True)
class Packet:
    """One received packet; whoever takes it owns the descriptors. `pid` is the sender, as the kernel says."""

    data: bytes
    descriptors: list[int]
    pid: int | None


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Our end, non-blocking, and the end to hand over."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    close_in_forked_child(ours)
    return ours, theirs


def send_packet(sock: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one packet; a large one goes as a sealed memory file."""
    if len(data) <= _PACKET_BYTES:
        _send(sock, data, descriptors)
        return
    with sealed_file(data) as file:
        _send(sock, LARGE, [*descriptors, file.fileno()])


def _send(sock: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([data], rights)


def receive_packet(sock: socket.socket) -> Packet | None:
    """The next packet, or None when the other end is closed. Raises BlockingIOError when there is none yet."""
    data, ancillary, flags, _ = sock.recvmsg(LIMIT, _ANCILLARY_BYTES, _MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    pid = None
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += array.array("i", value[: len(value) // 4 * 4])
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(value)[0]
    if flags & _TRUNCATED:
        close_all(descriptors)
        raise ProtocolError("a packet was larger than agreed")
    if not data:
        close_all(descriptors)
        return None
    return Packet(data, descriptors, pid)


def pass_credentials(sock: socket.socket, on: bool) -> None:
    """Whether received packets name their sender."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, on)


def close_all(descriptors: Sequence[int]) -> None:
    """Close received descriptors that nobody wants."""
    for descriptor in descriptors:
        os.close(descriptor)
