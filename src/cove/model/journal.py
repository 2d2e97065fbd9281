"""Events of a sandbox's journal: what was done to it and in it, by whom, and how it ended."""

from datetime import datetime
from enum import StrEnum
from typing import TypedDict

import msgspec

from cove.model.result import Outcome


class JournalDetail(StrEnum):
    """The detail that a journal keeps: events alone, the text of commands and code too, or also what they printed."""

    EVENTS = "events"
    COMMANDS = "commands"
    OUTPUT = "output"

    def at_most(self, other: "JournalDetail") -> "JournalDetail":
        """Return the lesser of the two."""
        order = list(JournalDetail)
        return order[min(order.index(self), order.index(other))]


class JournalKind(StrEnum):
    """The thing that happened."""

    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    PAUSED = "paused"
    RESUMED = "resumed"
    LOST = "lost"
    MOVED = "moved"
    DESTROYED = "destroyed"
    SNAPSHOT = "snapshot"
    RESTORED = "restored"
    FORKED = "forked"
    RESET = "reset"
    SETTINGS = "settings"
    EXEC = "exec"
    COMMAND = "command"
    CODE = "code"
    PROCESS_STARTED = "process_started"
    PROCESS_ENDED = "process_ended"
    TERMINAL_STARTED = "terminal_started"
    TERMINAL_RESIZED = "terminal_resized"
    TERMINAL_ENDED = "terminal_ended"
    FILES = "files"
    PORT = "port"
    NETWORK = "network"
    OUTPUT = "output"
    LIMIT = "limit"
    WARNING = "warning"
    GAP = "gap"


class JournalEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event; `cursor` continues right after it. What ended has its outcome, and is written when it has.

    `key` names the API key that asked for it, `client` the program and `trace` the trace that it came from: all None
    for a sandbox of your own program. `subject` is the id of what it is about: a process, session, context, terminal,
    snapshot or copy. `text` is a command or code, `is_cut` where it was longer; `operation` what was done to the files
    at `path`, or which setting was changed. `error` is the code of a call that failed. A gap says in `lost` how many
    events are missing before it; None is not known.
    """

    cursor: str
    at: datetime
    kind: JournalKind
    key: str | None = None
    client: str | None = None
    trace: str | None = None
    subject: str | None = None
    session: str | None = None
    text: str | None = None
    is_cut: bool = False
    language: str | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    duration: float | None = None
    output_bytes: int | None = None
    user_seconds: float | None = None
    system_seconds: float | None = None
    max_rss_bytes: int | None = None
    error: str | None = None
    operation: str | None = None
    path: str | None = None
    target: str | None = None
    size: int | None = None
    port: int | None = None
    host: str | None = None
    method: str | None = None
    status: int | None = None
    allowed: bool | None = None
    reason: str | None = None
    cols: int | None = None
    rows: int | None = None
    stream: str | None = None
    data: bytes | None = None
    lost: int | None = None


class JournalFields(TypedDict, total=False):
    """The fields of JournalEvent that say what happened, as keyword arguments."""

    subject: str | None
    session: str | None
    text: str | None
    is_cut: bool
    language: str | None
    outcome: Outcome | None
    exit_code: int | None
    signal: int | None
    duration: float | None
    output_bytes: int | None
    user_seconds: float | None
    system_seconds: float | None
    max_rss_bytes: int | None
    error: str | None
    operation: str | None
    path: str | None
    target: str | None
    size: int | None
    port: int | None
    host: str | None
    method: str | None
    status: int | None
    allowed: bool | None
    reason: str | None
    cols: int | None
    rows: int | None
    stream: str | None
    data: bytes | None
    lost: int | None


class DestroyedSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that is gone and whose journal is kept, under a key of its own: an id may have been used again."""

    id: str
    key: str
    destroyed_at: datetime
    size: int
