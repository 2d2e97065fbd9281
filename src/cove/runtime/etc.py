"""The directory that is /etc in every jail: one copy per state of the host's, bound once instead of file by file.

A copy shows what any user of the host can read, and no more. A jail keeps the copy that it started with. All calls here
block.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cove.archive.remove_tree import remove_tree
from cove.core.etc import SYNTHETIC_ETC, choose_names
from cove.core.identifier import new_identifier

_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o644

# Changes whenever a file or the names in a directory do.
Stamp = tuple[int, int, int, int] | None


@dataclass(slots=True)
class EtcDirectory:
    """The copies below `directory`; `source` is /etc, but for tests."""

    directory: Path
    source: Path = Path("/etc")
    _names: tuple[str, ...] = ()
    _stamps: Mapping[str, Stamp] | None = None
    _current: Path | None = None

    def current(self) -> Path:
        """Return a copy of the host's /etc as it is now; costs a few dozen stat(2) when that has not changed."""
        names = choose_names(os.listdir(self.source))
        if self._stamps is None or self._names != names or _take_stamps(self._stamps) != self._stamps:
            self._names = names
            self._stamps = _take_stamps(_stamped(self.source, names))
            self._current = self._prepare(self._stamps)
        assert self._current is not None
        return self._current

    def _prepare(self, stamps: Mapping[str, Stamp]) -> Path:
        digest = hashlib.sha256(repr((sorted(stamps.items()), sorted(SYNTHETIC_ETC.items()))).encode())
        target = self.directory / digest.hexdigest()[:16]
        if not target.exists():
            building = self.directory / f".{new_identifier()}"
            self._build(building)
            try:
                building.rename(target)
            except OSError:
                remove_tree(str(building))  # another program was first
        return target

    def _build(self, target: Path) -> None:
        _make_directory(target)
        for name in self._names:
            source, copy = self.source / name, target / name
            if os.path.lexists(source):
                if not copy.parent.exists():
                    _make_directory(copy.parent)
                self._copy(source, copy)
        for name, content in SYNTHETIC_ETC.items():
            (target / name).write_text(content)
            (target / name).chmod(_FILE_MODE)

    def _copy(self, source: Path, target: Path) -> None:
        """Copy what others may read; a link stays a link where it leads to what is seen inside too."""
        if source.is_symlink() and (not source.exists() or self._is_seen_inside(os.path.realpath(source))):
            target.symlink_to(os.readlink(source))
            return
        mode = source.stat().st_mode
        if stat.S_ISREG(mode) and mode & stat.S_IROTH:
            shutil.copyfile(source, target)
            target.chmod(_FILE_MODE)
            os.utime(target, ns=_times(source))
        elif stat.S_ISDIR(mode) and mode & stat.S_IROTH and mode & stat.S_IXOTH:
            _make_directory(target)
            for entry in source.iterdir():
                self._copy(entry, target / entry.name)

    def _is_seen_inside(self, path: str) -> bool:
        return path.startswith(("/usr/", *(f"{self.source / name}" for name in self._names)))


def _times(source: Path) -> tuple[int, int]:
    found = source.stat()
    return found.st_atime_ns, found.st_mtime_ns


def _make_directory(path: Path) -> None:
    path.mkdir()
    path.chmod(_DIRECTORY_MODE)


def _stamped(source: Path, names: Sequence[str]) -> Iterator[str]:
    """Everything that can change without its directory changing: what is no link. Missing names are watched too."""
    for name in names:
        top = os.path.join(source, name)
        yield top
        for folder, directories, files in os.walk(top):
            for each in (*directories, *files):
                path = os.path.join(folder, each)
                if not os.path.islink(path):
                    yield path


def _take_stamps(paths: Mapping[str, Stamp] | Iterator[str]) -> dict[str, Stamp]:
    return {path: _stamp(path) for path in paths}


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
