"""Merge layers of an image that has more than a sandbox can stand on. Calls block.

An overlay shows so many layers, and a sandbox adds its own to those of its image. Neighbours that are cheapest to merge
become one, so that few bytes are copied. The merged layer has its name from what it was made of: it is made once.
"""

import hashlib
from collections.abc import Callable, Sequence

from cove.layers.merge_run import merge_run
from cove.layers.store import IMAGE_LAYER, LayerStore

# With those that a sandbox adds until they are merged (core/squash), an overlay can show them all.
MOST_IMAGE_LAYERS = 30
# What stands on nothing but the image, for one command.
MOST_WHILE_BUILDING = 60


def shorten_layers(store: LayerStore, ids: Sequence[str], check: Callable[[], object]) -> tuple[str, ...]:
    """Return layers, bottom first, that show the same and are not too many. The caller holds them."""
    length = len(ids) - MOST_IMAGE_LAYERS + 1
    if length < 2:
        return tuple(ids)
    sizes = [store.size(id) or 0 for id in ids]
    at = min(range(len(ids) - length + 1), key=lambda at: sum(sizes[at : at + length]))
    run = tuple(ids[at : at + length])
    name = hashlib.sha256("\n".join(("merged", str(at == 0), *run)).encode()).hexdigest()
    merged = f"{IMAGE_LAYER}{name}"
    merge_run(store, run, merged, parent=ids[at - 1] if at else None, check=check)
    return (*ids[:at], merged, *ids[at + length :])
