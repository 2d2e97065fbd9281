"""What the runtime and a session's shell say to each other, without the shell. See shell/session.bash."""

from dataclasses import dataclass

from cove.agent.protocol import ProtocolError
from cove.core.shell_state import parse_exports

# How often a shell can be interrupted before it ends and is restored from its snapshot.
_LOOPS = 1000
_MOST_REPORT_BYTES = 16 << 20
_REPORT_FIELDS = 4

INTERNAL = "i"


def loop_script(text: str) -> str:
    """What bash reads as its script, from loop.bash: the loop, once for every interruption."""
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    return f"{line}\n" * _LOOPS


def encode_go(id: str, pair: int, stdin: str) -> bytes:
    """Tell the shell to run what is in its command file."""
    return f"{id} {pair} {stdin}\0".encode()


def encode_command(command: bytes) -> bytes:
    """The content of the command file; what lies behind the NUL does not matter."""
    return command + b"\0"


@dataclass(frozen=True, slots=True)
class Report:
    """What the shell says when a command has ended."""

    id: str
    status: int
    cwd: str
    exports: bytes

    def environment(self) -> dict[str, str]:
        """The exported variables."""
        return parse_exports(self.exports.decode("utf-8", "surrogateescape"))


class ReportDecoder:
    """Bytes in, reports out. Anything that is not a report is a ProtocolError."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Report]:
        """The reports that these bytes complete."""
        self._buffer += data
        reports = []
        while self._buffer.count(0) >= _REPORT_FIELDS:
            *fields, rest = bytes(self._buffer).split(b"\0", _REPORT_FIELDS)
            self._buffer = bytearray(rest)
            reports.append(_parse(fields))
        if len(self._buffer) > _MOST_REPORT_BYTES:
            raise ProtocolError("the shell's report has no end")
        return reports


def _parse(fields: list[bytes]) -> Report:
    id, status, cwd, exports = fields
    if not id.isalnum() or not id.isascii() or not status.isdigit() or len(status) > 3 or int(status) > 255:
        raise ProtocolError(f"not a report of the shell: {id[:20]!r} {status[:20]!r}")
    return Report(id.decode(), int(status), cwd.decode("utf-8", "surrogateescape"), exports)
