"""Destroy a sandbox from outside its runtime, in whatever state either is."""

import os

from cove.linux.cgroup import Hierarchies
from cove.linux.pidfd import end_process, open_process
from cove.runtime.home import Home
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.reservation import free

GRACE_SECONDS = 5.0


def destroy(directory: Directory, hierarchies: Hierarchies, id: str) -> None:
    """Free the id at once, then end and remove all that was there. Idempotent. Blocks."""
    if key := free(directory, id):
        remove(directory, hierarchies, key)


def remove(directory: Directory, hierarchies: Hierarchies, key: str) -> None:
    """End the runtime at that place, whose id is free, and remove the place. Blocks."""
    end_runtime(directory, key)
    Home(directory.home).remove(key, hierarchies)


def end_runtime(directory: Directory, key: str) -> None:
    """End the process that has the place: politely, then not. Blocks until it is gone."""
    holder = directory.holder(key)
    if holder is None or not directory.is_held(key):
        return
    pidfd = open_process(*holder)
    if pidfd is not None:
        try:
            end_process(pidfd, grace=GRACE_SECONDS)
        finally:
            os.close(pidfd)
