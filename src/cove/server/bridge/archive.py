"""Upload and download the workspace as an archive."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from cove.errors import CoveError
from cove.http import Request, Response
from cove.http.content import content_response
from cove.runtime.sandbox import Sandbox
from cove.server.bridge.files import BodyOverLimit, LimitedBody
from cove.server.bridge.path import WORKSPACE
from cove.server.bridge.protocol import MOST_BODY_BYTES, answer_json, failed, invalid, read_query

# A workspace of up to this size is complete before anything is answered: its failures have a status.
_HELD_BYTES: Final = 4 << 20


async def persist(sandbox: Sandbox, request: Request) -> Response:
    """`POST persist`: an uncompressed tar that every client can unpack again."""
    exclude = _read_excludes(request.query)
    try:
        return await content_response(sandbox.files.read_archive(WORKSPACE, exclude=exclude), _HELD_BYTES)
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
    """How large it is has to be known before any of it is unpacked: an archive can end before its body does."""
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
