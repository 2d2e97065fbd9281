"""Build a JSON value from tokens that arrive in pieces: in bounded steps, depth and memory.

A piece is a JSON list of numbers, booleans, nulls and strings. A string that begins with a quotation mark is a string;
`[`, `{` and `(` open a list, an object and a long string, which comes in pieces; `]` closes any of them. Within an
object keys and values take turns.
"""

from io import StringIO
from typing import Final

import msgspec

from cove.agent.protocol import ProtocolError

Token = str | int | float | bool | None
_Container = list[object] | dict[str, object] | StringIO

_MOST_TOKENS: Final = 1000
_MOST_DEPTH: Final = 100
# Memory that each takes, about. Lists and objects count for more: every full garbage collection visits them.
_SCALAR_BYTES: Final = 40
_STRING_BYTES: Final = 64
_CONTAINER_BYTES: Final = 2048
_CHARACTER_BYTES: Final = 4

_tokens: msgspec.json.Decoder[list[Token]] = msgspec.json.Decoder(list[Token])


class JsonBuilder:
    """A value while it arrives."""

    def __init__(self) -> None:
        self._open: list[_Container] = []
        self._key: str | None = None
        self._root: list[object] = []
        self._room = 0
        self._is_wide = False
        self.size = 0

    def take(self, piece: bytes, room: int) -> bool:
        """Add tokens; returns whether there was room. Raises ProtocolError when they make no sense."""
        self._room = room
        for token in _decode(piece):
            if isinstance(token, str):
                self._take_string(token)
            else:
                self.size += _SCALAR_BYTES
                self._place(token)
        return self.size <= room and len(self._open) <= _MOST_DEPTH

    def value(self) -> object:
        """Return the whole value."""
        if self._open or not self._root:
            raise ProtocolError("a JSON value without an end")
        return self._root[0]

    def _take_string(self, token: str) -> None:
        match token[:1]:
            case '"':
                self.size += _STRING_BYTES + (len(token) if token.isascii() else len(token) * _CHARACTER_BYTES)
                self._place(token[1:])
            case "[":
                self.size += _CONTAINER_BYTES
                self._push([])
            case "{":
                self.size += _CONTAINER_BYTES
                self._push({})
            case "(":
                self.size += _STRING_BYTES
                self._is_wide = False
                self._open.append(StringIO())
            case "]" if self._open and (self._key is None or isinstance(self._open[-1], StringIO)):
                closed = self._open.pop()
                if isinstance(closed, StringIO):
                    self._place(closed.getvalue())
            case _:
                raise ProtocolError(f"the token {token[:20]!r}")

    def _push(self, container: list[object] | dict[str, object]) -> None:
        self._place(container)
        self._open.append(container)

    def _place(self, value: object) -> None:
        inner = self._open[-1] if self._open else self._root
        if isinstance(inner, list):
            if inner is self._root and inner:
                raise ProtocolError("more than one JSON value")
            inner.append(value)
        elif isinstance(inner, StringIO):
            if not isinstance(value, str):
                raise ProtocolError("a long string of something else")
            self._write(inner, value)
        elif self._key is not None:
            inner[self._key] = value
            self._key = None
        elif isinstance(value, str):
            self._key = value
        else:
            raise ProtocolError("a key that is no string")

    def _write(self, long: StringIO, text: str) -> None:
        """One wide character makes all of a string wide: PEP 393."""
        if not self._is_wide and not text.isascii():
            self._is_wide = True
            self.size += long.tell() * (_CHARACTER_BYTES - 1)
        if self.size <= self._room:
            long.write(text)


def _decode(piece: bytes) -> list[Token]:
    try:
        tokens = _tokens.decode(piece)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a piece of JSON: {error}") from None
    if len(tokens) > _MOST_TOKENS:
        raise ProtocolError(f"{len(tokens)} tokens in one piece")
    return tokens
