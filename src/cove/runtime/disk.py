"""Disk quota: the writable directories of a sandbox on a file system of their own, where root can make one."""

import os
import tempfile
from pathlib import Path

from cove.errors import SandboxUnavailable
from cove.linux.directory_permission import admit_group
from cove.linux.disk_image import ImageUnavailable, make_image, mount_image, repair_image, unmount
from cove.model import Limits

IMAGE = "disk.img"
MOUNT_POINT = "disk"
_DIRECTORIES = ("workspace", "home", "tmp")
_TRIAL_BYTES = 8 << 20
# A larger limit keeps a disk from being filled up, it does not ration it: measuring holds that well enough, and costs
# no start and no end the making, mounting and unmounting of a file system, which takes them twice as long.
_LARGEST_IMAGE = 8 << 30


def attach_disk(place: Path, limits: Limits, owner: int | None) -> bool:
    """Put the directories on a file system of the size that the limits ask for; False where measuring holds them.

    One that was made before is mounted again. Blocks.
    """
    if owner is None or not _needs_image(limits):
        return False
    image, point = place / IMAGE, place / MOUNT_POINT
    point.mkdir(mode=0o700, exist_ok=True)
    if not os.path.ismount(point):
        if image.exists():
            _mount_again(str(image), str(point))
        elif not _make_and_mount(image, point, limits):
            return False
        admit_group(point, owner)
    for name in _DIRECTORIES:
        _move_in(place / name, point / name, owner)
    return True


def _needs_image(limits: Limits) -> bool:
    return limits.inodes is not None or (limits.disk is not None and limits.disk <= _LARGEST_IMAGE)


def _make_and_mount(image: Path, point: Path, limits: Limits) -> bool:
    try:
        make_image(str(image), limits.disk or _free_bytes(image.parent), limits.inodes)
        mount_image(str(image), str(point))
    except ImageUnavailable:
        image.unlink(missing_ok=True)
        return False
    return True


def _mount_again(image: str, point: str) -> None:
    """Its files are on it: without it there is no sandbox."""
    try:
        repair_image(image)
        mount_image(image, point)
    except ImageUnavailable as error:
        raise SandboxUnavailable(f"the disk of the sandbox cannot be used: {error}") from error


def _move_in(directory: Path, inside: Path, owner: int) -> None:
    inside.mkdir(mode=0o700, exist_ok=True)
    os.chown(inside, owner, owner, follow_symlinks=False)
    if not directory.is_symlink():
        directory.rmdir()
        directory.symlink_to(inside.relative_to(directory.parent))


def detach_disk(place: Path) -> None:
    """Take the file system away, if there is one. Blocks."""
    unmount(str(place / MOUNT_POINT))


def try_disk(directory: Path) -> str | None:
    """Explain why disk images cannot hold limits below that directory; None when they can. Blocks."""
    if os.geteuid() != 0:
        return "only root can mount file systems"
    with tempfile.TemporaryDirectory(dir=directory, prefix=".disk-") as folder:
        place = Path(folder)
        point = place / MOUNT_POINT
        point.mkdir()
        try:
            make_image(str(place / IMAGE), _TRIAL_BYTES, None)
            mount_image(str(place / IMAGE), str(point))
        except ImageUnavailable as error:
            return str(error)
        finally:
            detach_disk(place)
    return None


def _free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
