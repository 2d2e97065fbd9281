"""Fingerprint a tree: a digest that is the same as long as no file in it changes."""

from __future__ import annotations

import os
import stat
from _blake2 import blake2b

from cove.agent.files import TEMPORARY
from cove.agent.pattern import decode
from cove.agent.tree import read_directory, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cove.agent.pattern import Filter


def digest(top: bytes, recursive: bool, filter: Filter) -> bytes:
    """Names, kinds and modes of all, and for files the times and sizes, which nobody can set back: inode(7)."""
    state = blake2b(digest_size=16)

    def enters(relative: bytes, entry: os.DirEntry[bytes]) -> bool:
        return not entry.name.startswith(TEMPORARY) and filter.enters(decode(relative))

    if not os.path.isdir(top):
        state.update(describe(os.stat(top)))
        return state.hexdigest().encode()
    if recursive:
        found = walk(top, enters)
    else:
        names = [(entry.name, entry) for entry in reversed(read_directory(top, is_top=True))]
        found = (each for each in names if enters(*each))
    for relative, entry in found:
        if filter.shows(decode(relative)):
            try:
                state.update(b"%d\0%b" % (len(relative), relative))
                state.update(describe(entry.stat(follow_symlinks=False)))
            except OSError:
                continue  # removed while we looked, or beyond the longest path
    return state.hexdigest().encode()


def describe(found: os.stat_result) -> bytes:
    """Describe what of a file has to stay the same."""
    if stat.S_ISDIR(found.st_mode):
        return b"%d\n" % found.st_mode
    facts = (found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return b"%d %d %d %d %d\n" % facts
