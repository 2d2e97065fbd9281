"""What operations answer, where that is not already a value of `cove.model`."""

import base64
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from cove import api
from cove.model import ExecResult, Outcome, ProcessStatus

Encoding = Literal["utf-8", "base64"]


class ExecReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An ExecResult; output that is not UTF-8 is base64, and said to be."""

    command: str | list[str]
    outcome: Outcome
    exit_code: int | None
    stdout: str
    stderr: str
    stdout_encoding: Encoding = "utf-8"
    stderr_encoding: Encoding = "utf-8"
    started_at: datetime
    duration: float
    truncated: bool = False
    signal: int | None = None
    session_id: str | None = None
    session_restarted: bool = False
    restored_command: str | None = None

    def result(self) -> ExecResult:
        """The result as it was."""
        return ExecResult(
            command=self.command,
            outcome=self.outcome,
            exit_code=self.exit_code,
            stdout_bytes=_decode(self.stdout, self.stdout_encoding),
            stderr_bytes=_decode(self.stderr, self.stderr_encoding),
            started_at=self.started_at,
            duration=self.duration,
            truncated=self.truncated,
            signal=self.signal,
            session_id=self.session_id,
            session_restarted=self.session_restarted,
            restored_command=self.restored_command,
        )


class ProcessReply(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of a process."""

    id: str
    pid: int
    command: str | list[str]
    status: ProcessStatus
    started_at: datetime
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    session_id: str | None = None


class SessionReply(msgspec.Struct, frozen=True):
    """A session by its id."""

    id: str


class TerminalReply(msgspec.Struct, frozen=True):
    """A terminal by its id, and its size."""

    id: str
    cols: int
    rows: int


class CodeContextReply(msgspec.Struct, frozen=True):
    """A code context by its id."""

    id: str
    language: str


class Count(msgspec.Struct, frozen=True):
    """How many."""

    count: int


class Exists(msgspec.Struct, frozen=True):
    """Whether there is anything."""

    exists: bool


class Cwd(msgspec.Struct, frozen=True):
    """A working directory."""

    cwd: str


class Env(msgspec.Struct, frozen=True):
    """Exported variables."""

    env: dict[str, str]


def exec_reply(result: ExecResult) -> ExecReply:
    """A result for the wire."""
    stdout, stdout_encoding = _encode(result.stdout_bytes)
    stderr, stderr_encoding = _encode(result.stderr_bytes)
    return ExecReply(
        command=result.command if isinstance(result.command, str) else [*result.command],
        outcome=result.outcome,
        exit_code=result.exit_code,
        stdout=stdout,
        stderr=stderr,
        stdout_encoding=stdout_encoding,
        stderr_encoding=stderr_encoding,
        started_at=result.started_at,
        duration=result.duration,
        truncated=result.truncated,
        signal=result.signal,
        session_id=result.session_id,
        session_restarted=result.session_restarted,
        restored_command=result.restored_command,
    )


def process_reply(process: api.Process) -> ProcessReply:
    """A process for the wire."""
    return ProcessReply(
        id=process.id,
        pid=process.pid,
        command=process.command if isinstance(process.command, str) else [*process.command],
        status=process.status,
        started_at=process.started_at,
        ended_at=process.ended_at,
        outcome=process.outcome,
        exit_code=process.exit_code,
        signal=process.signal,
        session_id=process.session_id,
    )


def make_reply(value: object) -> object:
    """What a method of the API returned, as the reply that its operation promises."""
    if isinstance(value, list) and value and isinstance(value[0], api.Process):
        return [process_reply(process) for process in value]
    for kind, make in _REPLIES:
        if isinstance(value, kind):
            return make(value)
    return value


_REPLIES: Sequence[tuple[type, Callable[..., object]]] = (
    (ExecResult, exec_reply),
    (api.Process, process_reply),
    (api.Session, lambda session: SessionReply(session.id)),
    (api.Terminal, lambda terminal: TerminalReply(terminal.id, terminal.cols, terminal.rows)),
    (api.CodeContext, lambda context: CodeContextReply(context.id, context.language)),
    (bool, Exists),
    (int, Count),
    (str, Cwd),
    (dict, Env),
)


def _encode(data: bytes) -> tuple[str, Encoding]:
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _decode(text: str, encoding: Encoding) -> bytes:
    return text.encode() if encoding == "utf-8" else base64.b64decode(text)
