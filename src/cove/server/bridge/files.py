"""Read and write files and archives of the bridge protocol, with the sandbox's own rights."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from cove import api
from cove.errors import CoveError, FileNotFound, NotDirectory
from cove.http import Request, Response
from cove.http.response import content_response
from cove.runtime.sandbox import Sandbox
from cove.server.bridge.protocol import (
    MOST_BODY_BYTES,
    WORKSPACE,
    Refusal,
    answer_json,
    failed,
    file_path,
    invalid,
    read_query,
)
from cove.server.bridge.session import chosen_session

_HELD_BYTES: Final = 1 << 20
# A workspace of up to this size is complete before anything is answered: its failures have a status.
_HELD_WORKSPACE_BYTES: Final = 4 << 20


async def read_file(sandbox: api.AsyncSandbox, request: Request, quoted: str) -> Response:
    """`GET file/{path}`."""
    path = file_path(quoted)
    chosen_session(request)
    try:
        return await content_response(sandbox.files.read_stream(path), _HELD_BYTES)
    except (FileNotFound, NotDirectory):
        raise Refusal(404, "workspace_read_not_found", f"File not found: {path}") from None
    except CoveError as error:
        raise failed("exec_transport_error", f"read failed: {error.message}") from None


async def write_file(sandbox: api.AsyncSandbox, request: Request, quoted: str) -> Response:
    """`PUT file/{path}`: all of the body, or no change."""
    path = file_path(quoted)
    chosen_session(request)
    try:
        async with aclosing(LimitedBody(request).chunks()) as chunks:
            await sandbox.files.write_stream(path, chunks)
    except CoveError as error:
        raise failed("workspace_archive_write_error", f"write failed: {error.message}") from None
    except BodyOverLimit:
        raise Refusal(413, "payload_too_large", f"file is larger than {MOST_BODY_BYTES} bytes") from None
    return answer_json({"ok": True})


class BodyOverLimit(Exception):
    """More than the protocol takes."""


class LimitedBody:
    """A body as it comes, as far as it may go."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.size = 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Stream its pieces; raises BodyOverLimit before the first one if the client says that it is too large."""
        if int(self._request.headers.get(b"content-length", b"0")) > MOST_BODY_BYTES:
            raise BodyOverLimit
        async for chunk in self._request.chunks():
            self.size += len(chunk)
            if self.size > MOST_BODY_BYTES:
                raise BodyOverLimit
            yield chunk

    async def drain(self) -> None:
        """Take and drop the rest."""
        async for _ in self._request.chunks():
            pass


async def persist(sandbox: Sandbox, request: Request) -> Response:
    """`POST persist`: an uncompressed tar that every client can unpack again."""
    exclude = _read_excludes(request.query)
    try:
        return await content_response(sandbox.files.read_archive(WORKSPACE, exclude=exclude), _HELD_WORKSPACE_BYTES)
    except CoveError as error:
        raise failed("workspace_archive_read_error", f"persist failed: {error.message}") from None


async def hydrate(sandbox: Sandbox, request: Request) -> Response:
    """`POST hydrate`: unpacked over what is there, or no change."""
    body = LimitedBody(request)
    try:
        async with aclosing(body.chunks() if b"content-length" in request.headers else _at_once(body)) as chunks:
            await _unpack(sandbox, chunks)
    except CoveError as error:
        raise failed("workspace_archive_write_error", f"hydrate failed: {error.message}") from None
    except BodyOverLimit:
        raise invalid(f"tar payload too large: more than {MOST_BODY_BYTES} bytes") from None
    await body.drain()
    return answer_json({"ok": True})


async def _at_once(body: LimitedBody) -> AsyncGenerator[bytes, None]:
    """Read it whole, to know its size before any of it is unpacked: an archive can end before its body does."""
    for chunk in [chunk async for chunk in body.chunks()]:
        yield chunk


async def _unpack(sandbox: Sandbox, chunks: AsyncGenerator[bytes, None]) -> None:
    first = await anext(chunks, b"")
    if not first:
        raise invalid("Empty tar payload")
    await sandbox.files.write_archive(WORKSPACE, _continued(first, chunks), lenient=True)


async def _continued(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for chunk in chunks:
        yield chunk


def _read_excludes(query: str) -> list[str]:
    """Paths below the workspace, separated by commas."""
    items = [item.removeprefix("./") for item in read_query(query).get("excludes", "").split(",")]
    if any(".." in item for item in items):
        raise invalid('exclude paths must not contain ".."')
    return [item for item in items if item]
