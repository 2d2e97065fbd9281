"""Find the state directory (COVE_HOME)."""

import os
from pathlib import Path

from cove.errors import SandboxUnavailable


def default_home() -> Path:
    """$COVE_HOME, or the usual place for this user."""
    if configured := os.environ.get("COVE_HOME"):
        return Path(configured).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/cove")
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    if not os.path.isabs(data):
        raise SandboxUnavailable("your home directory is not known: set HOME, or COVE_HOME to a directory of your own")
    return Path(data) / "cove"
