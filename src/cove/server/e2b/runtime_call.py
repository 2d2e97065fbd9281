"""Call an operation of a sandbox's runtime from the gateway itself, over its socket."""

import asyncio
from pathlib import Path

from cove.errors import ConnectionLost
from cove.wire.coding import decode_json
from cove.wire.errors import ErrorBody, make_error

_SECONDS = 600.0
_MOST_BYTES = 1 << 20


async def post(socket: Path, path: str, body: bytes = b"{}") -> bytes:
    """Post to a path; returns the content of the answer, or raises the error that it is."""
    async with asyncio.timeout(_SECONDS):
        reader, writer = await asyncio.open_unix_connection(str(socket), limit=_MOST_BYTES)
        try:
            head = f"POST {path} HTTP/1.1\r\nhost: runtime\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
            writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
            answer = await reader.read(_MOST_BYTES)
            while chunk := await reader.read(_MOST_BYTES - len(answer)):
                answer += chunk
        finally:
            writer.close()
    status, _, rest = answer.partition(b"\r\n")
    content = rest.partition(b"\r\n\r\n")[2]
    words = status.split()
    if len(words) < 2:
        raise ConnectionLost("the sandbox ended before it had answered: the call may have had its effect")
    if not words[1].startswith(b"2"):
        raise make_error(decode_json(content, ErrorBody))
    return content
