"""A small image with no bash and no libc: what Debian's busybox-static is."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from support.image_files import Item, directory, make_layer, make_oci, symlink

BUSYBOX = Path("/bin/busybox")
PROGRAMS = ("cat", "chown", "cp", "env", "head", "id", "ls", "mkdir", "readlink", "rm", "sh", "sleep", "touch", "tty")
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/var/web:/bin/sh\n"

GROUP = b"root:x:0:\nweb:x:34:\nstaff:x:50:web,other\n"

needs_busybox = pytest.mark.skipif(not BUSYBOX.exists(), reason="needs Debian's busybox-static")


def busybox_items() -> list[Item]:
    return [
        *(directory(name) for name in ("bin", "etc", "usr", "usr/bin", "var", "root")),
        replace(directory("var/web"), uid=33, gid=34),
        Item("bin/busybox", BUSYBOX.read_bytes(), mode=0o755),
        *(symlink(f"bin/{name}", "busybox") for name in PROGRAMS),
        Item("etc/passwd", PASSWD),
        Item("etc/group", GROUP),
    ]


def write_busybox(path: Path, *more: Item, settings: Mapping[str, object] | None = None) -> str:
    """Write an archive of the image, with more members in a layer on top; return its path."""
    layers = [make_layer(busybox_items()), *([make_layer(more)] if more else [])]
    return str(make_oci(layers, settings).write(path))
