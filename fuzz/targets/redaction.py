"""Secrets in answers of hosts: none is passed on in any pieces, and nothing else is changed."""

import re
from collections.abc import Iterator

from cove.core.redaction import Redactor
from fuzz.splitting import cut


def check(data: bytes) -> None:
    """Up to three secrets, with NULs between them and the answer."""
    *secrets, answer = data.split(b"\0", 3)
    redactor = Redactor(secrets)
    shown = b"".join([redactor.feed(piece) for piece in cut(answer)]) + redactor.end()
    assert len(shown) == len(answer), "the framing would be wrong"
    assert shown == Redactor(secrets).whole(answer), "the pieces of an answer have shown something"
    for secret in secrets:
        if len(secret) >= 4:
            assert secret not in shown or set(secret) <= set(b"*") or _is_made_of_masks(secret, shown, answer)


def _is_made_of_masks(secret: bytes, shown: bytes, answer: bytes) -> bool:
    """Asterisks of a mask may complete what looks like a secret, but was not in the answer there."""
    places = (found.start() for found in re.finditer(b"(?=%b)" % re.escape(secret), shown))
    return all(shown[at : at + len(secret)] != answer[at : at + len(secret)] for at in places)


def seeds() -> Iterator[bytes]:
    """Secrets that overlap, repeat and are cut."""
    yield b"secret\0secretive\0ret\0a secret, a secretive one, secresecret"
    yield b"aaaa\0aaaab\0baaaa\0aaaaaaabaaaa"
    yield b"abcd\0cdef\0\0abcdef abcd cdef"
