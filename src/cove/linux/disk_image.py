"""Disk images: file systems of a fixed size in a sparse file, which root can mount: loop(4), mount(8)."""

import os
import shutil
import subprocess

_TOOLS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_SECONDS = 60
# A file system needs this much for itself; ext4 also has inodes of its own.
_LEAST_BYTES = 2 << 20
_OWN_INODES = 16
# e2fsck(8): nothing to do, or done.
_REPAIRED = (0, 1)


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
