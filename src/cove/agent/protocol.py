"""The protocol between runtime and agent: NUL-separated fields, descriptors beside them.

Theory of operation. Every message is one SOCK_SEQPACKET packet of at most LIMIT bytes with at most
MAX_DESCRIPTORS descriptors. A packet is a verb and its fields; no field can contain NUL, because
paths, arguments and environment entries cannot, but content, which is the last field. A request
larger than a packet travels in a sealed memfd: the packet is then the single verb LARGE, and the
memfd is its last descriptor.

    runtime -> init       launcher tag               + socket     fork a launcher, serve it on the socket
                          end tag pid                             end that launcher and all it started
                          wake tag pid                            continue what is stopped below that launcher
                          open tag flags mode path                open a file with the sandbox's rights
                          read tag most path                      the content of a file of at most so many bytes;
                                                                  otherwise nothing and a descriptor
                          write tag mode path content             replace a file
                          stat tag follow path                    describe a file
                          connect tag host port                   connect inside the network namespace
                          readlink tag path                       where a symbolic link points
                          create tag path                         a new file beside the one at path: its name for
                                                                  now, its name to be, and a descriptor
                          commit tag mode new path                let the new file take the place of the one at path;
                                                                  0: it has to be written over
                          mkdir tag parents path                  make a directory
                          unlink tag path                         remove a file
                          rename tag old new                      rename a file
                          chmod tag mode path                     change a file's mode
                          terminal tag                            a new pty: its name, master and slave
                          as tag user verb ...                    any of these as `uid:gid:group,...`: see kernel.become
    init -> runtime       hello                                   it runs, and will answer requests
                          ok tag ...                 (+ fd)       the answer to the request with that tag
                          error tag errno                         the request failed

    runtime -> launcher   spawn cwd targets tty user argc argv... env...   + one fd a target: see SNAPSHOTS
                          signal number scope label ticks         scope tree: every process below the launcher;
                                                                  main: the spawned one; new: what has that label,
                                                                  and of what has none that which came since;
                                                                  feeding: those of them that the spawned one reads
                                                                  from, which are only counted; copy: the adopted
                                                                  one with that label; branch: it and what it started,
                                                                  or without a label the spawned one's
                          adopt label pid                         report the end of this child too: see `copy`
                          end label                               kill a branch
                          drain                      + fds        read these to their end, for nobody
    launcher -> runtime   ready                                   parked
                          started pid | refused step errno        the answer to spawn
                          signaled count                          the answer to signal; to adopt: 1, or 0 where it is no
                                                                  child; to end: how many are left
                          stopped                                 the spawned process was stopped by a signal
                          exit status user system maxrss empty    the spawned process ended
                          copy label exit ...                     an adopted process ended; also copy label stopped
                          empty                                   nothing it started is left
"""

LIMIT = 65536
MAX_DESCRIPTORS = 16

LARGE = b"large"

# After the number of a target: what comes is a shell's snapshot, and the script made from it is what is handed on.
# A session's is restored with its traps, a copy's without.
SESSION, COPY, PROCESS = b"s", b"c", b"p"
SNAPSHOTS = SESSION + COPY + PROCESS

MOST_ERRNO = 4095
MOST_WAIT_STATUS = 0xFFFF


class ProtocolError(Exception):
    """The other end broke the protocol; nothing it says can be trusted any more."""


def encode(*fields: bytes) -> bytes:
    """Return the packet for these fields."""
    return b"\0".join(fields)


def decode(packet: bytes, most: int) -> list[bytes]:
    """Return the fields of a packet: at most so many, of which the last has all that is left."""
    if not packet or len(packet) > LIMIT:
        raise ProtocolError("packet of %d bytes" % len(packet))
    return packet.split(b"\0", most - 1)


def number(field: bytes, most: int = (1 << 63) - 1) -> int:
    """Decode a decimal field from 0 to `most`."""
    if not field.isdigit() or len(field) > 19 or int(field) > most:
        raise ProtocolError("not a number up to %d: %r" % (most, field[:40]))
    return int(field)


def encode_number(value: int) -> bytes:
    """Encode a decimal field."""
    return b"%d" % value
