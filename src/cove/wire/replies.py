"""Reply bodies of operations, where they are not already a value of `cove.model`."""

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar, cast

import msgspec

from cove import api
from cove.model import CodeEvent, ExecResult, Outcome, ProcessStatus
from cove.model.result import CommandEnd

Encoding = Literal["utf-8", "base64"]
W = TypeVar("W", covariant=True)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Reply(Generic[W]):
    """The reply of an operation: its type on the wire, and how the value of the method becomes it."""

    type: type[W]
    make: Callable[..., W]


class ExecReply(CommandEnd, frozen=True, kw_only=True, omit_defaults=True):
    """An ExecResult; output that is not UTF-8 is base64, and said to be."""

    stdout: str
    stderr: str
    stdout_encoding: Encoding = "utf-8"
    stderr_encoding: Encoding = "utf-8"

    def result(self) -> ExecResult:
        """Decode the result as it was."""
        return ExecResult(
            stdout_bytes=_decode(self.stdout, self.stdout_encoding),
            stderr_bytes=_decode(self.stderr, self.stderr_encoding),
            **_end_of(self),
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
    """A number of things."""

    count: int


class Exists(msgspec.Struct, frozen=True):
    """A file exists, or not."""

    exists: bool


class Diff(msgspec.Struct, frozen=True):
    """A patch."""

    diff: str


class Cwd(msgspec.Struct, frozen=True):
    """A working directory."""

    cwd: str


class Env(msgspec.Struct, frozen=True):
    """Exported variables."""

    env: dict[str, str]


def exec_reply(result: ExecResult) -> ExecReply:
    """Encode a result for the wire."""
    stdout, stdout_encoding = _encode(result.stdout_bytes)
    stderr, stderr_encoding = _encode(result.stderr_bytes)
    return ExecReply(
        stdout=stdout,
        stderr=stderr,
        stdout_encoding=stdout_encoding,
        stderr_encoding=stderr_encoding,
        **_end_of(result),
    )


def _end_of(result: CommandEnd) -> dict[str, Any]:  # their types are those of one class
    return {name: getattr(result, name) for name in CommandEnd.__struct_fields__}


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


def process_replies(processes: Iterable[api.Process]) -> list[ProcessReply]:
    """Encode a list of processes for the wire."""
    return [process_reply(process) for process in processes]


def _itself(value: V) -> V:
    return value


def plain(type: type[V]) -> Reply[V]:
    """Answer a value that travels as it is."""
    return Reply(type, _itself)


NOTHING: Final[Reply[None]] = Reply(type(None), lambda _: None)
CODE_EVENT: Final[Reply[CodeEvent]] = Reply(cast("type[CodeEvent]", CodeEvent), _itself)
EXEC: Final = Reply(ExecReply, exec_reply)
PROCESS: Final = Reply(ProcessReply, process_reply)
PROCESSES: Final = Reply(list[ProcessReply], process_replies)
SESSION: Final = Reply(SessionReply, lambda session: SessionReply(session.id))
TERMINAL: Final = Reply(TerminalReply, lambda terminal: TerminalReply(terminal.id, terminal.cols, terminal.rows))
CONTEXT: Final = Reply(CodeContextReply, lambda context: CodeContextReply(context.id, context.language))
COUNT: Final = Reply(Count, Count)
EXISTS: Final = Reply(Exists, Exists)
DIFF: Final = Reply(Diff, Diff)
CWD: Final = Reply(Cwd, Cwd)
ENV: Final = Reply(Env, Env)


def _encode(data: bytes) -> tuple[str, Encoding]:
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _decode(text: str, encoding: Encoding) -> bytes:
    return text.encode() if encoding == "utf-8" else base64.b64decode(text)
