"""Pack the directory of a build for who builds it elsewhere: a tar stream of what `.dockerignore` leaves. Blocks.

The Dockerfile and `.dockerignore` itself are always in it: whoever builds reads both, and obeys the rules once more.
"""

import os
import stat
from collections.abc import Container

from cove.archive import tar
from cove.archive.stream import OPEN_FILE, Budget, Packing, Stream
from cove.errors import ValidationFailed
from cove.images.dockerignore import MOST_BYTES as MOST_IGNORE_BYTES
from cove.images.dockerignore import Ignore, Parts, split

MOST_CONTEXT_BYTES = 8 << 30
MOST_CONTEXT_ENTRIES = 1_000_000
_IGNORE = b".dockerignore"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def shown_name(path: str) -> str:
    """Return how errors name a Dockerfile: an absolute one from the caller's directory, if it is below that."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def read_bounded(path: str, most_bytes: int) -> bytes:
    """Return a file of the caller's, which may be a byte longer than it may be. Raises ValidationFailed."""
    try:
        with open(path, "rb") as file:
            return file.read(most_bytes + 1)
    except OSError as error:
        raise ValidationFailed(f"cannot read {path}: {error.strerror}") from None


def pack_context(directory: str, dockerfile: str, apart: bytes | None, stream: Stream) -> None:
    """Write the archive. The Dockerfile is a path in the directory, or the name that one `apart` from it gets."""
    top = os.open(directory, _OPEN)
    try:
        ignore = Ignore(_read_ignore(top))
        budget = Budget(MOST_CONTEXT_BYTES, MOST_CONTEXT_ENTRIES)
        left = _LeftOut(top, ignore, split(os.fsencode(dockerfile)))
        Packing(os.fsencode(directory), stream, budget, left).directory(top, [])
    finally:
        os.close(top)
    if apart is not None:
        stream.write(tar.encode_member(tar.Member(tar.FILE, [os.fsencode(dockerfile)], 0o644, len(apart))))
        stream.write(apart + bytes(tar.padding(len(apart))))
    stream.write(bytes(2 * tar.BLOCK))


def _read_ignore(top: int) -> bytes:
    """Return the rules; none where they are behind a link, which whoever builds follows within the directory."""
    try:
        fd = os.open(_IGNORE, OPEN_FILE, dir_fd=top)
    except OSError:
        return b""
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        return os.read(fd, MOST_IGNORE_BYTES + 1) if is_file else b""
    finally:
        os.close(fd)


class _LeftOut(Container[Parts]):
    """The paths that rules hide, but for the way to the Dockerfile, and to what an exception of theirs may name."""

    def __init__(self, top: int, ignore: Ignore, dockerfile: Parts) -> None:
        self._top = top
        self._ignore = ignore
        self._dockerfile = dockerfile

    def __contains__(self, parts: object) -> bool:
        assert isinstance(parts, tuple)
        if parts == (_IGNORE,) or self._dockerfile[: len(parts)] == parts or not self._ignore.hides(parts):
            return False
        return not (self._ignore.has_exceptions and self._is_directory(parts))

    def _is_directory(self, parts: Parts) -> bool:
        try:
            return stat.S_ISDIR(os.lstat(b"/".join(parts), dir_fd=self._top).st_mode)
        except OSError:
            return False
