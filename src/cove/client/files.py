"""Client of the files of a sandbox, or of a session."""

import os
from contextlib import aclosing
from os import PathLike

from cove import api
from cove.client import file_transfer
from cove.client.handle import Handle, encode_content
from cove.client.retry import Backoff
from cove.errors import ConnectionLost, FileTooLarge, ValidationFailed
from cove.model.file import MOST_DOWNLOAD_BYTES
from cove.wire import operations, requests
from cove.wire.target import Target

MOST_READ_BYTES = 1 << 30


class Files(Handle, api.Files, target=Target.FILES):
    """Relative paths are resolved there."""

    async def read(self, path: str) -> bytes:
        backoff = Backoff()
        while True:
            try:
                return await self._read(path)
            except ConnectionLost:
                await backoff.pause()

    async def _read(self, path: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        async with aclosing(self.read_stream(path)) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > MOST_READ_BYTES:
                    raise FileTooLarge(f"{path} is too large: read it in pieces with read_stream, or download it")
        return b"".join(parts)

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        data = await self.read(path)
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError) as error:
            raise ValidationFailed(f"{path} is not {encoding} text: {error}") from None

    async def write(self, path: str, data: bytes | str, *, mode: int | None = None) -> None:
        request = requests.WriteFile.of(path=path, mode=mode)
        await self._calls.call(operations.WRITE_FILE, request=request, content=encode_content(data))

    async def upload(self, local: str | PathLike[str], path: str) -> None:
        await file_transfer.upload(self, os.fspath(local), path)

    async def download(self, path: str, local: str | PathLike[str], *, max_bytes: int = MOST_DOWNLOAD_BYTES) -> None:
        await file_transfer.download(self, path, os.fspath(local), max_bytes)
