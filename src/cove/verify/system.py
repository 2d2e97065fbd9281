"""Make a system for root: an image on which the host's programs run, for attempts as root inside."""

import io
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cove import AsyncImage
from cove.core.jail import HOST_DIRECTORY
from cove.local.threads import in_thread

_DIRECTORIES = ("etc", "var", "root", "opt", "srv")
_LINKS = {"usr": HOST_DIRECTORY.lstrip("/"), **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}}
_FILES = {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "etc/group": b"root:x:0:\n"}


@asynccontextmanager
async def system_of_the_host() -> AsyncIterator[str]:
    """Give the name of an image whose programs are the host's, as every sandbox on an image has them."""
    folder = await in_thread(tempfile.mkdtemp, prefix="cove-verify-")
    try:
        path = Path(folder, "image.tar")
        await in_thread(_write, path)
        image = await AsyncImage.load(str(path), name=f"cove-verify-{secrets.token_hex(6)}")
    finally:
        await in_thread(shutil.rmtree, folder)
    try:
        yield image.name
    finally:
        await image.delete()


def _write(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name in _DIRECTORIES:
            archive.addfile(_member(name, tarfile.DIRTYPE, 0o755))
        for name, target in _LINKS.items():
            link = _member(name, tarfile.SYMTYPE, 0o777)
            link.linkname = target
            archive.addfile(link)
        for name, content in _FILES.items():
            file = _member(name, tarfile.REGTYPE, 0o644)
            file.size = len(content)
            archive.addfile(file, io.BytesIO(content))


def _member(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = kind, mode
    return member
