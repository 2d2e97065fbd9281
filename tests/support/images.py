"""Images in a state directory, loaded by hand."""

from pathlib import Path

from cove.images.store import ImageStore
from cove.layers.store import LayerStore


def open_store(home: Path) -> ImageStore:
    layers = LayerStore(home)
    (home / "sandboxes").mkdir(exist_ok=True)
    layers.open()
    store = ImageStore(home, layers)
    store.open()
    return store
