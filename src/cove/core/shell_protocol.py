"""The protocol between the runtime and a session's shell. See shell/session.bash."""

import re
from dataclasses import dataclass

from cove.agent.protocol import ProtocolError

# How often a shell can be interrupted before it ends and is restored from its snapshot.
_LOOPS = 1000
# A directory of any depth that a shell has gone to step by step is less.
_MOST_REPORT_BYTES = 256 << 10
_REPORT_FIELDS = 3
# Between two looks of the runtime: the end of a command, and that the shell was interrupted.
_MOST_REPORTS = 64

# How ids begin: of the runtime's own work, and of what says that the trap for an interruption was taken.
INTERNAL, TRAPPED = "i", "t"
# Tells the shell to run what is in its command file.
GO = b"go\0"
# Words of a command that the shell has to know of before it runs it, by letters. Looked for here: bash needs minutes
# to find a pattern in a long text.
_CARE = (("s", re.compile(rb"set")), ("t", re.compile(rb"trap")), ("v", re.compile(rb"set -[a-zA-Z]*v|extdebug")))


def loop_script(text: str) -> str:
    """Return the script that bash reads, from loop.bash: the loop, once for every interruption."""
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    return f"{line}\n" * _LOOPS


def encode_command(id: str, stdin: str, stdout: str, stderr: str, command: bytes) -> bytes:
    """Return the content of the command file; what lies behind the last NUL does not matter."""
    care = "".join(letter for letter, pattern in _CARE if pattern.search(command))
    return f"{id}\0{stdin}\0{stdout}\0{stderr}\0{care}\0".encode() + command + b"\0"


@dataclass(frozen=True, slots=True)
class Report:
    """The report of the shell on a command that has ended."""

    id: str
    status: int
    cwd: str


class ReportDecoder:
    """Bytes in, reports out. Anything else is a ProtocolError."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[Report]:
        """Return the reports that these bytes complete."""
        self._begun += data
        count = self._begun.count(b"\0") // _REPORT_FIELDS
        if len(self._begun) > _MOST_REPORT_BYTES or count > _MOST_REPORTS:
            raise ProtocolError("more than a shell has to say")
        *fields, rest = bytes(self._begun).split(b"\0", count * _REPORT_FIELDS)
        self._begun[:] = rest
        return [_parse(*fields[at : at + _REPORT_FIELDS]) for at in range(0, len(fields), _REPORT_FIELDS)]


def _parse(id: bytes, status: bytes, cwd: bytes) -> Report:
    if not id.isalnum() or not id.isascii() or not status.isdigit() or len(status) > 3 or int(status) > 255:
        raise ProtocolError(f"not a report of the shell: {id[:20]!r} {status[:20]!r}")
    return Report(id.decode(), int(status), cwd.decode("utf-8", "surrogateescape"))
