"""Backups of directories: packed and unpacked inside, compressed and kept outside.

The host never unpacks what came from inside: it compresses bytes and gives the same ones back.
"""

import asyncio
import builtins
import os
from collections.abc import Callable
from datetime import UTC, datetime
from io import FileIO

from cove import api
from cove.archive.stream import Stream
from cove.core.backup import check_backup_name, check_ttl, expiry
from cove.core.file_path import decode_path, resolve_path
from cove.errors import FileTooLarge, ValidationFailed
from cove.local.files import translated
from cove.local.threads import finished, start_in_thread
from cove.local.zstd import CHUNK_BYTES, Compressor, decompress
from cove.model import BackupInfo
from cove.runtime.backup_store import BackupStore, NewBackup
from cove.runtime.errand import Errands
from cove.runtime.file_content import write_all
from cove.runtime.file_transfer import MOST_STREAM_BYTES, pack_inside, unpack_inside
from cove.runtime.gate import Gate, OpenGate, gated
from cove.runtime.tracing import traced
from cove.tasks import settled


@traced("backups", api.Backups)
@gated()
class Backups(api.Backups):
    """`base` gives the directory that relative paths start from, `id` names the sandbox."""

    def __init__(self, errands: Errands, store: BackupStore, base: Callable[[], str], id: Callable[[], str]) -> None:
        self._errands = errands
        self._store = store
        self._base = base
        self._id = id
        self._restoring = asyncio.Lock()
        self.gate: Gate = OpenGate()

    async def create(
        self, dir: str, name: str | None = None, ttl: float | None = None, gitignore: bool = False
    ) -> BackupInfo:
        path = resolve_path(self._base(), dir)
        name, ttl = check_backup_name(name), check_ttl(ttl)
        if not isinstance(gitignore, bool):
            raise ValidationFailed(f"gitignore must be True or False, not {gitignore!r:.200}")
        with translated("the backup"):
            new = await self._begin()
            try:
                await pack_inside(
                    self._errands, "save", path, b"1" if gitignore else b"0", work=lambda stream: _compress(stream, new)
                )
                info = await finished(_publish, new, self._describe(new.id, path, name, ttl))
            except BaseException:
                await finished(new.discard)
                raise
            new.close()
            return info

    async def _begin(self) -> NewBackup:
        beginning = start_in_thread(self._store.begin)
        try:
            return await settled(beginning)
        except asyncio.CancelledError:
            if not beginning.cancelled() and beginning.exception() is None:
                await finished(beginning.result().discard)
            raise

    def _describe(self, id: str, path: bytes, name: str | None, ttl: float | None) -> Callable[[int], BackupInfo]:
        now = datetime.now(UTC)
        directory = decode_path(path).rstrip("/") or "/"
        return lambda size: BackupInfo(
            id=id,
            name=name,
            dir=directory,
            sandbox=self._id(),
            created_at=now,
            expires_at=expiry(now, ttl),
            size=size,
        )

    async def restore(self, id: str, dir: str | None = None) -> BackupInfo:
        base = self._base()
        with translated("the backup"):
            info, archive = await settled(
                start_in_thread(self._store.open, id), discard=lambda opened: opened[1].close()
            )
            try:
                path = resolve_path(base, info.dir if dir is None else dir)
                async with self._restoring:
                    await unpack_inside(
                        self._errands, path, b"1", b"1", work=lambda stream: _decompress(archive, stream)
                    )
            finally:
                archive.close()
        return info

    async def list(self) -> builtins.list[BackupInfo]:
        self._base()
        with translated("the backups"):
            return await finished(self._store.list)

    async def delete(self, id: str) -> None:
        self._base()
        with translated("the backup"):
            await finished(self._store.delete, id)


def _compress(stream: Stream, new: NewBackup) -> None:
    compressor = Compressor(lambda data: write_all(new.archive, data))
    left = MOST_STREAM_BYTES
    while data := stream.ready(1, os.read, stream.fd, CHUNK_BYTES):
        left -= len(data)
        if left < 0:
            raise FileTooLarge(f"the directory's archive has more than {MOST_STREAM_BYTES} bytes")
        compressor.feed(data)
    compressor.finish()


def _publish(new: NewBackup, describe: Callable[[int], BackupInfo]) -> BackupInfo:
    info = describe(new.size)
    new.publish(info)
    return info


def _decompress(archive: FileIO, stream: Stream) -> None:
    for data in decompress(archive):
        stream.write(data)
