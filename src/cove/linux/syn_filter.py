"""Drop SYN packets of a listening socket: it gets no new connections, and those that it has can still be accepted.

Closed, it would reset what is in its queue, also calls that were sent there already: whether those ran is then unknown.
"""

import ctypes
import socket
import struct

from cove.core.bpf import assemble, clear_bits, give, if_equal, load

_SO_ATTACH_FILTER = 26
_FLAGS = 12  # the word of a TCP header with them
_SYN = 0x02 << 16
_ACK = 0x10 << 16
_EVERYTHING = 0xFFFFFFFF
_PROGRAM = [
    *load(_FLAGS),
    *clear_bits(~(_SYN | _ACK) & _EVERYTHING),
    *if_equal(_SYN, give(0)),
    *give(_EVERYTHING),
]


def drop_new_connections(listener: socket.socket) -> bool:
    """Drop attempts to connect, for all processes that have the socket. Whoever tries tries again a second later.

    Returns whether it is so: some kernels let nobody but root set a filter.
    """
    code = ctypes.create_string_buffer(assemble(_PROGRAM))
    program = struct.pack("@HP", len(_PROGRAM), ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True
