"""Layers as tar archives: whiteouts, opaque directories, pipes and attributes besides what `archive.tar` has.

They are written as GNU tar does it: a whiteout is the character device 0:0, an attribute a record `SCHILY.xattr.…`. Of
the attributes that overlayfs keeps in `user.overlay.`, only the one of opaque directories is written, and taken.
"""

from collections.abc import Mapping
from typing import Final

from cove.archive import tar
from cove.archive.tar import Member, Refused, shown

WHITEOUT, FIFO = b"3", b"6"
PARTS: Final = frozenset((b"home", b"root", b"tmp", b"workspace"))
MOST_APPARENT_BYTES: Final = 16 << 40
_ATTRIBUTE: Final = b"SCHILY.xattr."
_USER: Final = b"user."
_OVERLAY: Final = b"user.overlay."
_OPAQUE: Final = b"user.overlay.opaque"
_MODES: Final = 0o1777


def is_kept(name: bytes, value: bytes, is_directory: bool) -> bool:
    """Return whether an attribute belongs to a layer."""
    if name.startswith(_OVERLAY):
        return is_directory and name == _OPAQUE and value == b"y"
    return name.startswith(_USER)


def records_of(attributes: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the records of a member with these attributes, in order."""
    return {_ATTRIBUTE + name: attributes[name] for name in sorted(attributes)}


def attributes_of(member: Member) -> dict[bytes, bytes]:
    """Return the attributes of a member that was read."""
    return {key[len(_ATTRIBUTE) :]: value for key, value in member.records.items()}


def decode_member(block: bytes, kind: bytes, size: int, extended: dict[bytes, bytes], lenient: bool) -> Member:
    """Make a member of a layer, checked: nothing in it can lead out, be a device, or give rights."""
    special = kind if kind in (WHITEOUT, FIFO) else None
    if special is not None:
        _check_special(block, kind, size)
        kind, size = tar.FILE, 0
    member = tar.make_member(block, kind, size, extended, lenient)
    if special is not None and (member.kind != tar.FILE or member.stored is not None or member.size):
        raise Refused(f"a whiteout or pipe that has content: {_path(member)}")
    member.kind = special or member.kind
    member.mode = tar.number(block[100:108]) & _MODES
    _check_place(member)
    member.records = _attributes(member, extended)
    return member


def _check_special(block: bytes, kind: bytes, size: int) -> None:
    numbers = [tar.number(field or b"\0") for field in (block[329:337], block[337:345])]
    if kind == WHITEOUT and any(numbers):
        raise Refused(f"a device: {numbers[0]}:{numbers[1]}")
    if size:
        raise Refused("a whiteout or pipe that has content")


def _check_place(member: Member) -> None:
    if not member.parts and member.kind == tar.DIRECTORY:
        return
    if member.parts[0] not in PARTS or (len(member.parts) == 1 and member.kind != tar.DIRECTORY):
        raise Refused(f"what is no part of a layer: {_path(member)}")
    if member.size > MOST_APPARENT_BYTES:
        raise Refused(f"a file of {member.size} bytes: {_path(member)}")


def _attributes(member: Member, extended: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    found = {key: value for key, value in extended.items() if key.startswith(_ATTRIBUTE)}
    for key, value in found.items():
        name = key[len(_ATTRIBUTE) :]
        if b"\0" in name or not is_kept(name, value, member.kind == tar.DIRECTORY):
            raise Refused(f"an attribute that no layer may bring: {shown(name)}")
        if member.kind not in (tar.FILE, tar.DIRECTORY):
            raise Refused(f"an attribute of what can have none: {shown(name)}")
    return found


def _path(member: Member) -> str:
    return shown(b"/".join(member.parts))
