"""Readiness probes: a text in a line of a process's output, or an answer on a port (TCP, HTTP)."""

from dataclasses import dataclass

from cove.core.line_search import LONGEST_LINE
from cove.errors import ValidationFailed
from cove.model import LogMatch


@dataclass(frozen=True, slots=True)
class TcpTarget:
    """Ready when something listens."""

    port: int


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Ready when something answers `GET path` with a status in the range."""

    port: int
    path: str
    status: tuple[int, int]

    @property
    def request(self) -> bytes:
        """The bytes to send."""
        return f"GET {self.path} HTTP/1.1\r\nHost: localhost:{self.port}\r\nConnection: close\r\n\r\n".encode()

    def accepts(self, status_line: bytes) -> bool:
        """Return whether the status line of the response says that it is ready."""
        words = status_line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            return False
        return self.status[0] <= int(words[1]) <= self.status[1]


def check_port(port: int) -> int:
    """Return the port, or raise ValidationFailed."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ValidationFailed(f"port must be a number from 1 to 65535, not {port!r}")
    return port


def make_target(port: int, mode: str, path: str, status: tuple[int, int]) -> HttpTarget | TcpTarget:
    """Validate and make a target."""
    check_port(port)
    if mode == "tcp":
        return TcpTarget(port)
    if mode != "http":
        raise ValidationFailed(f"mode must be 'http' or 'tcp', not {mode!r}")
    if (
        not isinstance(path, str)
        or not path.startswith("/")
        or not path.isascii()
        or not path.isprintable()
        or " " in path
    ):
        raise ValidationFailed(f"path must be a percent-encoded URL path that starts with '/', not {path!r}")
    is_pair = isinstance(status, tuple) and len(status) == 2 and all(type(code) is int for code in status)
    if not is_pair or status[0] > status[1]:
        raise ValidationFailed(f"status must be a pair of numbers like (200, 399), not {status!r}")
    return HttpTarget(port, path, status)


class LineMatcher:
    """Fed with chunks of each stream; answers with the first line that has the text, also before that line ends."""

    def __init__(self, text: str) -> None:
        self._text = text.encode("utf-8", "surrogatepass")
        if b"\n" in self._text:
            raise ValidationFailed("the text has a line break, so that it is in no line: wait for one line of it")
        self._rest = {"stdout": b"", "stderr": b""}

    def feed(self, stream: str, data: bytes) -> LogMatch | None:
        """Return the match that this chunk completes, if any."""
        rest = self._rest[stream]
        data = rest + data
        at = data.find(self._text, max(0, len(rest) - len(self._text) + 1)) if data else -1
        if at >= 0:
            return LogMatch(_line(data, at))
        self._rest[stream] = data[data.rfind(b"\n") + 1 :][-LONGEST_LINE:]
        return None


def _line(data: bytes, at: int) -> str:
    end = data.find(b"\n", at)
    line = data[data.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(data)]
    return line.decode("utf-8", "replace").removesuffix("\r")
