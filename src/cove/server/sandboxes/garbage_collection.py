"""Garbage collection: remove what crashes left, and sandboxes whose lifetime is over."""

from datetime import UTC, datetime
from pathlib import Path

from cove.linux.cgroup import find_hierarchies
from cove.runtime.home import Home
from cove.server.sandboxes.destroy_sandbox import remove
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.reservation import forget_stale, free

_MOST_SECONDS = 60.0


def collect_garbage(path: Path) -> None:
    """Remove it. Blocks, for as long as that takes."""
    home, directory, hierarchies = Home(path), Directory(path), find_hierarchies()
    forget_stale(directory)
    for record in directory.unknown():
        if directory.key_of(record.id) == record.key:
            free(directory, record.id)
        remove(directory, hierarchies, record.key)
    home.collect(hierarchies)


def seconds_to_next(directory: Directory) -> float:
    """Return when a lifetime will be over, or at least when to look again."""
    now = datetime.now(UTC)
    ends = [record.deadline for record in directory.list() if record.deadline is not None]
    return min([_MOST_SECONDS, *(max((end - now).total_seconds(), 1.0) for end in ends)])
