"""Stream content as a response: a failure before the first byte is an error response, small content comes whole."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from cove.http.response import Response

_BYTES: Final = ((b"content-type", b"application/octet-stream"),)


async def content_response(chunks: AsyncGenerator[bytes, None], hold: int) -> Response:
    """Answer when more than `hold` bytes, or all, are there; whatever is raised until then is raised here."""
    held: list[bytes] = []
    size = 0
    try:
        while size <= hold and (chunk := await anext(chunks, b"")):
            held.append(chunk)
            size += len(chunk)
    except BaseException:
        await chunks.aclose()
        raise
    first = b"".join(held)
    return Response(200, _BYTES, first if size <= hold else _continued(first, chunks))


async def _continued(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk
