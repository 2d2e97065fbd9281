"""Build an image for a client of a gateway worker: unpack what it sent, and let a process of its own build that.

The process is a fork of the zygote, as that of a sandbox. It builds while the connection to it is open: a client that
leaves, or a worker that dies, ends the build, which undoes what it has begun and closes the connection then.
"""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.archive.stream import Budget, Stream, unpack
from cove.archive.tar import Refused
from cove.errors import FileTooLarge, SandboxUnavailable, ValidationFailed, from_errno
from cove.images.context_archive import MOST_CONTEXT_BYTES, MOST_CONTEXT_ENTRIES
from cove.images.store import ImageStore
from cove.local.threads import finished, in_transfer
from cove.model import BuildEvent, BuildSpec, ImageMade
from cove.server.sandboxes.start_protocol import Build, encode
from cove.tasks import settled
from cove.wire.frames import BUILD_EVENTS, EVENT, FAILURE, FrameReader, decode_failure

_CHUNK_BYTES = 1 << 18
_CONNECT_SECONDS = 10.0
_UNDO_SECONDS = 60.0
_EOF = b""


def most_context_bytes(spec: BuildSpec) -> int:
    """Return how much the directory of a build may have."""
    return min(MOST_CONTEXT_BYTES, spec.limits.disk or MOST_CONTEXT_BYTES)


async def build_events(
    zygote: Path, store: ImageStore, file: BinaryIO, spec: BuildSpec, outside: str | None
) -> AsyncGenerator[BuildEvent | ImageMade, None]:
    """Build what a client sent. `outside` is where it has the Dockerfile, if that is not in its directory."""
    if os.path.isabs(spec.dockerfile):
        raise ValidationFailed(f"the archive has no {spec.dockerfile}: name the Dockerfile by its path in the archive")
    with ExitStack() as held:
        await finished(held.enter_context, store.layers.holding())
        if spec.preset is not None:
            async with aclosing(_ask(zygote, Build(spec=spec, tenant=store.layers.tenant))) as events:
                async for event in events:
                    yield event
            return
        async with _unpacked(store, file, most_context_bytes(spec)) as directory:
            if outside is not None:
                spec = await finished(_take_apart, directory, spec, outside)
            async with aclosing(
                _ask(zygote, Build(directory=str(directory), spec=spec, tenant=store.layers.tenant))
            ) as events:
                async for event in events:
                    yield event


@asynccontextmanager
async def _unpacked(store: ImageStore, file: BinaryIO, most: int) -> AsyncGenerator[Path, None]:
    """Unpack an archive into a directory that is gone afterwards: garbage, if we are killed."""
    building = await finished(store.layers.building)
    try:
        file.seek(0)
        await in_transfer(lambda check: _unpack(file.fileno(), building / "context", most, check))
        yield building / "context"
    finally:
        await settled(asyncio.to_thread(remove_tree, str(building)))


def _unpack(file: int, target: Path, most: int, check: Callable[[], None]) -> None:
    """Unpack an archive. Links may lead anywhere: a build follows them within its directory only."""
    try:
        budget = Budget(most, MOST_CONTEXT_ENTRIES)
        unpack(_Checked(file, check), os.fsencode(target), budget, remove_tree, lenient=True)
    except Refused as error:
        raise ValidationFailed(f"the archive of the directory cannot be unpacked: {error}") from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise context_too_large(most) from None
        raise from_errno(error.errno or 0, "the archive of the directory") from None


def context_too_large(most: int) -> FileTooLarge:
    """Return the error for a directory that has more than so many bytes."""
    return FileTooLarge(f"the directory of this build may have {most >> 20} MiB and {MOST_CONTEXT_ENTRIES} files")


class _Checked(Stream):
    """A file that gives up when a check raises."""

    def __init__(self, file: int, check: Callable[[], None]) -> None:
        super().__init__(file)
        self._check = check

    def read(self, size: int) -> bytes:
        self._check()
        return super().read(size)


def _take_apart(directory: Path, spec: BuildSpec, outside: str) -> BuildSpec:
    """Move a Dockerfile that is no part of the directory out of it, to where nothing is copied from."""
    name = spec.dockerfile
    try:
        if "/" in name or not stat.S_ISREG(os.lstat(directory / name).st_mode):
            raise FileNotFoundError
        target = directory.parent / "Dockerfile"
        (directory / name).rename(target)
    except (OSError, ValueError):
        raise ValidationFailed(f"the archive has no file {name}, which was to be the Dockerfile") from None
    return msgspec.structs.replace(spec, dockerfile=str(target), shown=outside)


async def _ask(zygote: Path, request: Build) -> AsyncGenerator[BuildEvent | ImageMade, None]:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(zygote))
    except OSError as error:
        raise SandboxUnavailable(f"no image can be built just now: {error.strerror or error}. Try again.") from error
    try:
        writer.write(encode(request))
        async with aclosing(_read(reader)) as events:
            async for event in events:
                yield event
                if isinstance(event, ImageMade):
                    return
    finally:
        await settled(_leave(reader, writer))


async def _read(reader: asyncio.StreamReader) -> AsyncGenerator[BuildEvent | ImageMade, None]:
    frames = FrameReader()
    while (data := await reader.read(_CHUNK_BYTES)) != _EOF:
        for kind, head, content in frames.feed(data):
            if kind == FAILURE:
                raise decode_failure(head)
            assert kind == EVENT
            yield BUILD_EVENTS.decode(head, content)
    raise SandboxUnavailable("the process that built the image has ended: build it again")


async def _leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say that nobody wants more, and wait until what was begun is undone."""
    with suppress(TimeoutError, OSError):
        writer.write_eof()
        async with asyncio.timeout(_UNDO_SECONDS):
            while await reader.read(_CHUNK_BYTES) != _EOF:
                pass
    writer.close()
