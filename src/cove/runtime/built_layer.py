"""Make a layer of what the sandbox of a build has written. Blocks."""

import os
from contextlib import suppress
from pathlib import Path

from cove.layers.place import ROOT_FILES
from cove.layers.record import ROOT, Owners
from cove.runtime.layers import SandboxLayers
from cove.runtime.tree_copy import copy_tree

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def take_upper(layers: SandboxLayers, building: Path) -> Owners:
    """Move the files of a sandbox that has ended into a new layer; returns who owns them."""
    place = layers.place
    assert place.stack is not None
    source, target = place.upper_path(place.stack.upper) / "data", building / "data"
    if place.on_disk_image:
        copy_tree(str(source), str(target), "cp", is_still=True)
    else:
        source.rename(target)
    _leave_out_network(target / ROOT)
    return Owners(os.geteuid() if place.user_id is None else place.user_id, place.users)


def _leave_out_network(root: Path) -> None:
    """Remove the files that tell about the network of this one sandbox. The sandbox may have put links there."""
    try:
        etc = os.open(root / "etc", _OPEN)
    except OSError:
        return  # it has no such directory any more
    try:
        for name in ROOT_FILES:
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(name, dir_fd=etc)
    finally:
        os.close(etc)
