"""Look at the layers of a state directory."""

import os
from pathlib import Path

from cove.layers.store import IMAGE_LAYER


def layers_of_sandboxes(home: Path) -> list[str]:
    """Return all layers but those of images: the build cache keeps some."""
    return [name for name in os.listdir(home / "layers") if not name.startswith(IMAGE_LAYER)]
