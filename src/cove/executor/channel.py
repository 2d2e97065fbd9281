"""Write and read frames between an executor and the runtime: see cove/core/executor_protocol.py.

A frame is its kind, one byte; the length of its payload, four bytes; the payload. What is shown and errors are messages
of several frames: the kind of message, then each part with its name and pieces, then the end.
"""

from __future__ import annotations

import _thread
import json
import sys

from cove.agent import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Mapping

    Part = str | list[bytes]

LENGTH_BYTES = 4
SEND_BYTES = RECEIVE_BYTES = 65536
READY, DISPLAY, VALUE, ERROR, TEXT, JSON, PIECE, END, PACKAGES, DONE, FORKED, REFUSED = (
    bytes([kind]) for kind in b"RDVXTJ+.PEFN"
)
# A request to fork comes with standard output, standard error and the channel of the copy.
MOST_DESCRIPTORS = 3

# A single result that takes more memory than this is cut; the end of its message says so.
MOST_RESULT_BYTES = 15 << 20
MOST_PARTS = 60
# One character is at most four bytes: a piece fits into a frame.
PIECE_CHARACTERS = 16384
# JSON: what a piece holds, how deep it goes, how large a number is, and what tokens take in memory at the runtime's.
PIECE_TOKENS, TOKEN_CHARACTERS = 400, 2000
MOST_DEPTH = 90
MOST_NUMBER_BITS = 1024
CONTAINER_BYTES, TOKEN_BYTES = 2048, 64


class Channel:
    """The executor's end. `descriptors` are those that came with the last request."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = _thread.allocate_lock()
        self._received = bytearray()
        self.descriptors: list[int] = []

    def receive(self) -> dict[str, str] | None:
        """Receive the next request; None when the runtime has closed the channel."""
        head = self._read(LENGTH_BYTES)
        if len(head) < LENGTH_BYTES:
            return None
        request: dict[str, str] = json.loads(self._read(int.from_bytes(head, "big")))
        return request

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            data, descriptors = kernel.receive(self._sock, RECEIVE_BYTES, MOST_DESCRIPTORS)
            self.descriptors += descriptors
            if not data:
                break
            self._received += data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def detach(self) -> int:
        """Give up the socket without closing it, and return its descriptor."""
        return self._sock.detach()

    def send(self, frames: Iterable[bytes]) -> None:
        """Send these frames with none of another thread's between them."""
        with self._lock:
            waiting, size = [], 0
            for each in frames:
                waiting.append(each)
                size += len(each)
                if size >= SEND_BYTES:
                    self._sock.sendall(b"".join(waiting))
                    waiting, size = [], 0
            self._sock.sendall(b"".join(waiting))


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Encode one frame."""
    return kind + len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def message(kind: bytes, parts: Mapping[str, Part], is_cut: bool = False) -> Iterator[bytes]:
    """Encode a display, a value or an error as frames. What is neither text nor pieces of JSON is no part."""
    yield frame(kind)
    for name, value in parts.items():
        yield frame(TEXT if isinstance(value, str) else JSON, name.encode("utf-8", "replace"))
        if not isinstance(value, str):
            yield from (frame(PIECE, piece) for piece in value)
            continue
        for at in range(0, len(value), PIECE_CHARACTERS):
            yield frame(PIECE, value[at : at + PIECE_CHARACTERS].encode("utf-8", "replace"))
    yield frame(END, b"!" if is_cut else b"")


def bounded(bundle: dict[str, object]) -> tuple[dict[str, Part], bool]:
    """Return the parts of a message without what is too large, the smallest first, and whether anything was cut."""
    parts: dict[str, Part] = {}
    sizes: dict[str, int] = {}
    is_cut = len(bundle) > MOST_PARTS
    for mime, value in list(bundle.items())[:MOST_PARTS]:
        try:
            parts[mime], sizes[mime] = (value, sys.getsizeof(value)) if isinstance(value, str) else json_pieces(value)
        except ValueError:
            is_cut = True
    kept: dict[str, Part] = {}
    room = MOST_RESULT_BYTES
    for mime in sorted(parts, key=sizes.__getitem__):
        part = parts[mime]
        if sizes[mime] > room:
            is_cut = True
            if mime != "text/plain" or not isinstance(part, str):
                continue
            part = part[: room * len(part) // sizes[mime]]
        kept[mime] = part
        room = max(0, room - sizes[mime])
    return kept, is_cut


def json_pieces(value: object) -> tuple[list[bytes], int]:
    """Encode a JSON value in pieces, with its size in memory. Raises ValueError when it is too large or too deep."""
    pieces: list[bytes] = []
    piece: list[object] = []
    characters = size = 0
    for token in tokens_of(value):
        piece.append(token)
        if isinstance(token, str):
            characters += len(token)
            size += CONTAINER_BYTES if token in ("[", "{") else TOKEN_BYTES + sys.getsizeof(token)
        else:
            size += TOKEN_BYTES
        if size > MOST_RESULT_BYTES:
            raise ValueError("too large")
        if len(piece) == PIECE_TOKENS or characters >= TOKEN_CHARACTERS:
            pieces.append(encode_tokens(piece))
            piece, characters = [], 0
    if piece:
        pieces.append(encode_tokens(piece))
    return pieces, size


def encode_tokens(tokens: list[object]) -> bytes:
    """Encode one piece of JSON."""
    return json.dumps(tokens, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def tokens_of(value: object, depth: int = 0) -> Iterator[object]:
    """Tokenise a value as JSON: numbers that are not finite become null, what is nothing of JSON its text."""
    if depth > MOST_DEPTH:
        raise ValueError("too deep")
    if value is None or isinstance(value, bool):
        yield value
    elif isinstance(value, int):
        if value.bit_length() > MOST_NUMBER_BITS:
            raise ValueError("too large a number")
        yield int(value)
    elif isinstance(value, float):
        yield float(value) if value - value == 0 else None
    elif isinstance(value, dict):
        yield "{"
        for key, inner in value.items():
            yield from string_tokens(key_of(key))
            yield from tokens_of(inner, depth + 1)
        yield "]"
    elif isinstance(value, (list, tuple)):
        yield "["
        for inner in value:
            yield from tokens_of(inner, depth + 1)
        yield "]"
    else:
        yield from string_tokens(str(value))


def string_tokens(text: str) -> Iterator[str]:
    """Yield a string, in pieces if it is long."""
    if len(text) < TOKEN_CHARACTERS:
        yield '"' + text
        return
    yield "("
    for at in range(0, len(text), TOKEN_CHARACTERS):
        yield '"' + text[at : at + TOKEN_CHARACTERS]
    yield "]"


def key_of(key: object) -> str:
    """Return a key as json.dumps writes it."""
    if isinstance(key, str):
        return key
    return json.dumps(key) if key is None or isinstance(key, (bool, int, float)) else str(key)
