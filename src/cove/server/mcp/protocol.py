"""Names that both halves of `/mcp` share: paths, headers, the label of sandboxes that belong to a session."""

from typing import Final

PATH: Final = "/mcp"
BELOW: Final = "/mcp/"
SESSION_HEADER: Final = b"mcp-session-id"
# A sandbox with this label was made for one session; the value is how many seconds it may be unused.
IDLE_LABEL: Final = "cove-mcp-idle"


def serves(path: str) -> bool:
    """Return whether a path belongs to the protocol."""
    return path == PATH or path.startswith(BELOW)
