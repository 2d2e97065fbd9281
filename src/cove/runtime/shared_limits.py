"""Keep one sandbox from taking what the machine or the user has for all: inodes in memory, terminals, inotify."""

import os
from pathlib import Path

from cove.attach import Action, MountOptions, Sysctls
from cove.core.limits import MOUNT_OPTIONS, inotify_limits

_OF_THE_USER = "/proc/sys/fs/inotify"


def shared_limits() -> list[Action]:
    """Return what to set in a jail before anything runs there. Root's have users, and so user limits, of their own."""
    limits: list[Action] = [MountOptions(MOUNT_OPTIONS)]
    if os.geteuid() != 0:
        of_the_user = (_read("max_user_instances"), _read("max_user_watches"))
        limits.append(Sysctls({name: str(value) for name, value in inotify_limits(*of_the_user).items()}))
    return limits


def _read(name: str) -> int:
    return int(Path(_OF_THE_USER, name).read_text())
