"""Validate and order mounts: normal paths, refused targets, and which of them must be staged.

A mount is *staged* when its target lies in a directory that code inside, or another sandbox, can change: bubblewrap
follows links there, so it only ever gets targets whose parents it has made itself. A staged mount is bound below
STAGING_DIRECTORY and then moved to its target without following a link (attach). Volumes, buckets and what lies in them
are *attached* when the jail stands.
"""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TypeVar

import msgspec

from cove.core.file_path import collapse
from cove.core.jail import HOME, STAGING_DIRECTORY, WORKSPACE
from cove.errors import MountExists, PermissionDenied, ValidationFailed
from cove.model import AnyMount, Mount

M = TypeVar("M", bound=AnyMount)

# Sources in or above these are refused: they show the host's system.
REFUSED_SOURCES = ("/proc", "/sys", "/dev", "/run")
_REFUSED_TARGETS = (
    *("/usr", "/proc", "/dev", "/etc", "/run/cove", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys"),
    "/var/tmp",  # a link to /tmp
)
_WRITABLE_PLACES = (WORKSPACE, HOME, "/tmp")


def normalise(path: str) -> str:
    """Return an absolute path without empty components, '.' and '..'; raise ValidationFailed for a relative one."""
    if not path.startswith("/"):
        raise ValidationFailed(f"mount: {path!r} must be an absolute path")
    return collapse(path)


def check_targets(mounts: Sequence[AnyMount]) -> tuple[AnyMount, ...]:
    """Return the mounts with normal targets, parents before what lies in them, or say which is refused."""
    checked = [with_target(mount) for mount in mounts]
    checked.sort(key=lambda mount: mount.target.count("/"))
    for at, mount in enumerate(checked):
        if any(mount.target == other.target for other in checked[:at]):
            raise ValidationFailed(f"mount target {mount.target} is named twice")
    return tuple(checked)


def check_addition(mount: AnyMount, present: Sequence[AnyMount]) -> None:
    """Raise unless a mount with a normal target can be added to those: MountExists where it would cover one."""
    if any(lies_in(place, mount.target) for place in _WRITABLE_PLACES):
        raise PermissionDenied(f"mount target {mount.target} is refused: a running sandbox keeps its own directories")
    for other in present:
        if lies_in(other.target, mount.target):
            raise MountExists(
                f"mount target {mount.target} is in use: {other.target} is mounted there: remove it first"
            )


def check_removal(mount: AnyMount, present: Sequence[AnyMount]) -> None:
    """Raise ValidationFailed for a mount that others are mounted in."""
    for other in present:
        if other.target != mount.target and lies_in(other.target, mount.target):
            raise ValidationFailed(f"{other.target} is mounted in {mount.target}: remove that first")


def with_target(mount: M) -> M:
    """Return the mount with a normal target, or say why it is refused."""
    return msgspec.structs.replace(mount, target=check_target(mount.target))


def check_target(text: str) -> str:
    """Return the normal path of a target, or say why it is refused."""
    if ".." in text.split("/"):
        raise ValidationFailed(f"mount target {text!r} must be an absolute path without '..'")
    target = normalise(text)
    if any(lies_in(target, refused) or lies_in(refused, target) for refused in _REFUSED_TARGETS):
        raise PermissionDenied(f"mount target {target} is refused: it would replace a part of the system")
    return target


def lies_in(path: str, directory: str) -> bool:
    """Return whether the path is that directory or below it; both are normal."""
    return PurePosixPath(path).is_relative_to(directory)


def attached(mounts: Sequence[AnyMount]) -> tuple[AnyMount, ...]:
    """The mounts that are attached: volumes, buckets, and host directories within those."""
    others = [mount.target for mount in mounts if not isinstance(mount, Mount)]
    return tuple(
        mount
        for mount in mounts
        if not isinstance(mount, Mount) or any(lies_in(mount.target, target) for target in others)
    )


def bound(mounts: Sequence[AnyMount]) -> tuple[Mount, ...]:
    """The mounts that bubblewrap binds: all others."""
    late = attached(mounts)
    return tuple(mount for mount in mounts if isinstance(mount, Mount) and mount not in late)


def staged(mounts: Sequence[Mount]) -> dict[str, Mount]:
    """The mounts that must be staged, by where bubblewrap binds them."""
    return {
        f"{STAGING_DIRECTORY}/{number}": mount
        for number, mount in enumerate(mounts)
        if any(
            mount.target != place and lies_in(mount.target, place)
            for place in (*_WRITABLE_PLACES, *(other.target for other in mounts))
        )
    }
