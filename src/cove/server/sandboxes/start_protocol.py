"""The protocol with a process that is to become a runtime: one message each, then a byte; and its sockets."""

import asyncio
import os
import signal
import socket
import struct
from pathlib import Path
from typing import Final

import msgspec

from cove.core.journal import NOBODY, Actor
from cove.errors import ValidationFailed
from cove.model import BuildSpec, SandboxSpec
from cove.server.sandboxes.directory import Record
from cove.wire.errors import ErrorBody

ACKNOWLEDGED: Final = b"\x06"
# Tells the supervisor that a process of a sandbox was killed.
RUNTIME_KILLED: Final = signal.SIGUSR1

_LENGTH = struct.Struct(">I")
_MOST_BYTES = 16 << 20
_BACKLOG = 1024


class Create(msgspec.Struct, frozen=True, kw_only=True, tag="create"):
    """Make a sandbox with that id; one that exists is an error unless `exist_ok`.

    `reserved` names what was set aside for it of the tenant's quota.
    """

    id: str
    spec: SandboxSpec
    exist_ok: bool = False
    tenant: str = ""
    actor: Actor = NOBODY
    reserved: str = ""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start a stopped or lost sandbox on its files."""

    id: str
    tenant: str = ""
    actor: Actor = NOBODY
    reserved: str = ""


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Make a sandbox without an id, which waits for one, unless so many do."""

    spec: SandboxSpec
    most: int


class Build(msgspec.Struct, frozen=True, kw_only=True, tag="build"):
    """Build an image from a directory here; frames of events are the answer, in place of a Reply."""

    spec: BuildSpec
    directory: str | None = None
    tenant: str = ""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Either reply; neither for a sandbox that waits for an id."""

    record: Record | None = None
    error: ErrorBody | None = None


Request = Create | Start | Prepare | Build

_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Create | Start | Prepare | Build)
_replies = msgspec.json.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """Encode a message with its length before it. Raises ValidationFailed for what is no text."""
    try:
        body = msgspec.json.encode(message, enc_hook=str)
    except UnicodeEncodeError as error:
        raise ValidationFailed(f"{error.object!r} has a character that UTF-8 cannot carry") from None
    return _LENGTH.pack(len(body)) + body


async def receive_request(reader: asyncio.StreamReader) -> Request:
    """Receive the request; IncompleteReadError when the other end is gone."""
    return _requests.decode(await _receive(reader))


async def receive_reply(reader: asyncio.StreamReader) -> Reply:
    """Return the answer; IncompleteReadError when the other end is gone."""
    return _replies.decode(await _receive(reader))


async def _receive(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > _MOST_BYTES:
        raise asyncio.IncompleteReadError(b"", length)
    return await reader.readexactly(length)


def listen(path: Path, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Listen on a unix socket at this path, which is free; only this user can connect."""
    listener = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    return listener
