"""Parse the text of a Dockerfile into instructions, by `dockerfile`, which is Docker's own parser. Blocks.

It runs in a process of its own with limits: it brings Go's runtime along, and the text may be an enemy's.
"""

import subprocess
import sys
from collections.abc import Sequence

import msgspec

from cove.errors import Internal, InterpreterNotReady, ValidationFailed
from cove.local.extras import install_command

MOST_BYTES = 1 << 20
DEFAULT_NAME = "Dockerfile"
_SECONDS = 30
_PARSE = """
import json, resource, sys
for name, limit in (("CPU", 20), ("AS", 4 << 30), ("FSIZE", 0), ("CORE", 0)):
    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
try:
    import dockerfile
except ImportError:
    print('{"missing": true}')
    sys.exit()
try:
    found = dockerfile.parse_string(sys.stdin.read())
    made = {"commands": [{**c._asdict(), "heredocs": [h._asdict() for h in c.heredocs]} for c in found]}
except dockerfile.GoParseError as error:
    made = {"error": str(error)}
print(json.dumps(made))
"""


class Heredoc(msgspec.Struct, frozen=True):
    """A document in the text of an instruction."""

    name: str
    content: str


class Command(msgspec.Struct, frozen=True):
    """One instruction, as the parser gives it."""

    cmd: str
    json: bool
    flags: tuple[str, ...]
    value: tuple[str, ...]
    start_line: int
    original: str = ""
    heredocs: tuple[Heredoc, ...] = ()
    file: str = DEFAULT_NAME


class _Parsed(msgspec.Struct, frozen=True):
    commands: tuple[Command, ...] = ()
    error: str | None = None
    missing: bool = False


def parse_commands(text: str, name: str = DEFAULT_NAME) -> Sequence[Command]:
    """Return the instructions of a file, which errors call by that name; ValidationFailed says what the parser said."""
    data = text.encode("utf-8", "replace")
    if len(data) > MOST_BYTES:
        raise ValidationFailed(f"{name} has {len(data)} bytes; {MOST_BYTES} is the most")
    if b"\0" in data:  # where the parser would end
        raise ValidationFailed(f"{name} is no text: line {data[: data.index(0)].count(10) + 1} has a NUL byte")
    parsed = _run(data, name)
    if parsed.missing:
        raise InterpreterNotReady(f"building images needs one package more: `{install_command('build')}`")
    if parsed.error is not None:
        raise ValidationFailed(f"{name} cannot be read: {parsed.error}")
    return [msgspec.structs.replace(command, file=name) for command in parsed.commands]


def _run(data: bytes, name: str) -> _Parsed:
    command = [sys.executable, "-I", "-c", _PARSE]
    try:
        made = subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS, check=False, env={})
    except subprocess.TimeoutExpired:
        raise ValidationFailed(f"{name} cannot be read within {_SECONDS} seconds") from None
    if made.returncode != 0:
        raise Internal(f"the parser of Dockerfiles failed: {made.stderr.decode(errors='replace')[-500:]}")
    try:
        return msgspec.json.decode(made.stdout, type=_Parsed)
    except msgspec.ValidationError:  # the parser gives none for what it has cut within a letter
        raise ValidationFailed(f"{name} has an instruction that is no text") from None
