"""Sessions of a stopped sandbox, or of a snapshot: what is needed to bring each back, kept in files.

Theory of operation. When a sandbox stops, each session leaves a `KeptSession` and the snapshot of its shell's state
(runtime/shell_snapshot). They are written into a new directory, mode 0700, which then takes its name at once: whoever
is killed before leaves nothing that would be found. When the sandbox starts, the index is read and each snapshot is
opened; when it runs, the directory is removed. So nothing older than the last stop is ever restored. A shell is brought
back when its session is first used: a start does not wait for any.

A snapshot of a sandbox has such a directory beside its record, and keeps it as long as that: any number of sandboxes
open it.

Snapshots are untrusted (agent/shell_state): here they are bytes, bounded each, together and in number. What does not
fit is left out, and its session comes back as it was created.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from cove.agent.protocol import COPY, SESSION
from cove.runtime.shell_snapshot import MOST_STATE_BYTES, ShellSnapshot, read_snapshot

# All states of one sandbox, and the index.
MOST_KEPT_BYTES = 64 << 20
MOST_INDEX_BYTES = 16 << 20
MOST_COMMAND_BYTES = 64 << 10
_INDEX = "index"
_NEW = ".new"


class KeptSession(msgspec.Struct, frozen=True, kw_only=True):
    """One session. Paths and variables are bytes: they need not be text.

    `directory` and `env` are those of its creation. `is_behind` says that its shell has run something after the
    snapshot, as it has when it was stopped in the middle of a command.
    """

    id: str
    created_at: datetime
    timeout: float | None
    cwd: bytes
    directory: bytes
    env: tuple[tuple[bytes, bytes], ...]
    command: bytes | None = None
    user: bytes = b""
    has_state: bool = False
    is_copy: bool = False
    is_behind: bool = False

    def variables(self) -> dict[str, str]:
        """The environment it was created with."""
        return {os.fsdecode(name): os.fsdecode(value) for name, value in self.env}


# A session, and the state of its shell if there is one.
Kept = tuple[KeptSession, ShellSnapshot | None]


@dataclass(slots=True)
class SleepingSession:
    """A kept session whose state is open here, or was not kept."""

    kept: KeptSession
    state: int | None = None

    def load(self) -> ShellSnapshot | None:
        """The state to start a shell from; it can be loaded again. Blocks."""
        return None if self.state is None else read_snapshot(self.state, COPY if self.kept.is_copy else SESSION)

    def share(self) -> "SleepingSession":
        """The same, to be closed on its own."""
        return SleepingSession(self.kept, None if self.state is None else os.dup(self.state))

    def close(self) -> None:
        """Forget the state. Idempotent."""
        if self.state is not None:
            os.close(self.state)
            self.state = None


def encode_variables(env: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    """The environment as bytes."""
    return tuple((os.fsencode(name), os.fsencode(value)) for name, value in env.items())


def encode_command(command: str | None) -> bytes | None:
    """The command as bytes; one that is too long to be told again is left out."""
    encoded = None if command is None else command.encode("utf-8", "surrogatepass")
    return None if encoded is None or len(encoded) > MOST_COMMAND_BYTES else encoded


def keep_sessions(directory: Path, sessions: Iterable[Kept]) -> list[SleepingSession]:
    """Write them, and open what was written. Raises OSError; then nothing is kept. Blocks."""
    new = directory.with_name(directory.name + _NEW)
    forget_sessions(new)
    new.mkdir(mode=0o700)
    try:
        sleeping = _write(new, sessions)
        forget_sessions(directory)
        new.rename(directory)
    except BaseException:
        forget_sessions(new)
        raise
    return sleeping


def _write(new: Path, sessions: Iterable[Kept]) -> list[SleepingSession]:
    room = MOST_KEPT_BYTES
    sleeping: list[SleepingSession] = []
    try:
        for session, state in sessions:
            if state is None or state.size > room:
                sleeping.append(SleepingSession(msgspec.structs.replace(session, has_state=False, command=None)))
                continue
            room -= state.size
            path = new / str(len(sleeping))
            _write_file(path, os.pread(state.descriptor, MOST_STATE_BYTES, 0))
            kept = msgspec.structs.replace(session, has_state=True, is_copy=state.kind == COPY)
            sleeping.append(SleepingSession(kept, _open(path)))
        _write_file(new / _INDEX, msgspec.json.encode([each.kept for each in sleeping]))
    except BaseException:
        close_sessions(sleeping)
        raise
    return sleeping


def open_sessions(directory: Path) -> list[SleepingSession]:
    """Open those that were kept; none where nothing was, or what is there is not what was written. Blocks."""
    try:
        with open(directory / _INDEX, "rb") as file:
            index = file.read(MOST_INDEX_BYTES + 1)
        kept = msgspec.json.decode(index, type=list[KeptSession])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return []
    return [
        SleepingSession(session, _open_or_none(directory / str(number)) if session.has_state else None)
        for number, session in enumerate(kept)
    ]


def close_sessions(sessions: Iterable[SleepingSession]) -> None:
    """Forget the states of sessions that nobody wants."""
    for each in sessions:
        each.close()


def forget_sessions(directory: Path) -> None:
    """Remove them: they run again, or are wanted no more. Idempotent. Blocks."""
    shutil.rmtree(directory, ignore_errors=True)


def _open_or_none(path: Path) -> int | None:
    try:
        return _open(path)
    except OSError:
        return None


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _write_file(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
