"""Packets with descriptors over SOCK_SEQPACKET: unix(7)."""

import array
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cove.agent.protocol import LARGE, LIMIT, MAX_DESCRIPTORS, ProtocolError
from cove.linux.descriptors import sealed_file
from cove.linux.forking import close_in_forked_child

_CREDENTIALS = struct.Struct("iII")
# All that one packet can carry (SCM_MAX_FD): what does not fit is closed by the kernel, in our thread.
_MOST_SENT = 253
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MOST_SENT * 4) + socket.CMSG_SPACE(_CREDENTIALS.size)
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
    is_truncated: bool = False

    def check(self) -> None:
        """Raise ProtocolError when it is larger than agreed."""
        if self.is_truncated or len(self.descriptors) > MAX_DESCRIPTORS:
            raise ProtocolError("a packet was larger than agreed")


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return our end, non-blocking, and the end to hand over."""
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
    """Receive the next packet, or None when the other end is closed. Raises BlockingIOError when there is none yet."""
    data, ancillary, flags, _ = sock.recvmsg(LIMIT, _ANCILLARY_BYTES, _MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    pid = None
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += array.array("i", value[: len(value) // 4 * 4])
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(value)[0]
    if not data and not descriptors:
        return None
    return Packet(data, descriptors, pid, bool(flags & _TRUNCATED))


def release_socket(sock: socket.socket) -> int | None:
    """Close our end of a pair. Returns its descriptor instead when there is something in it that nobody has read.

    Whoever closes that frees the descriptors in it, and with them perhaps gigabytes: not on an event loop.
    """
    try:
        sock.shutdown(socket.SHUT_RDWR)
        is_empty = not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        is_empty = True
    if not is_empty:
        return sock.detach()
    sock.close()
    return None


def pass_credentials(sock: socket.socket, on: bool) -> None:
    """Have received packets name their sender (SO_PASSCRED), or not."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, on)
