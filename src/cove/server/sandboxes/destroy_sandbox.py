"""Destroy sandboxes from outside their runtimes, in whatever state either is; collect those whose time is up."""

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from cove.linux.cgroup import Hierarchies, find_hierarchies
from cove.linux.pidfd import end_process, open_process, wait_for_end
from cove.runtime.home import Home
from cove.runtime.volumes import Volumes
from cove.server.counters import count_rarely
from cove.server.sandboxes.cpu_shares import remove_empty_shares
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.reservation import forget_stale, free, free_unknown
from cove.server.sandboxes.slots import forget_stale_slots

GRACE_SECONDS = 5.0
MOST_SECONDS = 60.0


def destroy(directory: Directory, hierarchies: Hierarchies, id: str) -> None:
    """Free the id at once, then end and remove all that was there. Idempotent. Blocks."""
    if key := free(directory, id):
        remove(directory, hierarchies, key)


def remove(directory: Directory, hierarchies: Hierarchies, key: str) -> None:
    """End the runtime at that place, whose id is free, and remove the place. Blocks."""
    end_runtime(directory, key)
    Home(directory.home).remove(key, hierarchies)


def end_runtime(directory: Directory, key: str) -> None:
    """End the process that has the place: SIGTERM, then SIGKILL. Blocks until it is gone."""
    holder = directory.holder(key)
    pidfd = None if holder is None else open_process(*holder)
    if pidfd is None:
        return
    try:
        if directory.is_held(key):
            end_process(pidfd, grace=GRACE_SECONDS)
        else:
            wait_for_end(pidfd, GRACE_SECONDS)  # it has let go of the place, which is the last that it does
    finally:
        os.close(pidfd)


def has_ended(directory: Directory, record: Record) -> bool:
    """Wait for a runtime that holds its place and answers nobody: it is dying. False for one that lives. Blocks."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(GRACE_SECONDS)
        try:
            connection.connect(str(directory.socket(record)))
        except OSError:
            pass
        else:
            return False
    return _is_gone(directory, record.key)


def _is_gone(directory: Directory, key: str) -> bool:
    """Wait for the process that has the place, which is dying; False when it does not end. Blocks."""
    holder = directory.holder(key)
    pidfd = None if holder is None else open_process(*holder)
    if pidfd is None:
        return True
    try:
        return wait_for_end(pidfd, GRACE_SECONDS)
    finally:
        os.close(pidfd)


def discard_abandoned(directory: Directory, hierarchies: Hierarchies, id: str) -> None:
    """Remove a sandbox whose process was killed before anybody had taken it; any other stays. Blocks."""
    entry = directory.look_up(id)
    record = directory.read(entry.key) if entry.is_offered else None
    if record is not None and _is_gone(directory, record.key) and free_unknown(directory, record):
        remove(directory, hierarchies, record.key)


def collect_garbage(path: Path) -> None:
    """Remove the sandboxes that nobody knows, whose time is up, or whose program is gone. Blocks."""
    home, directory, hierarchies = Home(path), Directory(path), find_hierarchies()
    forget_stale(directory)
    forget_stale_slots(directory)
    for record in directory.unknown():
        if free_unknown(directory, record):
            remove(directory, hierarchies, record.key)
            if record.is_over(datetime.now(UTC)):
                count_eviction(path, "lifetime")
    home.collect(hierarchies)
    remove_empty_shares(hierarchies)
    Volumes(home).collect()


def count_eviction(home: Path, reason: str) -> None:
    """Count a sandbox that was stopped, paused or destroyed because its time was up. Blocks."""
    count_rarely(home, f'cove_evictions_total{{reason="{reason}"}}')


def seconds_to_next(directory: Directory) -> float:
    """Return when a lifetime will be over, or at least when to look again."""
    now = datetime.now(UTC)
    ends = [record.deadline for record in directory.list() if record.deadline is not None]
    return min([MOST_SECONDS, *(max((end - now).total_seconds(), 1.0) for end in ends)])
