"""Recipes of Cove's own: directories with a Dockerfile, which stands on the image that its argument BASE names."""

from pathlib import Path

from cove.errors import ValidationFailed

DEFAULT_BASE = "debian:bookworm"
BASE = "BASE"
_PRESETS = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.parent.name for path in _PRESETS.glob("*/Dockerfile"))


def find_preset(name: str) -> str:
    """Return the directory of a recipe. Raises ValidationFailed."""
    if name not in preset_names():
        raise ValidationFailed(f"there is no preset {name!r}: take one of {', '.join(preset_names())}")
    return str(_PRESETS / name)
