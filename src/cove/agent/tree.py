"""Walk, match, search, compare and copy trees inside the sandbox.

A directory below the first that cannot be read is left out, as `find` does; links to directories are not entered.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat

from cove.agent.files import TEMPORARY, close, open_old
from cove.agent.pattern import decode, has_magic, name_matcher, path_matcher
from cove.archive.sparse_copy import copy_data
from cove.archive.tar import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_ENTRIES = 200000
MOST_SEARCHED = 64 << 20
MOST_LINE = 2000
BINARY_PROBE = 8192
COPY_BYTES = 1 << 30
OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TooMany(Exception):
    """More is found than a caller can take; the text says what to do."""


def walk(
    top: bytes, enters: Callable[[bytes, os.DirEntry[bytes]], bool] = lambda relative, entry: True, deep: bool = True
) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Walk every entry below top with its path from there, parents first, names sorted; `enters` can leave some out.

    Not `deep`, only those in top itself.
    """
    pending = [(b"", read_directory(top, is_top=True))]
    while pending:
        prefix, entries = pending[-1]
        if not entries:
            pending.pop()
            continue
        entry = entries.pop()
        relative = prefix + entry.name
        if not enters(relative, entry):
            continue
        yield relative, entry
        if deep and entry.is_dir(follow_symlinks=False):
            pending.append((relative + b"/", read_directory(entry.path, is_top=False)))


def read_directory(path: bytes, is_top: bool) -> list[os.DirEntry[bytes]]:
    """Return the entries, the first name last."""
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name, reverse=True)
    except OSError:
        if is_top:
            raise
        return []


def entries(top: bytes, hidden: bool, deep: bool) -> Iterator[tuple[bytes, ...]]:
    """List everything below top, sorted by path: mode, size, time of change, relative path, and where a link points."""

    def enters(relative: bytes, entry: os.DirEntry[bytes]) -> bool:
        return hidden or not entry.name.startswith(b".")

    all_entries = list(itertools.islice(walk(top, enters, deep), MOST_ENTRIES + 1))
    if len(all_entries) > MOST_ENTRIES:
        raise TooMany("more than %d files: list its directories one by one" % MOST_ENTRIES)
    all_entries.sort(key=lambda found: found[0])
    for relative, entry in all_entries:
        try:
            found = entry.stat(follow_symlinks=False)
            target = os.readlink(entry.path) if stat.S_ISLNK(found.st_mode) else b""
        except OSError:
            continue  # removed while we looked
        yield b"%d" % found.st_mode, b"%d" % found.st_size, b"%d" % found.st_mtime_ns, relative, target


def glob(top: bytes, pattern: bytes) -> list[bytes]:
    """Return the paths from top that match; `**` stands for any number of directories."""
    parts = [part for part in pattern.split(b"/") if part not in (b"", b".")]
    read_directory(top, is_top=True)
    found: set[bytes] = set()
    pending = [(b"", 0)] if parts else []
    seen = {(b"", 0)}
    while pending:
        for step in expand(top, parts, *pending.pop()):
            if step in seen:
                continue
            seen.add(step)
            if step[1] < len(parts):
                pending.append(step)
            elif step[0]:
                found.add(step[0])
            if len(seen) > MOST_ENTRIES:
                raise TooMany("more than %d files match: make the pattern narrower" % MOST_ENTRIES)
    return sorted(found)


def expand(top: bytes, parts: list[bytes], prefix: bytes, at: int) -> Iterator[tuple[bytes, int]]:
    """Expand one part of a pattern from a directory: paths, and the part that comes next."""
    part = parts[at]
    directory = os.path.join(top, prefix)
    base = prefix + b"/" if prefix else b""
    if part == b"**":
        yield prefix, at + 1
        for entry in read_directory(directory, is_top=False):
            if not entry.name.startswith(b"."):
                if entry.is_dir(follow_symlinks=False):
                    yield base + entry.name, at
                if at + 1 == len(parts):
                    yield base + entry.name, at + 1
    elif not has_magic(decode(part)):
        if os.path.lexists(os.path.join(directory, part)):
            yield base + part, at + 1
    else:
        matches = name_matcher(decode(part))
        for entry in read_directory(directory, is_top=False):
            if matches(decode(entry.name)) and (at + 1 == len(parts) or entry.is_dir()):
                yield base + entry.name, at + 1


