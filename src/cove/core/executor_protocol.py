"""Parse frames of an executor, incrementally and with a budget; untrusted. See executor/channel.py.

Theory of operation. User code can write to an executor's channel, so whatever comes is untrusted. Frames
are flat and small: a kind, a length of at most 64 KiB, a payload. A display, a value or an error is a message of many
frames, put together piece by piece within a budget that counts what it takes in memory; what exceeds the budget is
discarded and flagged, and costs no more than reading it. JSON comes as flat lists of tokens: `json_tokens`. A caller
takes a bounded number of frames at a time, so that no callback is long whatever is sent.
"""

import codecs
import struct
from dataclasses import dataclass
from io import StringIO
from typing import Final

import msgspec

from cove.agent.protocol import ProtocolError
from cove.core.json_tokens import JsonBuilder
from cove.errors import UnsupportedLanguage
from cove.model.code import CodeError, Result

_KINDS: Final = b"RDVXTJ+.PEFN"
READY, DISPLAY, VALUE, ERROR, TEXT, JSON, PIECE, END, PACKAGES, DONE, FORKED, REFUSED = _KINDS

_REQUEST_LENGTH_BYTES = 4
_HEAD: Final = struct.Struct(">BI")
MOST_PAYLOAD_BYTES: Final = 64 << 10
_MOST_NAME_BYTES: Final = 255
_MOST_PARTS: Final = 64
_MOST_COUNT_DIGITS: Final = 18
# What a refusal to fork may say: the number of an error, or the names of threads.
_MOST_ERRNO_DIGITS: Final = 4
_MOST_THREADS: Final = 32
_MOST_THREAD_BYTES: Final = 64
# Bounds in memory: of one message, and of each text of an error.
MOST_MESSAGE_BYTES: Final = 16 << 20
_MOST_ERROR_TEXT_BYTES: Final = 2 << 20
# Weight of an empty event: it takes less memory, but every full garbage collection visits its objects.
EVENT_BYTES: Final = 2048
# How many frames are taken at a time; a piece of JSON is worth many of text.
_FRAMES_AT_A_TIME: Final = 256
_JSON_PIECE_FRAMES: Final = 128

_ESCAPED_IN_JSON: Final = bytes([*range(32), ord('"'), ord("\\"), 127])
_ESCAPE_BYTES: Final = 5
_BELOW_FOUR_BYTES: Final = bytes(range(0xF0))
_ERROR_PARTS: Final = ("name", "message", "traceback")
LANGUAGES = ("python", "javascript", "typescript")


@dataclass(frozen=True, slots=True)
class Ready:
    """The executor waits for code."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A display, or the value of the last expression."""

    result: Result
    size: int


@dataclass(frozen=True, slots=True)
class Raised:
    """The code failed."""

    error: CodeError
    size: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class UsesPackages:
    """The code has imported one of the usual packages: contexts to come will want them too."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over; everything it printed is in the pipes."""

    count: int


@dataclass(frozen=True, slots=True)
class Forked:
    """The executor has forked a copy of itself with this pid."""

    pid: int


@dataclass(frozen=True, slots=True)
class Unforked:
    """The executor has not forked, because of its threads or of an error."""

    threads: tuple[str, ...] = ()
    errno: int = 0


Said = Ready | Shown | Raised | UsesPackages | Finished | Forked | Unforked


def encode_run(code: str, directory: str | None = None) -> bytes:
    """Tell the executor to run this, in a directory that it enters before if there is one."""
    return _encode_request({"kind": "run", "code": code, **({} if directory is None else {"cwd": directory})})


def encode_fork(label: int, *, force: bool) -> bytes:
    """Tell the executor to fork a copy, which has this label; `force`: whatever threads it has."""
    return _encode_request({"kind": "fork", "label": str(label), "force": "yes" if force else ""})


def _encode_request(request: dict[str, str]) -> bytes:
    body = msgspec.json.encode(request)
    return len(body).to_bytes(_REQUEST_LENGTH_BYTES, "big") + body


