"""Find what COPY and ADD name: in a build's directory, or in another image. Links lead nowhere else. Blocks."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cove.archive import tar
from cove.archive.tar import Refused
from cove.images.dockerignore import Ignore, Parts, has_magic, match_name, split
from cove.images.merged_view import MOST_DEPTH, MergedView

MOST_ENTRIES = 1_000_000
MOST_MATCHES = 100_000
_CHUNK_BYTES = 1 << 20

Check = Callable[[], object]


def _go_on() -> None:
    """Give up never."""


@dataclass(frozen=True, slots=True)
class Item:
    """A file, directory or symbolic link: `real` says where it is, `relative` where it belongs below the target."""

    real: Parts
    relative: Parts
    status: os.stat_result
    link: bytes | None = None

    @property
    def is_directory(self) -> bool:
        """Return whether it is a directory."""
        return stat.S_ISDIR(self.status.st_mode)


@dataclass(frozen=True, slots=True)
class Named:
    """A file or a directory that one word of COPY stands for, through links."""

    name: bytes
    real: Parts
    is_directory: bool


@dataclass(frozen=True, slots=True)
class BuildSource:
    """A tree to copy from; `ignore` hides some of it."""

    view: MergedView
    ignore: Ignore = field(default_factory=Ignore)

    def find_all(self, words: Sequence[str], check: Check) -> list[Named]:
        """Return what all paths and patterns of a step name."""
        found: list[Named] = []
        for word in words:
            found += self.find(word, check)
            if len(found) > MOST_MATCHES:
                raise Refused(f"patterns that name more than {MOST_MATCHES} files")
        return found

    def find(self, word: str, check: Check = _go_on) -> list[Named]:
        """Return what a path or a pattern names. Raises Refused where that is nothing, or leads out."""
        parts = split(os.fsencode(word))
        if parts[:1] == (b"..",):
            raise Refused(f"{word} leads out of the build's directory")
        if len(parts) > MOST_DEPTH:
            raise Refused(f"a path of more than {MOST_DEPTH} directories in one another")
        found = [named for path in self._expand(parts, check) if (named := self._name(path)) is not None]
        if not found:
            raise Refused(f"{word} is not there{' (see .dockerignore)' if self.ignore.hides(parts) else ''}")
        return found

    def _expand(self, parts: Parts, check: Check) -> list[Parts]:
        paths: list[Parts] = [()]
        for name in parts:
            paths = self._match(paths, name, check) if has_magic(name) else [(*path, name) for path in paths]
        return paths

    def _match(self, paths: Sequence[Parts], pattern: bytes, check: Check) -> list[Parts]:
        """Go on with every name that matches; links that lead back up could make that very many."""
        found: list[Parts] = []
        for path in paths:
            check()
            found += [(*path, each) for each in self._names(path) if match_name(pattern, each)]
            if len(found) > MOST_MATCHES:
                raise Refused(f"a pattern that names more than {MOST_MATCHES} files")
        return found

    def _names(self, path: Parts) -> list[bytes]:
        real = self.view.resolve(path)
        return self.view.names(real) if self._is_directory(real) else []

    def _name(self, path: Parts) -> Named | None:
        real = self.view.resolve(path)
        is_directory = self._is_directory(real)
        if self._is_hidden(path, is_directory) or self._is_hidden(real, is_directory):
            return None
        found = self.view.look(real) if real else None
        if not is_directory and (found is None or not stat.S_ISREG(found.st_mode)):
            return None
        return Named(path[-1] if path else b"", real, is_directory)

    def _is_hidden(self, path: Parts, is_directory: bool) -> bool:
        return bool(path) and self.ignore.hides(path) and not (is_directory and self.ignore.has_exceptions)

    def _is_directory(self, real: Parts) -> bool:
        found = self.view.look(real) if real else None
        return not real or (found is not None and stat.S_ISDIR(found.st_mode))

    def walk(self, named: Named, check: Check = _go_on) -> Iterator[Item]:
        """Give a file, or all that is in a directory, parents first. Pipes, sockets and devices are left out."""
        if not named.is_directory:
            found = self.view.look(named.real)
            if found is not None:
                yield Item(named.real, (), found)
            return
        pending: list[Parts] = [()]
        count = 0
        while pending:
            relative = pending.pop()
            for item in self._below(named.real, relative, check):
                count += 1
                if count > MOST_ENTRIES or len(item.relative) > MOST_DEPTH:
                    raise Refused(f"more than {MOST_ENTRIES} files, or {MOST_DEPTH} directories in one another")
                if item.is_directory:
                    pending.append(item.relative)
                if not self.ignore.hides(item.real):
                    yield item

    def _below(self, top: Parts, relative: Parts, check: Check) -> Iterator[Item]:
        directory = (*top, *relative)
        for name in self.view.names(directory):
            check()
            real = (*directory, name)
            found = self.view.look(real)
            if found is None or (self.ignore.hides(real) and not self.ignore.has_exceptions):
                continue
            if stat.S_ISLNK(found.st_mode):
                yield Item(real, (*relative, name), found, self.view.read_link(real))
            elif stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                yield Item(real, (*relative, name), found)

    def open(self, real: Parts) -> int:
        """Open a file that was found; Refused where it is gone or cannot be read."""
        try:
            fd = self.view.open(real)
        except PermissionError:
            fd = None
        if fd is None:
            raise Refused(f"{tar.shown(b'/'.join(real))} is gone, or may not be read")
        return fd

    def digest(self, words: Sequence[str], check: Check) -> str:
        """Return the digest of names, kinds, modes and contents of all that these words name."""
        whole = hashlib.sha256()
        count = 0
        for named in self.find_all(words, check):
            whole.update(_record(b"named", named.name, bytes([named.is_directory])))
            for item in self.walk(named, check):
                count += 1
                if count > MOST_ENTRIES:
                    raise Refused(f"a step that copies more than {MOST_ENTRIES} files")
                whole.update(self._describe(item, check))
        return whole.hexdigest()

    def _describe(self, item: Item, check: Check) -> bytes:
        path = b"/".join(item.relative)
        mode = b"%o %d %d" % (item.status.st_mode & 0o777, *self.view.owner(item.real))
        if item.link is not None:
            return _record(b"link", path, mode, item.link)
        if item.is_directory:
            return _record(b"directory", path, mode)
        return _record(b"file", path, mode, self._content(item.real, check))

    def _content(self, real: Parts, check: Check) -> bytes:
        hashed, fd = hashlib.sha256(), self.open(real)
        try:
            while data := os.read(fd, _CHUNK_BYTES):
                check()
                hashed.update(data)
        finally:
            os.close(fd)
        return hashed.digest()


def _record(*fields: bytes) -> bytes:
    """Encode fields so that no two lists of them are the same bytes."""
    return b"".join(b"%d:%b" % (len(each), each) for each in (b"%d" % len(fields), *fields))
