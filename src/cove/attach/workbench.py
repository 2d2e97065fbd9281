"""Merge layers on a workbench: a file system that only the helper sees. Its parts are mounted inside afterwards."""

import posix

from cove.attach import kernel

# Directory to put layers together over: every machine has it, and the mounts are a copy of the host's of our own.
WORKBENCH = b"/proc"
UPPER, MERGED = b"upper", b"merged"


class Workbench:
    """Puts layers together at `root`; `parts` are detached mounts of what was merged, by name."""

    def __init__(self) -> None:
        self.root = -1
        self.parts: dict[bytes, int] = {}

    def close(self) -> None:
        """Close what was opened."""
        for tree in (*self.parts.values(), *([self.root] if self.root >= 0 else [])):
            posix.close(tree)

    def make(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Mount an empty file system where nobody but this process sees it: after `copy`."""
        context = kernel.call("tmpfs", kernel.syscall, kernel.FSOPEN, b"tmpfs", kernel.FSOPEN_CLOEXEC)
        try:
            kernel.call("tmpfs", kernel.syscall, kernel.FSCONFIG, context, kernel.FSCONFIG_CMD_CREATE, None, None, 0)
            self.root = kernel.call(
                "tmpfs", kernel.syscall, kernel.FSMOUNT, context, kernel.FSMOUNT_CLOEXEC, kernel.NO_PRIVILEGES
            )
        finally:
            posix.close(context)
        kernel.call(
            "tmpfs",
            kernel.syscall,
            kernel.MOVE_MOUNT,
            self.root,
            b"",
            kernel.AT_CURRENT_DIRECTORY,
            WORKBENCH,
            kernel.MOVE_MOUNT_EMPTY_SOURCE,
        )
        posix.mkdir(MERGED, 0o700, dir_fd=self.root)

    def add(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Put a layer, or the upper, on the workbench: a directory of the host, or a detached mount of it."""
        name, kind, source = fields
        path = source.decode("utf-8", "surrogateescape")
        tree = posix.dup(descriptors[0]) if kind == b"mount" else kernel.clone_source(path, descriptors[0])
        try:
            kernel.set_attributes(tree, path, kernel.NO_PRIVILEGES if name == UPPER else kernel.MOUNT_ATTRIBUTES)
            posix.mkdir(name, 0o700, dir_fd=self.root)
            kernel.call(
                path, kernel.syscall, kernel.MOVE_MOUNT, tree, b"", self.root, name, kernel.MOVE_MOUNT_EMPTY_SOURCE
            )
        finally:
            posix.close(tree)

    def merge(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Mount the layers, top first, below the upper, and clone the parts; without layers, those of the upper."""
        layers, parts = fields[0].split(b":") if fields[0] else [], fields[1:]
        top = UPPER + b"/data"
        if layers:
            posix.fchdir(self.root)
            merged = mount_overlay(layers)
            kernel.call(
                "layers",
                kernel.syscall,
                kernel.MOVE_MOUNT,
                merged,
                b"",
                self.root,
                MERGED,
                kernel.MOVE_MOUNT_EMPTY_SOURCE,
            )
            posix.close(merged)
            top = MERGED
        for part in parts:
            flags = kernel.OPEN_TREE_CLONE | kernel.OPEN_TREE_CLOEXEC
            name = top + b"/" + part
            self.parts[part] = kernel.call("layers", kernel.syscall, kernel.OPEN_TREE, self.root, name, flags)


def mount_overlay(layers: list[bytes]) -> int:
    """Mount directories of the working directory on one another: overlayfs with the rights of its user alone.

    `volatile`: what is copied up is not synchronised with the disk at once.
    """
    context = kernel.call("an overlay", kernel.syscall, kernel.FSOPEN, b"overlay", kernel.FSOPEN_CLOEXEC)
    try:
        values = {
            b"source": b"cove",
            b"lowerdir": b":".join(layers),
            b"upperdir": UPPER + b"/data",
            b"workdir": UPPER + b"/work",
        }
        for name, value in values.items():
            kernel.call(
                "an overlay", kernel.syscall, kernel.FSCONFIG, context, kernel.FSCONFIG_SET_STRING, name, value, 0
            )
        for name in (b"userxattr", b"volatile"):
            kernel.call("an overlay", kernel.syscall, kernel.FSCONFIG, context, kernel.FSCONFIG_SET_FLAG, name, None, 0)
        kernel.call("an overlay", kernel.syscall, kernel.FSCONFIG, context, kernel.FSCONFIG_CMD_CREATE, None, None, 0)
        return kernel.call(
            "an overlay", kernel.syscall, kernel.FSMOUNT, context, kernel.FSMOUNT_CLOEXEC, kernel.NO_PRIVILEGES
        )
    finally:
        posix.close(context)
