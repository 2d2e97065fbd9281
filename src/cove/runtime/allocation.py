"""Allocate the place of a new sandbox, with the users that it is to have. Blocks."""

import os
from pathlib import Path

from cove.attach import can_enter_namespaces
from cove.core.users import FIRST_RANGE, RANGE_USERS, RANGES
from cove.images.store import ImageStore
from cove.images.system import make_system
from cove.layers.record import System
from cove.layers.support import find_method
from cove.linux.subordinate import find_subordinates, fits
from cove.linux.user_map import can_map_users
from cove.model import Isolation, SandboxSpec, SnapshotMethod
from cove.model.spec import HOST_IMAGE
from cove.runtime.home import Home, Place
from cove.runtime.machine import Machine


def allocate(machine: Machine, spec: SandboxSpec, *, is_build: bool = False) -> Place:
    """Make the place of a new sandbox; on the system of an image with users of its own, where those can be mapped.

    The sandbox of a build has them only where layers keep owners on disk.
    """
    if not machine.is_root:
        return machine.home.allocate(many_users=not is_build and _can_slice(machine, spec))
    has_system = spec.image != HOST_IMAGE
    if spec.snapshot is not None and machine.can_map_users:
        has_system = machine.home.layers.find(spec.snapshot).system is not None
    return machine.home.allocate(many_users=has_system and machine.can_map_users)


def _can_slice(machine: Machine, spec: SandboxSpec) -> bool:
    """Return whether a plain user's sandbox may have several users: its own is one of a slice.

    One with a mount that it can write has none: what they leave there, nobody outside could remove.
    """
    if machine.snapshots is SnapshotMethod.COPY or spec.isolation is not Isolation.BUBBLEWRAP:
        return False
    system = None
    if spec.snapshot is not None:
        system = machine.home.layers.find(spec.snapshot).system
    elif spec.image != HOST_IMAGE:
        image = ImageStore(machine.home.path, machine.home.layers).find(spec.image)
        system = make_system(image, machine.home.layers, spec.user)
    return system is not None and _fits_slice(spec, system)


def _fits_slice(spec: SandboxSpec, system: System) -> bool:
    return all(mount.read_only for mount in spec.mounts) and fits(system.user_id) and fits(system.group_id)


def explain_refusal(home: Path, spec: SandboxSpec, system: System) -> str | None:
    """Say why a sandbox on a system of an image cannot come here from another machine; None where it can."""
    if _method(home) is SnapshotMethod.COPY:
        return "it stands on an image, and layers of images cannot be shown there"
    is_root = os.geteuid() == 0
    if spec.sudo and system.user_id != 0 and not (_can_map() if is_root else find_subordinates() is not None):
        return f"{system.user} has sudo, and further users cannot be mapped there"
    return None


def allocate_moved(home: Home, spec: SandboxSpec, system: System | None, key: str) -> Place:
    """Make the place, under its key, of a sandbox that comes from another machine."""
    if system is None:
        return home.allocate(key=key)
    if os.geteuid() == 0:
        return home.allocate(many_users=_can_map(), key=key)
    return home.allocate(many_users=spec.isolation is Isolation.BUBBLEWRAP and _fits_slice(spec, system), key=key)


def _can_map() -> bool:
    return can_map_users(FIRST_RANGE, RANGES * RANGE_USERS)


def _method(home: Path) -> SnapshotMethod:
    return find_method(home, can_mount=os.geteuid() != 0 or can_enter_namespaces())
