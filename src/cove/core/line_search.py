"""Search lines for a regular expression in a process of its own, which runs this file: Python's `re` may never return.

Theory of operation. The first frame on descriptor 0 is the expression: its flags, then its text. Every later one is
output of the stream that is its kind; an empty one says that the output has ended. Each is answered by one frame:
NOTHING, FOUND with the line and its groups, or SLOW. A line that takes more than LINE_SECONDS of CPU time is left out;
SLOW says that there were more than MOST_SLOW of them.
A frame is a kind of one byte and the length of what follows. No other module of this package is there to import.
"""

import codecs
import re
import resource
import signal
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import FrameType

HEAD = struct.Struct("!cI")
NOTHING, SLOW, FOUND = b"-", b"~", b"="
STREAMS = (b"o", b"e")
LONGEST_LINE = 1 << 16
LINE_SECONDS = 1.0
MOST_SLOW = 3
_LENGTH = struct.Struct("!i")
_MEMORY_BYTES = 1 << 30


class TooSlow(Exception):
    """The time for one line is over."""


class LineSearch:
    """Fed with chunks of each stream; finds the first line that matches. Lines beyond LONGEST_LINE come in parts."""

    def __init__(self, expression: "re.Pattern[str]") -> None:
        self._expression = expression
        self._rest = dict.fromkeys(STREAMS, "")
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in STREAMS}
        self._slow = 0

    @property
    def is_slow(self) -> bool:
        """The expression is not fit for this output."""
        return self._slow > MOST_SLOW

    def feed(self, stream: bytes, data: bytes) -> "re.Match[str] | None":
        """Return the match that this chunk completes, if any."""
        *lines, rest = (self._rest[stream] + self._decoders[stream].decode(data)).split("\n")
        self._rest[stream] = rest[-LONGEST_LINE:]
        return self._first(line.removesuffix("\r")[-LONGEST_LINE:] for line in lines)

    def finish(self) -> "re.Match[str] | None":
        """Return the match in a last line without an end, if any."""
        return self._first(rest for rest in self._rest.values() if rest)

    def _first(self, lines: Iterable[str]) -> "re.Match[str] | None":
        return next((found for line in lines if (found := self._search(line)) is not None), None)

    def _search(self, line: str) -> "re.Match[str] | None":
        if self.is_slow:
            return None
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, LINE_SECONDS)
            found = self._expression.search(line)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            return found
        except (TooSlow, MemoryError):
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self._slow += 1
            return None


def encode_expression(text: str, flags: int) -> bytes:
    """Encode the first frame: the expression."""
    data = _LENGTH.pack(flags) + text.encode("utf-8", "surrogatepass")
    return HEAD.pack(NOTHING, len(data)) + data


def encode_match(line: str, groups: Sequence[str | None]) -> bytes:
    """Return the line and its groups, each after its length; -1 is a group that takes no part."""
    return b"".join(_LENGTH.pack(-1) if field is None else _encode(field) for field in (line, *groups))


def _encode(field: str) -> bytes:
    data = field.encode()
    return _LENGTH.pack(len(data)) + data


def decode_match(data: bytes) -> tuple[str, tuple[str | None, ...]]:
    """Reverse `encode_match`."""
    fields: list[str | None] = []
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        fields.append(None if length < 0 else data[at : at + length].decode())
        at += max(length, 0)
    return fields[0] or "", tuple(fields[1:])


def serve(sock: socket.socket) -> None:
    """Answer every frame until the other end closes."""
    _, expression = _receive(sock)
    (flags,) = _LENGTH.unpack_from(expression)
    search = LineSearch(re.compile(expression[_LENGTH.size :].decode("utf-8", "surrogatepass"), flags))
    while True:
        stream, data = _receive(sock)
        found = search.feed(stream, data) if data else search.finish()
        answer = b"" if found is None else encode_match(found.string, found.groups())
        kind = FOUND if found is not None else SLOW if search.is_slow else NOTHING
        sock.sendall(HEAD.pack(kind, len(answer)) + answer)


def _receive(sock: socket.socket) -> tuple[bytes, bytes]:
    kind, length = HEAD.unpack(_exactly(sock, HEAD.size))
    return kind, _exactly(sock, length)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := sock.recv(size - len(data))):
            raise EOFError
        data += more
    return data


def _give_up(_: int, __: FrameType | None) -> None:  # pragma: no cover  # called in a process of its own
    raise TooSlow


def main() -> None:  # pragma: no cover  # limits the memory of the process that calls it
    """Serve descriptor 0."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _give_up)
    with suppress(EOFError, ConnectionError):
        serve(socket.socket(fileno=0))


if __name__ == "__main__":  # pragma: no cover  # in a process of its own
    main()
