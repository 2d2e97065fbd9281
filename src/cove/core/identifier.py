"""Validate ids, and make new ones."""

import re
import secrets

from cove.errors import ValidationFailed

SANDBOX_ID = r"[a-z0-9](?:[a-z0-9-]{0,126}[a-z0-9])?"
_THING = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"

KEY_LENGTH = 12


def new_identifier(length: int = KEY_LENGTH) -> str:
    """Return a random id that every rule below accepts; 12 characters carry 60 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def check_sandbox_id(value: str) -> str:
    """Return the id, or raise ValidationFailed."""
    if not isinstance(value, str) or not re.fullmatch(SANDBOX_ID, value):
        raise ValidationFailed(
            f"sandbox id {value!r} is not allowed: use 1-128 of a-z, 0-9 and inner hyphens", id=value
        )
    return value


def check_id(noun: str, value: str) -> str:
    """Return the id of a session, process, terminal or context, or raise ValidationFailed."""
    if not isinstance(value, str) or not _THING.fullmatch(value) or value == "." or ".." in value:
        raise ValidationFailed(
            f"{noun} id {value!r} is not allowed: use 1-128 of A-Z a-z 0-9 . _ - without '..'", id=value
        )
    return value
