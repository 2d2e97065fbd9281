"""Parse the exported variables as bash prints them, in bounded steps; untrusted: may be long and may be forged.

bash prints `declare -x NAME="value"` or `NAME=$'value'`, and without a value what is exported but not set.
"""

from collections.abc import Callable, Generator, Iterator

from cove.agent.protocol import ProtocolError

# How much is done at a time, in pieces of text: less than a millisecond.
_PIECES_PER_STEP = 1000

_HEAD = b"declare -"
_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"e": b"\x1b",
    b"E": b"\x1b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}
_OCTAL_DIGITS = frozenset([b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7"])
_MOST_OCTAL_DIGITS = 3


def parse_exports(text: bytes) -> Generator[None, None, dict[str, str]]:
    """Yield the environment that `declare -px` prints; yields after every step. Raises ProtocolError."""
    found: dict[str, str] = {}
    reader = _Reader(text)
    steps = 0
    while reader.at < len(text):
        name, flags = reader.head()
        value, is_set = bytearray(), False
        for piece in reader.value():
            value += piece
            is_set = True
            steps += 1
            if steps % _PIECES_PER_STEP == 0:
                yield
        steps += 1
        if steps % _PIECES_PER_STEP == 0:
            yield
        if is_set and not set(flags) & set(b"aA"):
            found[name] = value.decode("utf-8", "surrogateescape")
        reader.line_end()
    return found


class _Reader:
    """Reads one declaration after the other; each piece of a value is found in time linear in its length."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.at = 0

    def head(self) -> tuple[str, bytes]:
        """Return the name and the attributes; what is next then is the value, if there is one."""
        text, begin = self._text, self.at
        line = text.find(b"\n", begin)
        line = len(text) if line < 0 else line
        flags = text.find(b" ", begin + len(_HEAD), line)
        equals = text.find(b"=", flags, line)
        end = line if equals < 0 else equals
        name = text[flags + 1 : end].decode("ascii", "replace")
        if not text.startswith(_HEAD, begin) or flags < 0 or not name.isidentifier() or not name.isascii():
            raise ProtocolError(f"not a declaration: {text[begin : begin + 40]!r}")
        self.at = end
        return name, text[begin + len(_HEAD) : flags]

    def value(self) -> Iterator[bytes]:
        """Yield the pieces of the value, at least one where there is any value; of a list, as it is printed."""
        if self._take(b'="'):
            yield b""
            yield from self._quoted(b'"', self._in_double_quotes)
        elif self._take(b"=$'"):
            yield b""
            yield from self._quoted(b"'", self._in_dollar_quotes)
        elif self._take(b"=("):
            yield from self._list()
        elif self._take(b"="):
            yield self._until(b"\n")

    def line_end(self) -> None:
        """Go to the next line."""
        if self.at < len(self._text) and not self._take(b"\n"):
            raise ProtocolError(f"not the end of a declaration: {self._text[self.at : self.at + 40]!r}")

    def _list(self) -> Iterator[bytes]:
        while self.at < len(self._text) and not self._take(b")"):
            if self._take(b'"'):
                yield from self._quoted(b'"', self._in_double_quotes)
            elif self._take(b"$'"):
                yield from self._quoted(b"'", self._in_dollar_quotes)
            else:
                self.at += 1
                yield b""

    def _quoted(self, mark: bytes, unescape: Callable[[], bytes]) -> Iterator[bytes]:
        text, end = self._text, self._text.find(mark, self.at)
        while end >= 0:
            escape = text.find(b"\\", self.at, end)
            if escape < 0:
                yield text[self.at : end]
                self.at = end + 1
                return
            yield text[self.at : escape]
            self.at = escape + 1
            yield unescape()
            if self.at > end:
                end = text.find(mark, self.at)
        raise ProtocolError("a quote without an end")

    def _in_double_quotes(self) -> bytes:
        self.at += 1
        character = self._text[self.at - 1 : self.at]
        return character if character in (b'"', b"\\", b"$", b"`") else b"\\" + character

    def _in_dollar_quotes(self) -> bytes:
        begin = self.at
        while self.at - begin < _MOST_OCTAL_DIGITS and self._text[self.at : self.at + 1] in _OCTAL_DIGITS:
            self.at += 1
        if self.at > begin:
            return bytes([int(self._text[begin : self.at], 8) & 0xFF])
        self.at += 1
        character = self._text[begin : self.at]
        return _ESCAPES.get(character, character)

    def _take(self, mark: bytes) -> bool:
        if not self._text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def _until(self, mark: bytes) -> bytes:
        end = self._text.find(mark, self.at)
        begin, self.at = self.at, len(self._text) if end < 0 else end
        return self._text[begin : self.at]
