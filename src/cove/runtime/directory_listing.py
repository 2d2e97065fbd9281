"""List an open directory of a sandbox, sorted. Blocks; its entries are hostile."""

import heapq
import os
import stat

from cove.core.file_path import below, decode_path
from cove.errors import LimitExceeded
from cove.model import FileInfo
from cove.runtime.file_access import make_info
from cove.runtime.file_answers import MOST_ENTRIES

_RUN_ENTRIES = 4096


def list_directory(descriptor: int, path: bytes, hidden: bool) -> list[FileInfo]:
    """List an open directory. No link is followed and nothing below is entered, so nothing else is reached."""
    found: list[FileInfo] = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if not hidden and entry.name.startswith("."):
                continue
            if len(found) >= MOST_ENTRIES:
                raise LimitExceeded(f"{decode_path(path)} has more than {MOST_ENTRIES} entries: use glob")
            try:
                facts = entry.stat(follow_symlinks=False)
                is_link = stat.S_ISLNK(facts.st_mode)
                target = os.fsencode(os.readlink(entry.name, dir_fd=descriptor)) if is_link else None
            except FileNotFoundError:
                continue  # removed while we looked
            full = below(path, os.fsencode(entry.name))
            found.append(make_info(full, facts.st_mode, facts.st_size, facts.st_mtime_ns, target))
    return sort_by_path(found)


def sort_by_path(found: list[FileInfo]) -> list[FileInfo]:
    """Sort in runs, then merge: one sort of all would keep the interpreter from the event loop for its whole time."""
    runs = [found[at : at + _RUN_ENTRIES] for at in range(0, len(found), _RUN_ENTRIES)]
    for run in runs:
        run.sort(key=_path_of)
    return runs[0] if len(runs) == 1 else list(heapq.merge(*runs, key=_path_of))


def _path_of(info: FileInfo) -> str:
    return info.path
