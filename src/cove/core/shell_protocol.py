"""What the runtime and a session's shell say to each other, without the shell. See shell/session.bash."""

import re
from dataclasses import dataclass

from cove.agent.protocol import ProtocolError
from cove.core.shell_state import parse_exports

# How often a shell can be interrupted before it ends and is restored from its snapshot.
_LOOPS = 1000
_MOST_FIELD_BYTES = 16 << 20
_REPORT_FIELDS = 3

INTERNAL = "i"
# Tells the shell to run what is in its command file.
GO = b"go\0"
# What in a command the shell has to know of before it runs it, by letters. Looked for here: bash needs minutes to
# find a pattern in a long text.
_CARE = (("s", re.compile(rb"set")), ("t", re.compile(rb"trap")), ("v", re.compile(rb"set -[a-zA-Z]*v|extdebug")))


def loop_script(text: str) -> str:
    """What bash reads as its script, from loop.bash: the loop, once for every interruption."""
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    return f"{line}\n" * _LOOPS


def encode_command(id: str, stdin: str, stdout: str, stderr: str, command: bytes) -> bytes:
    """The content of the command file; what lies behind the last NUL does not matter."""
    care = "".join(letter for letter, pattern in _CARE if pattern.search(command))
    return f"{id}\0{stdin}\0{stdout}\0{stderr}\0{care}\0".encode() + command + b"\0"


@dataclass(frozen=True, slots=True)
class Report:
    """What the shell says when a command has ended."""

    id: str
    status: int
    cwd: str


@dataclass(frozen=True, slots=True)
class Exports:
    """What the shell says after a report: its exported variables, as bash prints them."""

    text: bytes

    def environment(self) -> dict[str, str]:
        """The exported variables."""
        return parse_exports(self.text.decode("utf-8", "surrogateescape"))


class ReportDecoder:
    """Bytes in, reports out. Anything else is a ProtocolError."""

    def __init__(self) -> None:
        self._fields: list[bytes] = []
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Report]:
        """The reports that these bytes complete."""
        fields = self._fields = self._fields + split_fields(self._rest, data)
        said = []
        while len(fields) >= _REPORT_FIELDS:
            said.append(_parse(*fields[:_REPORT_FIELDS]))
            del fields[:_REPORT_FIELDS]
        return said


def split_fields(rest: bytearray, data: bytes) -> list[bytes]:
    """The fields, ended by NUL, that these bytes complete; what is begun of the next stays in the rest."""
    *fields, begun = data.split(b"\0")
    if fields and rest:
        fields[0] = bytes(rest + fields[0])
        rest.clear()
    rest += begun
    if len(rest) > _MOST_FIELD_BYTES:
        raise ProtocolError("what the shell says has no end")
    return fields


def _parse(id: bytes, status: bytes, cwd: bytes) -> Report:
    if not id.isalnum() or not id.isascii() or not status.isdigit() or len(status) > 3 or int(status) > 255:
        raise ProtocolError(f"not a report of the shell: {id[:20]!r} {status[:20]!r}")
    return Report(id.decode(), int(status), cwd.decode("utf-8", "surrogateescape"))
