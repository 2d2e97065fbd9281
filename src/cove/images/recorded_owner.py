"""Record whose a file of an image is where all files on disk belong to the caller: as an extended attribute.

It stays with the file when a sandbox changes it, when layers are merged and when an image is made of a sandbox. Code
inside can set it on its own files: that says whose they are in such an image, and nothing else.
"""

import errno
import os
from contextlib import suppress

ATTRIBUTE = b"user.cove.owner"
_NAME = ATTRIBUTE.decode()
_MOST_ID = 65534
_ROOT = (0, 0)

Owner = tuple[int, int]


def record_owner(descriptor: int, owner: Owner) -> None:
    """Record user and group of a new file or directory that its owner can still write; root's need no record."""
    if owner == _ROOT:
        return
    try:
        os.setxattr(descriptor, _NAME, b"%d:%d" % owner)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # a disk without attributes
            raise


def forget_owner(descriptor: int) -> None:
    """Forget what is recorded of a file that is root's."""
    with suppress(OSError):
        os.removexattr(descriptor, _NAME)


def read_owner(file: int | str) -> Owner:
    """Return what is recorded of a file, by descriptor or path; root's where nothing, or nonsense, is."""
    with suppress(OSError):
        user, colon, group = os.getxattr(file, _NAME, **_options(file)).partition(b":")
        if colon and _is_id(user) and _is_id(group):
            return int(user), int(group)
    return _ROOT


def _options(file: int | str) -> dict[str, bool]:
    return {} if isinstance(file, int) else {"follow_symlinks": False}


def _is_id(text: bytes) -> bool:
    return text.isdigit() and len(text) <= len(str(_MOST_ID)) and int(text) <= _MOST_ID
