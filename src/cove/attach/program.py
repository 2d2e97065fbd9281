"""The helper that enters a jail's namespaces: performs steps that come one by one, passes descriptors back, and ends.

It executes nothing, reads no file that lies inside and follows no link there. Every path inside is resolved once, by
openat2(2); what is mounted is mounted by descriptor. A step is `verb NUL field …`, with its descriptors. A packet on
its socket has steps that are performed in turn, up to the first that fails; a line before them says for each how many
bytes and descriptors it has. It is answered by `ok`, with descriptors, or by `error NUL errno NUL which NUL subject`.
An alarm ends the helper, whatever it waits for. The packet `fork` with a socket has another helper forked, which serves
that socket; it is not answered.

Standard library only, and as little of that as possible: starts of jails wait for its import. Runs as a program, or in
a fork of a process that has it imported; root performs some steps in a thread.
"""

import _socket
import posix
import sys

if __name__ == "__main__":
    # Beside this program lies all of Cove that it needs.
    sys.modules["cove"] = sys.modules["cove.attach"] = package = type(sys)("cove.attach")
    package.__path__ = [__file__.rpartition("/")[0]]

from cove.attach import kernel
from cove.attach.performer import Performer

PACKET_BYTES = 1 << 16
MOST_DESCRIPTORS = 253  # SCM_MAX_FD
SOL_SOCKET = 1
FORK = b"fork"


def serve(sock: _socket.socket) -> None:
    """Perform packets of steps until the other end is closed. The first, `begin`, says how many seconds there are."""
    kernel.call("itself", kernel.prctl, kernel.PR_SET_DUMPABLE, 0, 0, 0, 0)
    performer = Performer()
    while True:
        try:
            packet, descriptors = _receive(sock)
        except ConnectionResetError:
            return  # whoever asked has ended before it read the last answer
        if not packet:
            return
        if packet == FORK:
            sock = _fork(sock, descriptors[0])
            continue
        answer = b"ok"
        try:
            performer.perform_all(_split(packet, descriptors))
        except kernel.Failed as failure:
            subject = failure.subject.encode("utf-8", "surrogateescape")
            answer = b"error\0%d\0%d\0%s" % (failure.number, failure.at, subject)
        try:
            _answer(sock, answer, performer.given)
        except BrokenPipeError:
            return  # whoever asked has ended, and waits for nothing
        performer.given = []
        for descriptor in descriptors:
            posix.close(descriptor)


def _fork(sock: _socket.socket, other: int) -> _socket.socket:
    """Fork; returns the socket that this process serves from here on. Those that have ended meanwhile are reaped."""
    try:
        while posix.waitpid(-1, posix.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    if posix.fork():
        posix.close(other)
        return sock
    sock.close()
    return _socket.socket(fileno=other)


def _split(packet: bytes, descriptors: list[int]) -> list[tuple[bytes, list[int]]]:
    """Take a packet apart: `BYTES.DESCRIPTORS …` and a line's end, then the steps."""
    steps = []
    head, _, rest = packet.partition(b"\n")
    for sizes in head.split():
        length, count = map(int, sizes.split(b"."))
        steps.append((rest[:length], descriptors[:count]))
        rest, descriptors = rest[length:], descriptors[count:]
    return steps


def _receive(sock: _socket.socket) -> tuple[bytes, list[int]]:
    size = _socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
    packet, ancillary, _, _ = sock.recvmsg(PACKET_BYTES, size, _socket.MSG_CMSG_CLOEXEC)
    rights = b"".join([data for level, kind, data in ancillary if (level, kind) == (SOL_SOCKET, _socket.SCM_RIGHTS)])
    return packet, [int.from_bytes(rights[at : at + 4], sys.byteorder) for at in range(0, len(rights), 4)]


def _answer(sock: _socket.socket, packet: bytes, descriptors: list[int]) -> None:
    rights = b"".join([each.to_bytes(4, sys.byteorder) for each in descriptors])
    sock.sendmsg([packet], [(SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else [])


if __name__ == "__main__":
    serve(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0))
