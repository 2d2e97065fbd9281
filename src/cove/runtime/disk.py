"""Disk quota: the writable directories of a sandbox on a file system of their own, where root can make one."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from cove.errors import SandboxUnavailable
from cove.linux.path_walk import admit_group
from cove.model import Limits

IMAGE = "disk.img"
MOUNT_POINT = "disk"
_DIRECTORIES = ("workspace", "home", "tmp")
_TRIAL_BYTES = 8 << 20
# A larger limit keeps a disk from being filled up, it does not ration it: measuring holds that well enough, and costs
# no start and no end the making, mounting and unmounting of a file system, which takes them twice as long.
_LARGEST_IMAGE = 8 << 30
_TOOLS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_SECONDS = 60
# A file system needs this much for itself; ext4 also has inodes of its own.
_LEAST_BYTES = 2 << 20
_OWN_INODES = 16
# e2fsck(8): nothing to do, or done.
_REPAIRED = (0, 1)


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


class ImageUnavailable(Exception):
    """This machine cannot make or mount one; the message says why."""


def make_image(path: str, size: int, inodes: int | None) -> None:
    """Make an empty file system whose top directory is root's. Nothing is left of a failed one."""
    building = f"{path}.new"
    with open(building, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.truncate(max(size, _LEAST_BYTES))
    options = "lazy_itable_init=1,nodiscard,root_owner=0:0"
    count = [] if inodes is None else ["-N", str(inodes + _OWN_INODES)]
    try:
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", options, *count, building)
        os.rename(building, path)
    except ImageUnavailable:
        os.unlink(building)
        raise


def repair_image(path: str) -> None:
    """Bring one that was not taken away in good order, by a crash of the machine, into a state that can be mounted."""
    _run("e2fsck", "-p", path, good=_REPAIRED)


def mount_image(path: str, point: str) -> None:
    """Mount it there; what is deleted in it gives its space back to the host."""
    _run("mount", "-t", "ext4", "-o", "loop,nosuid,nodev,noatime,discard", path, point)


def unmount(point: str) -> None:
    """Take away what is mounted there, if anything is; who still has it open keeps it until then."""
    if os.path.ismount(point):
        try:
            _run("umount", point)
        except ImageUnavailable:
            _run("umount", "--lazy", point)


def _run(name: str, *arguments: str, good: tuple[int, ...] = (0,)) -> None:
    tool = shutil.which(name, path=":".join(_TOOLS))
    if tool is None:
        raise ImageUnavailable(f"{name} is not installed")
    try:
        end = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False, env={})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageUnavailable(f"{name}: {error}") from error
    if end.returncode not in good:
        raise ImageUnavailable(f"{name}: {end.stderr.strip() or end.returncode}")
