"""Watch a tree for changes: by events as they happen, or by fingerprints compared from time to time."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from cove.agent.protocol import ProtocolError
from cove.core.command import encode_text
from cove.core.file_path import decode_path
from cove.errors import ValidationFailed
from cove.model import Changes, ChangesStatus, FileEvent
from cove.runtime.errand import Errands
from cove.runtime.file_answers import Events

_MOST_PATTERNS = 1000
_DIGEST_BYTES = 32


def encode_filter(recursive: bool, include: Sequence[str], exclude: Sequence[str]) -> list[bytes]:
    """Return the arguments of the errands that look at trees."""
    patterns = []
    for name, given in (("include", include), ("exclude", exclude)):
        if isinstance(given, str) or len(given) > _MOST_PATTERNS:
            raise ValidationFailed(f"{name} must be a list of at most {_MOST_PATTERNS} patterns")
        patterns += [encode_text(each, name) for each in given]
    if sum(map(len, patterns)) > 1 << 16:
        raise ValidationFailed("the patterns are longer than 64 KiB together")
    return [b"1" if recursive else b"0", b"%d" % len(include), *patterns]


async def watch(errands: Errands, path: bytes, filter: list[bytes]) -> AsyncGenerator[FileEvent, None]:
    """Events as they happen; the first says that nothing is missed from there on."""
    events = errands.stream(
        "watch", path, *filter, subject=decode_path(path), decode=Events(path).decode, most_bytes=None
    )
    async with aclosing(events) as batches:
        async for batch in batches:
            for event in batch:
                yield event


async def check_changes(errands: Errands, path: bytes, filter: list[bytes], since: str | None) -> Changes:
    """Compare a tree to a version of it: a digest of what was looked at, and one of what was found."""
    found: list[bytes] = []
    async with aclosing(errands.stream("digest", path, *filter, subject=decode_path(path), decode=_digest)) as batches:
        async for batch in batches:
            found += batch
    if len(found) != 1:
        raise ValidationFailed(f"{decode_path(path)}: the process inside was disturbed: ask again")
    scope = hashlib.blake2b(b"\0".join([path, *filter]), digest_size=8).hexdigest()
    version = f"{scope}-{found[0].decode()}"
    if since is None or since == version:
        return Changes(status=ChangesStatus.UNCHANGED, version=version)
    is_ours = since.startswith(f"{scope}-") and len(since) == len(version)
    return Changes(status=ChangesStatus.CHANGED if is_ours else ChangesStatus.RESYNC, version=version)


def _digest(message: list[bytes]) -> bytes:
    kind, digest = message
    if kind != b"digest" or len(digest) != _DIGEST_BYTES or not digest.isalnum():
        raise ProtocolError("an unexpected digest")
    return digest
