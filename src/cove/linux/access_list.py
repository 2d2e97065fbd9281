"""Admit one more user to a file of ours by its access control list: acl(5)."""

import os
import struct
from pathlib import Path

_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF
_ALL = 0o7


def admit_user(path: Path | str, user: int, rights: int) -> None:
    """Give a user these rights, and nobody else but the owner any; the owner's stay as they are."""
    owner = os.stat(path).st_mode >> 6 & _ALL
    entries = [(_OWNER, owner, _NOBODY), (_USER, rights, user), (_GROUP, 0, _NOBODY)]
    entries += [(_MASK, rights, _NOBODY), (_OTHERS, 0, _NOBODY)]
    os.setxattr(path, "system.posix_acl_access", _VERSION + b"".join(_ENTRY.pack(*each) for each in entries))
