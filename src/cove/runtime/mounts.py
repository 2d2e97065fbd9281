"""Host directories that a sandbox sees: each is looked at once, before anything starts."""

import os
import stat

import msgspec

from cove.core.jail import check_mount
from cove.errors import PermissionDenied, ValidationFailed, from_errno
from cove.linux.passage import closed_directory
from cove.model import Mount, SandboxSpec


def resolve_mounts(spec: SandboxSpec, state_directory: str) -> SandboxSpec:
    """Each source is resolved once, as the caller; what is refused is refused before anything starts."""
    resolved = []
    for mount in spec.mounts:
        try:
            source = os.path.realpath(mount.source, strict=True)
            _check_source(source)
        except OSError as error:
            raise from_errno(error.errno or 0, f"mount source {mount.source}") from None
        except ValueError:
            raise ValidationFailed(f"mount source {mount.source!r} is not the name of a file") from None
        resolved.append(
            check_mount(
                Mount(source=source, target=mount.target, read_only=mount.read_only), state_directory=state_directory
            )
        )
    return msgspec.structs.replace(spec, mounts=tuple(resolved))


def _check_source(path: str) -> None:
    """What is mounted is a directory or a file that the sandbox's user can reach. As root that is another user."""
    mode = os.stat(path).st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise PermissionDenied(f"mount source {path} is refused: a socket, device or pipe leads out of the sandbox")
    closed = closed_directory(os.path.dirname(path)) if os.geteuid() == 0 else None
    if closed is not None:
        raise PermissionDenied(
            f"mount source: the sandbox's user cannot enter {closed}: `chmod o+x` it or mount another place"
        )
