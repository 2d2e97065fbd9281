"""Directories that an archive is unpacked into, and what must be true of them afterwards."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cove.archive import tar

_CANARY = b"nobody writes here"


@contextmanager
def guarded_directory() -> Iterator[Path]:
    """Give an empty directory; afterwards nothing beside it has changed, and nothing in it gives rights."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        place = Path(name)
        (place / "canary").write_bytes(_CANARY)
        before = (place / "canary").stat()
        target = place / "target"
        target.mkdir()
        try:
            yield target
            _check_outside(place, before)
            _check_inside(target)
        finally:
            _open_all(place)


def _check_outside(place: Path, before: os.stat_result) -> None:
    assert sorted(os.listdir(place)) == ["canary", "target"], "something was made beside the directory"
    after = (place / "canary").stat()
    assert (place / "canary").read_bytes() == _CANARY
    assert (after.st_nlink, after.st_mode, after.st_mtime_ns) == (1, before.st_mode, before.st_mtime_ns)


def _check_inside(top: Path) -> None:
    _open_all(top)
    for directory, names, files in os.walk(os.fsencode(top)):
        for name in (*names, *files):
            found = os.lstat(os.path.join(directory, name))
            assert not stat.S_ISBLK(found.st_mode), "a device"
            assert not stat.S_ISCHR(found.st_mode) or found.st_rdev == 0, "a device"
            assert stat.S_ISDIR(found.st_mode) or not found.st_mode & 0o6000, "a file that gives rights"


def _open_all(top: Path) -> None:
    """Let the owner enter everything, so that it can be looked at and removed."""
    for directory, names, _ in os.walk(os.fsencode(top)):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)


def remove(path: Path) -> None:
    """Remove a tree whose modes may be anything."""
    _open_all(path)
    shutil.rmtree(path)


def repair(data: bytes) -> bytes:
    """Put the right checksum into every header of an archive: no mutation would find it."""
    blocks = bytearray(data)
    at = 0
    while at + tar.BLOCK <= len(blocks):
        block = blocks[at : at + tar.BLOCK]
        if any(block):
            block[148:156] = b" " * 8
            blocks[at + 148 : at + 156] = b"%06o\0 " % sum(block)
        at += tar.BLOCK + _content_size(bytes(block))
    return bytes(blocks)


def _content_size(block: bytes) -> int:
    try:
        size = tar.number(block[124:136])
    except tar.Refused:
        return 0
    kind = block[156:157]
    has_content = kind in (*tar.REGULAR, tar.PAX, tar.PAX_GLOBAL, tar.GNU_NAME, tar.GNU_LINK)
    return size + tar.padding(size) if has_content and size < 1 << 20 else 0
