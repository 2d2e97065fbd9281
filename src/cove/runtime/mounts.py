"""Host mounts: open each source without following links, judge it, and compare it once mounted.

bubblewrap takes paths, not descriptors. So each source is held open while the jail starts, and before anything runs
inside, what stands at each target is compared with it: whoever has swapped a path meanwhile has lost the sandbox its
start, and won nothing. All calls here block.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec

from cove.attach import Action, MoveMounts, Target
from cove.core.jail import STAGING_DIRECTORY
from cove.core.mount import REFUSED_SOURCES, check_targets, lies_in, normalise, staged
from cove.errors import FileNotFound, PermissionDenied, ValidationFailed, from_errno
from cove.linux.descriptors import on_pseudo_filesystem
from cove.linux.path_walk import Found, LinkInPath, closed_directory, find
from cove.linux.pidfd import open_fact
from cove.model import AnyMount, Mount, SandboxSpec


@dataclass(slots=True)
class OpenMounts:
    """The mounts of one start: `sources` are held until the jail stands."""

    mounts: tuple[Mount, ...] = ()
    sources: tuple[Found, ...] = ()

    @property
    def staged(self) -> dict[str, Mount]:
        """Return those that bubblewrap binds elsewhere first: core/mount."""
        return staged(self.mounts)

    @property
    def moves(self) -> list[Action]:
        """The action that brings those to their targets, once bubblewrap is done."""
        waiting = self.staged
        if not waiting:
            return []
        return [MoveMounts(STAGING_DIRECTORY, {place: mount.target for place, mount in waiting.items()})]

    def check(self, target: Target) -> None:
        """Raise unless each mount, reached without following a link, is the very source that was judged."""
        if self.mounts:
            _check_mounted(self, target)


def resolve_mounts(spec: SandboxSpec, state_directory: str) -> SandboxSpec:
    """Give each source its path without links; what is refused is refused before anything starts."""
    mounts = tuple(resolve_mount(mount, state_directory) for mount in check_targets(spec.mounts))
    return msgspec.structs.replace(spec, mounts=mounts)


def resolve_mount(mount: AnyMount, state_directory: str) -> AnyMount:
    """Give the source of a host's directory its path without links; refuse what cannot be mounted."""
    if not isinstance(mount, Mount):
        return mount
    resolved = msgspec.structs.replace(mount, source=resolve_source(mount.source))
    with open_mounts((resolved,), state_directory):
        return resolved


def resolve_source(path: str) -> str:
    """The path without links. A link is followed only where root alone can have placed it."""
    with _translated(path):
        try:
            found = find(os.path.abspath(path), follows_links=True)
        except LinkInPath as refused:
            raise PermissionDenied(
                f"mount source {path} is refused: {refused.link} is a symbolic link, which sandboxed code could have "
                f"made: name the place itself{_suggestion(path)}"
            ) from None
        found.close()
        return found.path


def _suggestion(path: str) -> str:
    try:
        return f", {os.path.realpath(path)}"
    except OSError:
        return ""  # the link was replaced meanwhile


def resolve_beneath(path: str, directory: str) -> str | None:
    """The path without links of what lies in that directory, below which none is followed; None for other paths.

    Every start opens the result without following links again, so that it stays below the directory.
    """
    source = normalise(path)
    try:
        real = resolve_source(directory)
    except FileNotFound:
        return None
    for base in (os.path.abspath(directory), real):
        if lies_in(source, base):
            with _translated(path):
                found = find(os.path.join(real, os.path.relpath(source, base)))
                found.close()
                return found.path
    return None


@contextmanager
def open_mounts(mounts: Sequence[Mount], state_directory: str) -> Iterator[OpenMounts]:
    """Hold every source, opened without following any link and judged by what it is."""
    with ExitStack() as stack:
        sources = []
        for mount in mounts:
            with _translated(mount.source):
                source = find(normalise(mount.source))
                stack.callback(source.close)
                _check_source(source, state_directory)
            sources.append(source)
        yield OpenMounts(tuple(mounts), tuple(sources))


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise from_errno(error.errno or 0, f"mount source {path}") from None
    except ValueError:
        raise ValidationFailed(f"mount source {path!r} is not the name of a file") from None
    except LinkInPath as found:
        raise PermissionDenied(f"mount source {path} is refused: {found.link} is a symbolic link") from None


def _check_source(source: Found, state_directory: str) -> None:
    """Check that it is a directory or a file that the sandbox's user can reach. As root that is another user."""
    mode = source.status.st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise PermissionDenied(f"mount source {source.path} is refused: a socket, device or pipe leads out")
    if on_pseudo_filesystem(source.descriptor) or any(_overlaps(source, path) for path in REFUSED_SOURCES):
        raise PermissionDenied(f"mount source {source.path} is refused: it would show the host's system to the sandbox")
    if _overlaps(source, state_directory):
        raise PermissionDenied(f"mount source {source.path} is refused: it holds, or lies in, Cove's own state")
    closed = closed_directory(os.path.dirname(source.path)) if os.geteuid() == 0 else None
    if closed is not None:
        raise PermissionDenied(
            f"mount source: the sandbox's user cannot enter {closed}: `chmod o+x` it or mount another place"
        )


def _overlaps(source: Found, path: str) -> bool:
    """Return whether one is the other or lies in it, by whatever names: judged by device and inode."""
    if not os.path.exists(path):
        return False
    other = find(os.path.realpath(path))
    try:
        return other.identity in (source.identity, *source.within) or source.identity in other.within
    finally:
        other.close()


def _check_mounted(opened: OpenMounts, target: Target) -> None:
    root = open_fact(target.pidfd, target.pid, "root", os.O_PATH | os.O_DIRECTORY)
    try:
        for mount, source in zip(opened.mounts, opened.sources, strict=True):
            if _identity_at(mount.target, root) != source.identity:
                raise PermissionDenied(
                    f"mount {mount.source} -> {mount.target} is refused: one of the paths was changed meanwhile"
                )
    finally:
        os.close(root)


def _identity_at(target: str, root: int) -> tuple[int, int] | None:
    try:
        found = find(target, root=root)
    except (LinkInPath, OSError):
        return None
    found.close()
    return found.identity