class FrameDecoder:
    """Bytes in, what the executor said out. Anything else is a ProtocolError."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._message: _Message | None = None

    @property
    def has_frame(self) -> bool:
        """A whole frame waits to be taken."""
        return len(self._buffer) >= _HEAD.size + self._payload_bytes()

    def feed(self, data: bytes) -> None:
        """Keep these bytes until they are taken."""
        self._buffer += data

    def take(self) -> list[Said]:
        """Decode the next frames: not more of them than can be read in a few milliseconds."""
        said: list[Said] = []
        left = _FRAMES_AT_A_TIME
        while left > 0 and self.has_frame:
            size = _HEAD.size + self._payload_bytes()
            kind, payload = self._buffer[0], bytes(self._buffer[_HEAD.size : size])
            del self._buffer[:size]
            left -= _JSON_PIECE_FRAMES if self._message is not None and self._message.is_json else 1
            if (complete := self._take_frame(kind, payload)) is not None:
                said.append(complete)
        return said

    def _payload_bytes(self) -> int:
        if len(self._buffer) < _HEAD.size:
            return 0
        kind, length = _HEAD.unpack_from(self._buffer)
        if kind not in _KINDS or length > MOST_PAYLOAD_BYTES:
            raise ProtocolError(f"a frame of kind {kind} and {length} bytes")
        return int(length)

    def _take_frame(self, kind: int, payload: bytes) -> Said | None:
        if self._message is not None:
            if kind != END:
                self._message.take(kind, payload)
                return None
            message, self._message = self._message, None
            return message.complete(is_cut=bool(payload))
        if kind in (DISPLAY, VALUE, ERROR):
            self._message = _Message(kind)
            return None
        if kind == READY:
            return Ready()
        if kind == PACKAGES:
            return UsesPackages()
        if kind == DONE and payload.isdigit() and len(payload) <= _MOST_COUNT_DIGITS:
            return Finished(int(payload))
        if kind == FORKED and payload.isdigit() and len(payload) <= _MOST_COUNT_DIGITS:
            return Forked(int(payload))
        if kind == REFUSED:
            return _unforked(payload)
        raise ProtocolError(f"a frame of kind {kind}")


def _unforked(payload: bytes) -> Unforked:
    match payload.split(b"\0", _MOST_THREADS + 1):
        case [b"error", number] if number.isdigit() and len(number) <= _MOST_ERRNO_DIGITS:
            return Unforked(errno=int(number))
        case [b"threads", *names] if 0 < len(names) <= _MOST_THREADS:
            return Unforked(threads=tuple(name[:_MOST_THREAD_BYTES].decode("utf-8", "replace") for name in names))
        case _:
            raise ProtocolError("no reason not to fork")


class _Message:
    """A display, value or error while it arrives. Invariant: its parts take at most MOST_MESSAGE_BYTES."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._parts: dict[str, object] = {}
        self._size = EVENT_BYTES
        self._name = ""
        self._part: _Text | JsonBuilder | None = None
        self._is_cut = False

    @property
    def is_json(self) -> bool:
        """The part that arrives is JSON."""
        return isinstance(self._part, JsonBuilder)

    def take(self, kind: int, payload: bytes) -> None:
        """Take the beginning or a piece of a part."""
        if kind == PIECE and payload and self._name:
            self._take_piece(payload)
        elif kind in (TEXT, JSON) and 0 < len(payload) <= _MOST_NAME_BYTES and len(self._parts) < _MOST_PARTS:
            self._finish_part()
            self._name = payload.decode("utf-8", "replace")
            self._size += len(payload)
            self._part = _Text() if kind == TEXT else JsonBuilder()
        else:
            raise ProtocolError(f"a frame of kind {kind} in a message")

    def complete(self, *, is_cut: bool) -> Said:
        """Return the whole message."""
        self._finish_part()
        is_cut = is_cut or self._is_cut
        if self._kind != ERROR:
            result = Result(data=self._parts, truncated=is_cut, is_main=self._kind == VALUE)
            return Shown(result, self._size)
        name, message, traceback = (str(self._parts.get(part, "")) for part in _ERROR_PARTS)
        return Raised(CodeError(name=name, message=message, traceback=traceback), self._size, is_cut)

    def _take_piece(self, payload: bytes) -> None:
        if self._part is None:
            return  # too large already
        room = MOST_MESSAGE_BYTES - self._size
        if self._kind == ERROR:
            room = min(room, _MOST_ERROR_TEXT_BYTES)
        if self._part.take(payload, room):
            return
        self._is_cut = True
        if self._kind == ERROR or self._name == "text/plain":
            self._finish_part()
        self._part = None

    def _finish_part(self) -> None:
        if self._part is not None:
            self._parts[self._name] = self._part.value()
            self._size += self._part.size
            self._part = None


class _Text:
    """Text while it arrives; a buffer that grows in place makes a large one in no single long step."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._buffer = StringIO()
        self._width = 1
        self._escapes = 0
        self._length = 0

    @property
    def size(self) -> int:
        """Estimate what it takes in memory or as JSON."""
        return self._length * self._width + self._escapes * _ESCAPE_BYTES

    def take(self, piece: bytes, room: int) -> bool:
        """Add text; returns whether there was room for it."""
        self._width = max(self._width, _width_of(piece))
        self._escapes += len(piece) - len(piece.translate(None, _ESCAPED_IN_JSON))
        text = self._decoder.decode(piece)
        self._length += len(text)
        if self.size > room:
            self._length -= len(text)
            return False
        self._buffer.write(text)
        return True

    def value(self) -> str:
        """Return the text so far."""
        return self._buffer.getvalue()


def _width_of(piece: bytes) -> int:
    """Return how many bytes a character takes in a string with this in it: PEP 393."""
    if piece.isascii():
        return 1
    return 4 if piece.translate(None, _BELOW_FOUR_BYTES) else 2


def check_language(language: str) -> str:
    """Return the language, or raise UnsupportedLanguage with the list."""
    if language not in LANGUAGES:
        raise UnsupportedLanguage(
            f"language {language!r} is not supported: use one of {', '.join(LANGUAGES)}", supported=list(LANGUAGES)
        )
    return language
