"""Translate errors of the kernel."""

import errno
import os
from collections.abc import Mapping

from cove.errors.execution import ServiceNotResponding
from cove.errors.families import CoveError
from cove.errors.files import FileExists, FileNotFound, FileTooLarge, IsDirectory, NoSpace, NotDirectory
from cove.errors.refused import PermissionDenied, ValidationFailed

_BY_ERRNO: Mapping[int, type[CoveError]] = {
    errno.ENOENT: FileNotFound,
    errno.EEXIST: FileExists,
    errno.ENOTEMPTY: FileExists,
    errno.EISDIR: IsDirectory,
    errno.ENOTDIR: NotDirectory,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EROFS: PermissionDenied,
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EFBIG: FileTooLarge,
    errno.ECONNREFUSED: ServiceNotResponding,
    errno.ECONNRESET: ServiceNotResponding,
    errno.EADDRNOTAVAIL: ServiceNotResponding,
    errno.EAFNOSUPPORT: ServiceNotResponding,
    errno.ENETUNREACH: ServiceNotResponding,
    errno.ETIMEDOUT: ServiceNotResponding,
}


def from_errno(number: int, subject: str) -> CoveError:
    """Translate an errno into the error of a caller: the one place that does."""
    kind = _BY_ERRNO.get(number, ValidationFailed)
    return kind(f"{subject}: {os.strerror(number)}", errno=errno.errorcode.get(number, str(number)))
