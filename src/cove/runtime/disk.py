"""Disk quota: the writable directories of a sandbox on a file system of their own, where root can make one."""

import glob
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
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
LARGEST_IMAGE = 8 << 30
_TOOLS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_SECONDS = 60
# A file system needs this much for itself; ext4 also has inodes of its own.
_LEAST_BYTES = 2 << 20
_OWN_INODES = 16
# Room that only root can use: a sandbox that has filled its disk can be started again, which makes some directories.
_RESERVED_BYTES = 256 << 10
# How long processes that were killed may take to let go of a file system; the kernel tells nobody when they have.
_RELEASE_SECONDS = 2.0
_PAUSE = 0.02
_BACKING_FILES = "/sys/block/loop*/loop/backing_file"
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
    return limits.inodes is not None or (limits.disk is not None and limits.disk <= LARGEST_IMAGE)


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
        mount_again(image, point)
    except ImageUnavailable as error:
        raise SandboxUnavailable(f"the disk of the sandbox cannot be used: {error}") from error


def _move_in(directory: Path, inside: Path, owner: int) -> None:
    """Let the directory lead to one on the disk. Where it does, a layer may have taken that: nothing is made anew."""
    if directory.is_symlink():
        return
    inside.mkdir(mode=0o700, exist_ok=True)
    os.chown(inside, owner, owner, follow_symlinks=False)
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
        whole = max(size, _LEAST_BYTES) + _RESERVED_BYTES
        file.truncate(whole)
    options = "lazy_itable_init=1,nodiscard,root_owner=0:0"
    count = [] if inodes is None else ["-N", str(inodes + _OWN_INODES)]
    try:
        reserved = f"{100 * _RESERVED_BYTES / whole:.6f}"
        _run("mkfs.ext4", "-q", "-F", "-m", reserved, "-O", "^has_journal", "-E", options, *count, building)
        os.rename(building, path)
    except ImageUnavailable:
        os.unlink(building)
        raise


def mount_again(path: str, point: str) -> None:
    """Mount one that was made before, in a state that can be used also after a crash of the machine.

    Processes that are ending keep the file system alive beyond its unmounting: then it is not to be repaired, and
    mount(8) finds the same one again.
    """
    until = time.monotonic() + _RELEASE_SECONDS
    while (is_alive := _is_alive(path)) and time.monotonic() < until:
        time.sleep(_PAUSE)
    if not is_alive:
        _repair(path)
    mount_image(path, point)


def _is_alive(path: str) -> bool:
    """Return whether a loop device has it, also without any mount that is seen here: loop(4)."""
    path = os.path.realpath(path)
    for name in glob.glob(_BACKING_FILES):
        with suppress(OSError), open(name) as file:  # one that goes away is none
            if file.read().rstrip("\n") == path:
                return True
    return False


def _repair(path: str) -> None:
    """Make it good again, by itself; what that does not mend, with the backups that it has of its own records."""
    try:
        _run("e2fsck", "-p", path, good=_REPAIRED)
    except ImageUnavailable:
        _run("e2fsck", "-f", "-y", path, good=_REPAIRED)


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
