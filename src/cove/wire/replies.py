"""Replies: how the value of a method travels, and what it looks like on the wire where that is not a `cove.model`."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, cast

import msgspec

from cove import api
from cove.model import (
    BuildEvent,
    CodeEvent,
    ExecResult,
    FileEvent,
    ImageInfo,
    ImageMade,
    JournalEvent,
    LogEvent,
    NetworkEvent,
    Outcome,
    ProcessStatus,
    SandboxInfo,
    SnapshotInfo,
    TransferProgress,
    VolumeInfo,
)
from cove.model.result import CommandEnd
from cove.wire.frames import BUILD_EVENTS, OUTPUT_EVENTS, EventCodec, json_events
from cove.wire.target import Target

Encoding = Literal["utf-8", "base64"]
T = TypeVar("T")
V = TypeVar("V", covariant=True)
W = TypeVar("W", bound=msgspec.Struct)


class Open(Protocol):
    """Make the handle of something on the server from its facts."""

    def __call__(self, target: Target, facts: Any) -> Any:  # a handle of that target's class
        """The handle."""


@dataclass(frozen=True, slots=True)
class Reply(Generic[V]):
    """The encoding of an answer: its type on the wire, and the way there and back.

    `encode` gets the value of the method or, where the reply is `of_owner`, the object whose method it is, as it is
    after the call. `events` says how a stream of such values travels, `media_type` what the body is.
    """

    type: Any  # types, and unions of types
    encode: Callable[..., object]
    decode: Callable[[Any, Open], V]
    of_owner: bool = False
    events: EventCodec[Any] | None = None
    media_type: str = "application/json"


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
            **_fields(CommandEnd, self),
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


class Digest(msgspec.Struct, frozen=True):
    """A digest."""

    digest: str


class Token(msgspec.Struct, frozen=True):
    """A token for one sandbox."""

    token: str


class Transaction(msgspec.Struct, frozen=True):
    """A transaction by its id."""

    id: str


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
        **_fields(CommandEnd, result),
    )


def plain(type: type[T]) -> Reply[T]:
    """Answer a value that travels as it is."""
    return Reply(type, _itself, _read_itself)


def events(type: object, codec: EventCodec[T]) -> Reply[T]:
    """Answer a stream of such events."""
    return Reply(type, _itself, _read_itself, events=codec)


def _page(media_type: str) -> Reply[bytes]:
    """Answer a document."""
    return Reply(bytes, _itself, _read_itself, media_type=media_type)


def _wrapped(type: type[W], read: Callable[[W], T]) -> Reply[T]:
    """Answer a value as the one field of an object, so that others can join it."""
    return Reply(type, type, lambda reply, _: read(reply))


def _handle(target: Target, facts: type[msgspec.Struct]) -> Reply[Any]:
    """Answer an object by its facts; on the other side it is a handle."""
    return Reply(facts, lambda made: facts(**_fields(facts, made)), lambda found, opened: opened(target, found))


def _image(made: Any) -> ImageInfo:  # an image of this machine, or its facts
    return made if isinstance(made, ImageInfo) else cast(ImageInfo, made.facts)


def _making(codec: EventCodec[T]) -> Reply[T]:
    """Answer a stream of events, the last of which has the image; as JSON it is the image alone."""
    return Reply(ImageInfo, lambda last: last.image, _read_itself, events=codec)


def _handles(one: Reply[Any]) -> Reply[Any]:
    """Answer many of them."""
    return Reply(
        list[one.type],  # type: ignore[name-defined]  # the type of a value
        lambda made: [one.encode(each) for each in made],
        lambda found, opened: [one.decode(facts, opened) for facts in found],
    )


def _fields(facts: type[msgspec.Struct], value: object) -> dict[str, Any]:  # of the types that the class has
    return {name: getattr(value, name) for name in facts.__struct_fields__}


def _itself(value: T) -> T:
    return value


def _read_itself(value: Any, _: Open) -> Any:  # what JSON was decoded to
    return value


NOTHING: Final[Reply[None]] = Reply(type(None), _itself, _read_itself)
METRICS: Final = _page("text/plain; version=0.0.4; charset=utf-8")
JSON_PAGE: Final = _page("application/json")
HTML_PAGE: Final = _page("text/html; charset=utf-8")
CODE_EVENT: Final[Reply[CodeEvent]] = events(CodeEvent, json_events(CodeEvent))
FILE_EVENT: Final[Reply[FileEvent]] = events(FileEvent, json_events(FileEvent, lambda event: event.kind.value))
NETWORK_EVENT: Final[Reply[NetworkEvent]] = events(
    NetworkEvent, json_events(NetworkEvent, lambda event: event.kind.value)
)
JOURNAL_EVENT: Final[Reply[JournalEvent]] = events(
    JournalEvent, json_events(JournalEvent, lambda event: event.kind.value)
)
LOG_EVENT: Final = events(LogEvent, OUTPUT_EVENTS)
EXEC: Final[Reply[ExecResult]] = Reply(ExecReply, exec_reply, lambda reply, _: reply.result())
SANDBOX: Final = cast(Reply[api.AsyncSandbox], _handle(Target.SANDBOX, SandboxInfo))
SANDBOXES: Final = cast(Reply[list[api.AsyncSandbox]], _handles(SANDBOX))
SNAPSHOT: Final = cast(Reply[api.AsyncSnapshot], _handle(Target.SNAPSHOT, SnapshotInfo))
PROCESS: Final = cast(Reply[api.Process], _handle(Target.PROCESS, ProcessReply))
PROCESSES: Final = cast(Reply[list[api.Process]], _handles(PROCESS))
PROCESS_AFTERWARDS: Final[Reply[None]] = Reply(ProcessReply, PROCESS.encode, lambda *_: None, of_owner=True)
SESSION: Final = cast(Reply[api.Session], _handle(Target.SESSION, SessionReply))
TERMINAL: Final = cast(Reply[api.Terminal], _handle(Target.TERMINAL, TerminalReply))
CONTEXT: Final = cast(Reply[api.CodeContext], _handle(Target.CONTEXT, CodeContextReply))
CONTEXTS: Final = cast(Reply[list[api.CodeContext]], _handles(CONTEXT))
VOLUME: Final = cast(Reply[api.AsyncVolume], _handle(Target.VOLUME, VolumeInfo))
IMAGE: Final = cast(Reply[api.AsyncImage], Reply(ImageInfo, _image, lambda found, opened: opened(Target.IMAGE, found)))
IMAGE_EVENT: Final[Reply[TransferProgress | ImageMade]] = _making(json_events(TransferProgress | ImageMade))
BUILD_EVENT: Final[Reply[BuildEvent | ImageMade]] = _making(BUILD_EVENTS)
COUNT: Final = _wrapped(Count, lambda reply: reply.count)
EXISTS: Final = _wrapped(Exists, lambda reply: reply.exists)
DIFF: Final = _wrapped(Diff, lambda reply: reply.diff)
DIGEST: Final = _wrapped(Digest, lambda reply: reply.digest)
TOKEN: Final = _wrapped(Token, lambda reply: reply.token)
TRANSACTION: Final = _wrapped(Transaction, lambda reply: reply.id)
CWD: Final = _wrapped(Cwd, lambda reply: reply.cwd)
ENV: Final = _wrapped(Env, lambda reply: reply.env)


def _encode(data: bytes) -> tuple[str, Encoding]:
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _decode(text: str, encoding: Encoding) -> bytes:
    return text.encode() if encoding == "utf-8" else base64.b64decode(text)
