"""Move archives of images through files without a name: nothing of them is left, however it ends. Blocks."""

import os
import tempfile
from pathlib import Path
from typing import BinaryIO, cast

from cove.images.save import Progress, save_image
from cove.images.store import ImageStore
from cove.layers.places import write_beside


def new_file(store: ImageStore) -> BinaryIO:
    """Return an empty file on the disk of the state directory."""
    return cast("BinaryIO", tempfile.TemporaryFile(prefix="cove-image-", dir=store.path))


def save_to(store: ImageStore, name: str, path: Path, progress: Progress) -> None:
    """Save an image to a path, which has it whole or is as it was."""
    beside = write_beside(path)
    with beside:
        save_image(store.find(name), store.layers, beside.descriptor, progress)


def save_to_file(store: ImageStore, name: str, progress: Progress) -> int:
    """Save an image to a file without a name; returns its descriptor."""
    with new_file(store) as file:
        save_image(store.find(name), store.layers, file.fileno(), progress)
        descriptor = os.dup(file.fileno())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
