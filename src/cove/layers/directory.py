"""Read a layer, or the upper of a sandbox, from disk: hostile content that may change while it is read."""

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from cove.archive.unpacking import TEMPORARY
from cove.core import layer_changes
from cove.core.layer_changes import Entry, EntryKind
from cove.errors import LimitExceeded
from cove.linux.open_below import DIRECTORY, FILE, Opened, open_below

OPAQUE: Final = "user.overlay.opaque"
_KINDS: Final = {
    stat.S_IFDIR: EntryKind.DIRECTORY,
    stat.S_IFLNK: EntryKind.SYMLINK,
}
_FORMAT, _BITS = 0o170000, 0o7777
_REGULAR: Final = stat.S_IFREG
_FILE: Final = EntryKind.FILE
_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_NO_ATTRIBUTE: Final = (errno.ENODATA, errno.EOPNOTSUPP)


def is_whiteout(found: os.stat_result) -> bool:
    """Return whether this is how overlayfs says that a name is gone: a character device 0:0."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def make_entry(found: os.stat_result) -> Entry:
    """Describe a name."""
    mode = found.st_mode
    if mode & _FORMAT == _REGULAR:
        return Entry(_FILE, mode & _BITS, found.st_size)
    kind = _KINDS.get(mode & _FORMAT, EntryKind.OTHER)
    if kind is EntryKind.SYMLINK:
        return Entry(kind, 0, found.st_size)
    return Entry(EntryKind.WHITEOUT) if is_whiteout(found) else Entry(kind, mode & _BITS)


class DirectoryLayer:
    """Reads one directory at a time. Opened by `with`."""

    def __init__(self, top: Path | int) -> None:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._top = os.dup(top) if isinstance(top, int) else os.open(top, flags)
        self._path = b""
        self._opened: Opened | None = None
        self._entries: dict[bytes, Entry] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        os.close(self._top)

    def read(self, directory: bytes) -> Mapping[bytes, Entry]:
        """Return all names in a directory; none of one that is gone meanwhile."""
        descriptor = self._enter(directory)
        if self._entries is None:
            self._entries = {} if descriptor is None else _read_entries(descriptor)
        return self._entries

    def find(self, directory: bytes, name: bytes) -> Entry | None:
        """Look one name up."""
        if self._opened is None or self._path != directory:
            self._enter(directory)
        if self._entries is not None:
            return self._entries.get(name)
        if self._opened is None:
            return None
        try:
            return make_entry(os.stat(name, dir_fd=self._opened.descriptor, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def is_opaque(self, directory: bytes) -> bool:
        """Return whether what lower layers have there is hidden."""
        opened = self.open(directory, DIRECTORY)
        if opened is None:
            return False
        with opened:
            return read_attribute(opened.descriptor, OPAQUE) == b"y"

    def read_link(self, path: bytes) -> bytes:
        """Return where a link points."""
        directory, _, name = path.rpartition(b"/")
        opened = self.open(directory, DIRECTORY)
        if opened is None:
            return b""
        with opened, suppress(OSError):  # it is something else by now
            return os.readlink(name, dir_fd=opened.descriptor)
        return b""

    def open_file(self, path: bytes) -> Opened | None:
        """Open a regular file; None for what is gone, or something else by now."""
        opened = self.open(path, FILE)
        if opened is not None and not stat.S_ISREG(os.fstat(opened.descriptor).st_mode):
            opened.close()
            return None
        return opened

    def open(self, path: bytes, flags: int) -> Opened | None:
        """Open what is there; None for what is not."""
        try:
            return open_below(self._top, path, flags)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise LimitExceeded("directories are nested deeper than the longest path of Linux") from None
            if error.errno not in _GONE:
                raise
            return None

    def _enter(self, directory: bytes) -> int | None:
        if self._opened is None or self._path != directory:
            self._leave()
            self._opened, self._path = self.open(directory, DIRECTORY), directory
        return None if self._opened is None else self._opened.descriptor

    def _leave(self) -> None:
        self._entries = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _read_entries(descriptor: int) -> dict[bytes, Entry]:
    found: dict[bytes, Entry] = {}
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name = entry.name.encode("utf-8", "surrogateescape")
            if name.startswith(TEMPORARY):
                continue
            if len(found) >= layer_changes.MOST_VISITED:
                raise LimitExceeded(f"a directory has more than {layer_changes.MOST_VISITED} files")
            try:
                found[name] = make_entry(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue  # removed while we looked
    return found


def read_attribute(descriptor: int, name: str) -> bytes | None:
    """Return an extended attribute; None where there is none."""
    try:
        return os.getxattr(descriptor, name)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTE:
            raise
        return None
