"""Detached mounts of host directories, also with other owners: open_tree(2), mount_setattr(2). For root alone."""

import ctypes
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_OPEN_TREE, _MOUNT_SETATTR = 428, 442
_OPEN_TREE_CLONE = 1
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_READ_ONLY, _NO_PRIVILEGES, _ID_MAPPED, _NO_LINKS = 0x1, 0x2 | 0x4, 0x100000, 0x200000
_TOOLS = "/usr/bin:/bin"
_SECONDS = 10.0

_library = ctypes.CDLL(None, use_errno=True)


def detach_mount(path: str) -> int:
    """Clone the mount that a directory lies on, showing that directory alone; nobody sees it until it is moved."""
    return _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | os.O_CLOEXEC)


def map_owner(mount: int, namespace: int, *, read_only: bool = False) -> None:
    """Show the files of a detached mount with the owners that a user namespace of `owner_mapping` says."""
    _set_attributes(mount, _ID_MAPPED | (_READ_ONLY if read_only else 0), namespace)


@contextmanager
def without_links(path: str) -> Iterator[int]:
    """Hold a read-only mount of a directory in which links are read, and never followed."""
    mount = detach_mount(path)
    try:
        _set_attributes(mount, _READ_ONLY | _NO_PRIVILEGES | _NO_LINKS)
        yield mount
    finally:
        os.close(mount)


def _set_attributes(mount: int, wanted: int, namespace: int = 0) -> None:
    attributes = b"".join(value.to_bytes(8, "little") for value in (wanted, 0, 0, namespace))
    _call(_MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH, attributes, len(attributes))


@contextmanager
def owner_mapping(owner: int, user: int, users: int = 1) -> Iterator[int]:
    """Hold a user namespace that maps owners of files, users and groups alike, to others. Blocks for milliseconds.

    A process has to be in it while it is made: nothing but `cat`, which says when it is there.
    """
    unshare = shutil.which("unshare", path=_TOOLS)
    if unshare is None:
        raise FileNotFoundError("unshare is not installed")
    with subprocess.Popen(
        [unshare, "--user", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": _TOOLS},
        cwd="/",
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            os.write(process.stdin.fileno(), b"\n")
            if not _read_byte(process.stdout.fileno()):
                raise PermissionError("no user namespace can be made")
            for name in ("uid_map", "gid_map"):
                _write(f"/proc/{process.pid}/{name}", f"{owner} {user} {users}")
            namespace = os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            process.kill()
            process.wait(_SECONDS)
    try:
        yield namespace
    finally:
        os.close(namespace)


def _read_byte(descriptor: int) -> bytes:
    """Read one byte; nothing where none comes in time, or ever."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return os.read(descriptor, 1) if poll.poll(_SECONDS * 1000) else b""


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: int | bytes) -> int:
    words = [ctypes.c_char_p(each) if isinstance(each, bytes) else ctypes.c_long(each) for each in arguments]
    result: int = _library.syscall(ctypes.c_long(number), *words)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
