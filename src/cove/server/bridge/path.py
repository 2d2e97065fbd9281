"""Validate paths of the bridge protocol: below /workspace by their text, whatever links make of them inside."""

from typing import Final

from cove.server.bridge.protocol import invalid
from cove.wire.coding import unquote_text

WORKSPACE: Final = "/workspace"


def file_path(quoted: str) -> str:
    """Return the file that a URL names; it is decoded completely."""
    if not quoted.strip("/"):
        raise invalid("file path must not be empty")
    path = normalise("/" + unquote_text(quoted))
    if not is_inside(path):
        raise invalid("path must resolve to a location within /workspace", 403)
    if "\0" in path:
        raise invalid("path must not contain a NUL character")
    return path


def working_directory(cwd: object) -> str | None:
    """Return where a command is to run; None for the usual place."""
    if not isinstance(cwd, str) or not cwd:
        return None
    path = normalise(cwd if cwd.startswith("/") else f"{WORKSPACE}/{cwd}")
    if not is_inside(path):
        raise invalid("cwd must resolve to a location within /workspace", 403)
    return path


def normalise(path: str) -> str:
    """Return an absolute path without `.`, `..` and doubled slashes."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def is_inside(path: str) -> bool:
    """Return whether a normalised path is the workspace or below it."""
    return path == WORKSPACE or path.startswith(f"{WORKSPACE}/")
