"""Name the command that adds an optional package to the environment Cove is installed in."""

import sys
from pathlib import Path


def install_command(extra: str, environment: Path | None = None) -> str:
    """Return it: for pipx, for uv, or for pip. Each leaves the Cove that is there as it is."""
    place = Path(sys.prefix) if environment is None else environment
    wanted = f"'cove[{extra}]'"
    if (place / "pipx_metadata.json").exists():
        return f"pipx runpip cove install {wanted}"
    if (place / "uv-receipt.toml").exists() or _is_made_by_uv(place):
        return f"uv pip install --python {place} {wanted}"
    return f"pip install {wanted}"


def _is_made_by_uv(place: Path) -> bool:
    """Such an environment has no pip: uv names itself in the file that makes it one."""
    try:
        return any(line.startswith("uv =") for line in (place / "pyvenv.cfg").read_text().splitlines())
    except OSError:
        return False