def search(top: bytes, expression: bytes, pattern: bytes, limit: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the lines that match, as path from top, number and text; top may be a file."""
    found = compiled(decode(expression))
    matches = path_matcher([decode(pattern)]) if pattern else lambda path: True
    count = 0
    for relative, path in searched(top):
        if not matches(decode(relative or os.path.basename(top))):
            continue
        for number, line in search_file(path, found):
            shown = line[:MOST_LINE].replace("\0", "\ufffd")
            yield relative, b"%d" % number, shown.encode("utf-8", "surrogateescape")
            count += 1
            if count >= limit:
                return


def compiled(expression: str) -> re.Pattern[str]:
    """Return a regular expression that a caller has written."""
    try:
        return re.compile(expression, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused("%r is not a regular expression: %s" % (expression[:200], error)) from None


def searched(top: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the files to look at: top itself, or all below it."""
    if not os.path.isdir(top):
        os.stat(top)
        yield b"", top
        return
    for relative, entry in walk(top, lambda relative, entry: entry.name != b".git"):
        if entry.is_file(follow_symlinks=False):
            yield relative, entry.path


def search_file(path: bytes, expression: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield each line with a match once. Binary files, large ones and what cannot be read have none."""
    try:
        fd = os.open(path, OPEN_FILE)
    except OSError:
        return
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_SEARCHED:
            return
        data = read_text(fd)
    finally:
        os.close(fd)
    number, at = 1, 0
    for match in expression.finditer(data):
        if match.start() < at or match.start() == len(data):
            continue  # in a line that is already reported, or after the last one
        number += data.count("\n", at, match.start())
        begin = data.rfind("\n", 0, match.start()) + 1
        end = data.find("\n", match.start())
        end = len(data) if end < 0 else end
        yield number, data[begin:end]
        at = end + 1
        number += 1


def read_text(fd: int) -> str:
    """Return the text of a file; what is binary has none."""
    chunks = [os.read(fd, BINARY_PROBE)]
    if b"\0" in chunks[0]:
        return ""
    size = 0
    while chunks[-1] and size < MOST_SEARCHED:
        size += len(chunks[-1])
        chunks.append(os.read(fd, 1 << 20))
    return decode(b"".join(chunks))


def copy(source: bytes, destination: bytes) -> None:
    """Copy a file or a tree, as `cp -r` with modes and times; a link at the beginning is followed."""
    mode = os.stat(source).st_mode
    if stat.S_ISDIR(mode):
        real = os.path.realpath(source)
        if (os.path.realpath(destination) + b"/").startswith(real.rstrip(b"/") + b"/"):
            raise OSError(errno.EINVAL, "a directory cannot be copied into itself", destination)
        copy_directory(source, destination)
    else:
        copy_file(source, destination)


def copy_directory(source: bytes, destination: bytes) -> None:
    """Copy a directory and all below it, into one that may be there."""
    found = os.stat(source)
    try:
        os.mkdir(destination, 0o700 | found.st_mode & 0o777)
    except FileExistsError:
        if not os.path.isdir(destination):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", destination) from None
    for entry in os.scandir(source):
        copy_entry(entry, os.path.join(destination, entry.name))
    os.chmod(destination, found.st_mode & 0o777)
    os.utime(destination, ns=(found.st_atime_ns, found.st_mtime_ns))


def copy_entry(entry: os.DirEntry[bytes], destination: bytes) -> None:
    """Copy one name of a directory."""
    if entry.is_symlink():
        temporary = beside(destination)
        os.symlink(os.readlink(entry.path), temporary)
        os.rename(temporary, destination)
    elif entry.is_dir(follow_symlinks=False):
        copy_directory(entry.path, destination)
    else:
        copy_file(entry.path, destination)


def copy_file(source: bytes, destination: bytes) -> None:
    """Copy a regular file; the old one stays until the new one is complete."""
    read = os.open(source, OPEN_FILE)
    try:
        found = os.fstat(read)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", source)
        check_writable(destination)
        temporary = beside(destination)
        write = os.open(temporary, CREATE_FILE, 0o600)
        try:
            copy_data(read, write, found.st_size, COPY_BYTES)
            os.fchmod(write, found.st_mode & 0o777)
            os.utime(write, ns=(found.st_atime_ns, found.st_mtime_ns))
            os.rename(temporary, destination)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(write)
    finally:
        os.close(read)


def check_writable(path: bytes) -> None:
    """Check that a file in the way may be written: only then it is replaced."""
    try:
        if stat.S_ISREG(os.lstat(path).st_mode):
            close(open_old(path))
    except FileNotFoundError:
        return
    except OSError as error:
        error.filename = path
        raise


def beside(path: bytes) -> bytes:
    """Return a name for a file until it is complete."""
    return os.path.join(os.path.dirname(path), TEMPORARY + os.urandom(8).hex().encode())
