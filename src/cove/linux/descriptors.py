"""Descriptors of this process: how many there may be, what a received one really is, bytes as a sealed memory file."""

import ctypes
import fcntl
import os
import resource
import socket
import stat
from enum import Enum
from io import FileIO

_PSEUDO_FILESYSTEMS = {
    0x9FA0: "proc",
    0x62656572: "sysfs",
    0x27E0EB: "cgroup",
    0x63677270: "cgroup2",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0xCAFE4A11: "bpf",
}


# Documentation/admin-guide/devices.txt: /dev/ptmx, /dev/pts/*
_MASTER_DEVICE = os.makedev(5, 2)
_SLAVE_MAJORS = range(136, 144)
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Kind(Enum):
    """The kind of file a descriptor was requested to be."""

    FILE = "a regular file"
    DIRECTORY = "a directory"
    STREAM = "a TCP socket"
    TERMINAL_MASTER = "the master of a terminal"
    TERMINAL_SLAVE = "the slave of a terminal"


class _StatFS(ctypes.Structure):
    _fields_ = (("type", ctypes.c_long), ("rest", ctypes.c_byte * 248))


_fstatfs = ctypes.CDLL(None, use_errno=True).fstatfs


def raise_descriptor_limit() -> tuple[int, int]:
    """Lift the soft limit to the hard one; returns the limits as they were."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[0] != before[1]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def is_kind(descriptor: int, kind: Kind) -> bool:
    """Return whether an untrusted descriptor is what was asked for, and not on a kernel filesystem."""
    mode = os.fstat(descriptor).st_mode
    match kind:
        case Kind.FILE:
            return stat.S_ISREG(mode) and not on_pseudo_filesystem(descriptor)
        case Kind.DIRECTORY:
            return stat.S_ISDIR(mode) and not on_pseudo_filesystem(descriptor)
        case Kind.STREAM:
            return stat.S_ISSOCK(mode) and _is_tcp(descriptor)
        case Kind.TERMINAL_MASTER:
            return stat.S_ISCHR(mode) and os.fstat(descriptor).st_rdev == _MASTER_DEVICE
        case Kind.TERMINAL_SLAVE:
            return stat.S_ISCHR(mode) and os.major(os.fstat(descriptor).st_rdev) in _SLAVE_MAJORS


def on_pseudo_filesystem(descriptor: int) -> bool:
    """Return whether its file shows the kernel's state rather than somebody's data."""
    found = _StatFS()
    if _fstatfs(descriptor, ctypes.byref(found)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found.type in _PSEUDO_FILESYSTEMS


def _is_tcp(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        return sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM


def sealed_file(data: bytes) -> FileIO:
    """Return a file with this content that nobody can change, positioned at its start."""
    file = FileIO(os.memfd_create("cove", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    try:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        file.seek(0)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        file.close()
        raise
    return file
