"""Upload and download files: `/files`."""

import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from cove.core.multipart import Event, MultipartParser, Part, PartEnd, boundary_of
from cove.errors import (
    CoveError,
    FileNotFound,
    IsDirectory,
    NotDirectory,
    PermissionDenied,
    UserUnavailable,
    ValidationFailed,
)
from cove.http import Request, Response
from cove.http.response import content_response
from cove.runtime.sandbox import Sandbox
from cove.server.e2b.homes import home_of
from cove.server.e2b.protocol import USER, Refusal, answer, read_query, resolve

_HELD_BYTES: Final = 1 << 20
_MOST_FILES: Final = 1000
_METADATA: Final = b"x-metadata-"
_GZIP: Final = 16 + zlib.MAX_WBITS
_INFLATED_BYTES: Final = 256 << 10


class FileService:
    """The files of one sandbox, by path."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def answer(self, request: Request) -> Response:
        """Answer; an error has the status that clients know."""
        query = read_query(request.query)
        # What a signature covers: a header that names another user would be beyond it.
        user = query.get("username") or None
        user = None if user == USER else user
        try:
            if request.method in ("GET", "HEAD"):
                return await self._download(query.get("path", ""), user)
            if request.method == "POST":
                return await self._upload(request, query.get("path"), user)
        except CoveError as error:
            raise _refusal(error) from None
        raise Refusal(405, f"/files takes GET and POST, not {request.method}")

    async def _download(self, path: str, user: str | None) -> Response:
        where = resolve(path, await home_of(self._sandbox, user))
        return await content_response(self._sandbox.files.read_stream(where, user=user), _HELD_BYTES)

    async def _upload(self, request: Request, path: str | None, user: str | None) -> Response:
        if any(name.startswith(_METADATA) for name in request.headers):
            raise Refusal(501, "metadata of files is not kept here: keep it in a file of its own")
        home = await home_of(self._sandbox, user)
        kind = request.headers.get(b"content-type", b"").decode("latin-1")
        if kind.lower().startswith("multipart/form-data"):
            return answer(await self._take_parts(_Parts(request, boundary_of(kind)), path, home, user))
        if path is None:
            raise Refusal(400, "the query must say the path of the file")
        where = resolve(path, home)
        async with aclosing(_content(request)) as chunks:
            await self._sandbox.files.write_stream(where, chunks, user=user)
        return answer([_written(where)])

    async def _take_parts(self, parts: "_Parts", path: str | None, home: str, user: str | None) -> list[dict[str, str]]:
        written: dict[str, dict[str, str]] = {}
        while (part := await parts.next_file()) is not None:
            where = resolve(_file_name(part) if path is None else path, home)
            if where in written:
                raise Refusal(400, f"there are two files for {where}")
            if len(written) >= _MOST_FILES:
                raise Refusal(400, f"there are more than {_MOST_FILES} files in one request")
            async with aclosing(parts.content()) as chunks:
                await self._sandbox.files.write_stream(where, chunks, user=user)
            written[where] = _written(where)
        return [*written.values()]


class _Parts:
    """The files of a multipart body, one after the other, as they come."""

    def __init__(self, request: Request, boundary: bytes) -> None:
        self._chunks = request.chunks()
        self._parser = MultipartParser(boundary)
        self._events: list[Event] = []

    async def next_file(self) -> Part | None:
        """Return the next file; None when there is none. Other fields are passed over."""
        while (event := await self._next()) is not None:
            if isinstance(event, Part) and event.name == "file":
                return event
        return None

    async def content(self) -> AsyncGenerator[bytes, None]:
        """Stream the content of the file that was returned last."""
        while not isinstance(event := await self._next(), PartEnd):
            if isinstance(event, bytes):
                yield event

    async def _next(self) -> Event | None:
        while not self._events:
            data = await anext(self._chunks, b"")
            if not data:
                self._parser.finish()
                return None
            self._events = self._parser.feed(data)[::-1]
        return self._events.pop()


async def _content(request: Request) -> AsyncGenerator[bytes, None]:
    """Stream the body, unpacked if it is packed."""
    encoding = request.headers.get(b"content-encoding", b"identity").lower()
    if encoding not in (b"identity", b"gzip"):
        raise Refusal(400, "a body is packed by gzip, or not at all")
    if encoding == b"identity":
        async for data in request.chunks():
            yield data
        return
    inflater = zlib.decompressobj(_GZIP)
    try:
        async for packed in request.chunks():
            rest = packed
            while rest:
                if content := inflater.decompress(rest, _INFLATED_BYTES):
                    yield content
                rest = inflater.unconsumed_tail
    except zlib.error as error:
        raise Refusal(400, f"the body is not gzip: {error}") from None
    if not inflater.eof:
        raise Refusal(400, "the body is gzip that ends too early")


def _file_name(part: Part) -> str:
    """Return the whole path that a part names; clients write `"` as `%22`, and some double `\\`."""
    name = (part.file_name or "").replace("\\\\", "\\").replace("%22", '"')
    if not name:
        raise Refusal(400, "a file has no name")
    return name


def _written(path: str) -> dict[str, str]:
    return {"name": path.rstrip("/").rpartition("/")[2], "path": path, "type": "file"}


def _refusal(error: CoveError) -> Refusal:
    match error:
        case FileNotFound():
            return Refusal(404, error.message)
        case IsDirectory() | NotDirectory() | ValidationFailed():
            return Refusal(400, error.message)
        case UserUnavailable():
            return Refusal(401, error.message)
        case PermissionDenied():
            return Refusal(500, error.message)
    return Refusal.of(error)
