"""What changes in a tree: told as it happens, or asked about from time to time."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from cove.core.command import encode_text
from cove.core.file_path import below, decode_path
from cove.errors import ValidationFailed
from cove.model import Changes, ChangesStatus, FileEvent, FileEventKind
from cove.runtime.errand import Errands

_MOST_PATTERNS = 1000
_KINDS = {kind.value.encode(): kind for kind in FileEventKind}


def encode_filter(recursive: bool, include: Sequence[str], exclude: Sequence[str]) -> list[bytes]:
    """The arguments of the errands that look at trees."""
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
    top = path.rstrip(b"/") or b"/"
    subject = decode_path(path)
    async with aclosing(errands.stream("watch", path, *filter, subject=subject)) as messages:
        async for message in messages:
            match message:
                case [b"watching", directory]:
                    top = directory
                    yield FileEvent(kind=FileEventKind.WATCHING, path=subject, is_directory=directory == path)
                case [b"event", kind, relative, is_directory, old] if kind in _KINDS:
                    yield FileEvent(
                        kind=_KINDS[kind],
                        path=decode_path(below(top, relative) if relative else top),
                        is_directory=is_directory == b"1",
                        old_path=decode_path(below(top, old)) if old else None,
                    )
                case _:
                    raise ValidationFailed(f"{subject}: the watcher inside was disturbed: watch again")


async def check_changes(errands: Errands, path: bytes, filter: list[bytes], since: str | None) -> Changes:
    """Compare a tree to a version of it: a digest of what was looked at, and one of what was found."""
    found: list[bytes] = []
    await errands.run(
        "digest", path, *filter, subject=decode_path(path), take=lambda message: found.append(message[-1])
    )
    if len(found) != 1 or len(found[0]) != 32 or not found[0].isalnum():
        raise ValidationFailed(f"{decode_path(path)}: the process inside was disturbed: ask again")
    scope = hashlib.blake2b(b"\0".join([path, *filter]), digest_size=8).hexdigest()
    version = f"{scope}-{found[0].decode()}"
    if since is None or since == version:
        return Changes(status=ChangesStatus.UNCHANGED, version=version)
    is_ours = since.startswith(f"{scope}-") and len(since) == len(version)
    return Changes(status=ChangesStatus.CHANGED if is_ours else ChangesStatus.RESYNC, version=version)
