"""Allocate the place of a new sandbox, with the users that it is to have. Blocks."""

from cove.images.store import ImageStore
from cove.images.system import make_system
from cove.linux.subordinate import fits
from cove.model import Isolation, SandboxSpec, SnapshotMethod
from cove.model.spec import HOST_IMAGE
from cove.runtime.home import Place
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
    if system is None or not all(mount.read_only for mount in spec.mounts):
        return False
    return fits(system.user_id) and fits(system.group_id)
