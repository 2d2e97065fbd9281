"""Detached mounts to attach to a jail: of a host's directory, a volume, or what another jail mounted.

As root a tree is cloned here, by the descriptor that was judged. A plain user has no right to: the helper clones it in
a copy of the host's mounts, where it opens the path again and goes on only if that leads to the same file.
"""

import errno
import os
from collections.abc import Sequence

from cove.attach import Attached, CloneTree, Target, kernel, start_process
from cove.core.users import Extent
from cove.errors import CoveError, SandboxUnavailable, from_errno
from cove.linux.path_walk import Found, find
from cove.local.threads import start_in_thread
from cove.runtime.attachment import attach
from cove.runtime.machine import Machine
from cove.runtime.volumes import UsedVolume
from cove.tasks import settled


async def clone_inside(machine: Machine, target: Target, action: CloneTree) -> int:
    """Clone by the helper, in the namespaces of that jail. The caller closes the tree."""
    (tree,) = (await settled(start_in_thread(attach, machine, target, [action]), discard=Attached.close)).trees
    return tree


async def clone_host(machine: Machine, target: Target, found: Found, *, read_only: bool) -> int:
    """Clone a directory or file of the host for the sandbox that is `target`. The caller closes the tree."""
    if not machine.can_enter_namespaces:
        return await clone_inside(machine, target, CloneTree(found.descriptor, read_only))
    return await settled(start_in_thread(_clone, found, read_only, None), discard=os.close)


async def clone_volume(
    machine: Machine, target: Target, volume: UsedVolume, id_map: int | None, *, read_only: bool
) -> int:
    """Clone a volume; as root, with owners translated by that user namespace. The caller closes the tree."""
    if id_map is None:
        return await clone_inside(machine, target, CloneTree(str(volume.data), read_only))
    return await settled(start_in_thread(_clone_volume, volume, read_only, id_map), discard=os.close)


def _clone_volume(volume: UsedVolume, read_only: bool, id_map: int) -> int:
    found = find(str(volume.data))
    try:
        return _clone(found, read_only, id_map)
    finally:
        found.close()


def _clone(found: Found, read_only: bool, id_map: int | None) -> int:
    try:
        return kernel.clone(found.descriptor, found.path, read_only=read_only, id_map=id_map)
    except kernel.Failed as failure:
        raise _explain(failure, has_map=id_map is not None) from None


def _explain(failure: kernel.Failed, *, has_map: bool) -> CoveError:
    if has_map and failure.number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        return SandboxUnavailable(
            "as root, volumes need idmapped mounts: Linux 5.12, and COVE_HOME on ext4, xfs or btrfs: "
            f"{os.strerror(failure.number)}"
        )
    return from_errno(failure.number, f"mount {failure.subject}")


def make_id_map(machine: Machine, users: Sequence[Extent], groups: Sequence[Extent]) -> int:
    """Return a user namespace that maps owners on disk to those of a sandbox. The caller closes it. Blocks."""
    helper = start_process(machine.attach_command, None)
    try:
        helper.isolate()
        assert helper.process is not None
        above = f"/proc/{helper.process.pid}"
        for name, extents in (("uid_map", users), ("gid_map", groups)):
            with open(f"{above}/{name}", "wb", buffering=0) as file:
                file.write(b"".join(b"%d %d %d\n" % extent for extent in extents))
        return os.open(f"{above}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, kernel.Failed) as error:
        raise SandboxUnavailable(f"the owners of volumes cannot be translated here: {error}") from error
    finally:
        helper.close()
