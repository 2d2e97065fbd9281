"""Look into an image as a sandbox on it would: /workspace, /home/user and /tmp are parts of their own in a layer."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cove.images.merged_view import OPEN_DIRECTORY, MergedView, Parts
from cove.images.parts import PLACES
from cove.layers.record import ROOT
from cove.layers.store import LayerStore


class ImageView(MergedView):
    """Layers by descriptors of their `data` directories, the highest first."""

    def place(self, parts: Parts) -> Parts:
        """Return where in a layer's data a path of the image is."""
        for part, inside in PLACES.items():
            if parts[: len(inside)] == inside:
                return (part.encode(), *parts[len(inside) :])
        return (os.fsencode(ROOT), *parts)


@contextmanager
def opened_image(ids: Sequence[str], layers: LayerStore) -> Iterator[ImageView]:
    """Open an image by its layers, the lowest first."""
    held: list[int] = []
    try:
        held += [os.open(layers.data(id), OPEN_DIRECTORY) for id in reversed(ids)]
        yield ImageView(tuple(held), [layers.read(id).root for id in reversed(ids)])
    finally:
        for fd in held:
            os.close(fd)
