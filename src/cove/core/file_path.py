"""Normalise paths inside the sandbox: from what a caller gives to what the agent gets."""

from cove.core.command import encode_text
from cove.errors import ValidationFailed

# limits.h: PATH_MAX, with the final NUL.
MOST_PATH_BYTES = 4095


def resolve_path(base: str, path: str) -> bytes:
    """Normalise a path: absolute, no doubled slashes or single dots; `..` is left to the kernel and its links."""
    encoded = encode_text(path, "path")
    if not encoded:
        raise ValidationFailed("path is empty: `.` is the working directory")
    if not encoded.startswith(b"/"):
        encoded = encode_text(base, "cwd") + b"/" + encoded
    simple = b"/" + b"/".join(part for part in encoded.split(b"/") if part not in (b"", b"."))
    if encoded.endswith(b"/") and simple != b"/":
        simple += b"/"
    if len(simple) > MOST_PATH_BYTES:
        raise ValidationFailed(f"path is longer than {MOST_PATH_BYTES} bytes, more than Linux takes")
    return simple


def collapse(path: str) -> str:
    """Normalise an absolute path by its text alone: no doubled slashes, `.` or `..`, whatever links make of them."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def decode_path(path: bytes) -> str:
    """Return a path as callers see it."""
    return path.decode("utf-8", "surrogateescape")


def name_of(path: bytes) -> bytes:
    """Return the last name of a path; `/` for the root."""
    return path.rstrip(b"/").rpartition(b"/")[2] or b"/"


def below(directory: bytes, name: bytes) -> bytes:
    """Return a name in a directory."""
    return directory.rstrip(b"/") + b"/" + name
