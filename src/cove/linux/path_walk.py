"""Open a path component by component, safe against symlink races (TOCTOU): path_resolution(7), O_NOFOLLOW."""

import errno
import os
import stat
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

_OPEN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40

Identity = tuple[int, int]


class LinkInPath(Exception):
    """A component is a link that is not followed; `link` is its path."""

    def __init__(self, link: str) -> None:
        super().__init__(link)
        self.link = link


@dataclass(frozen=True, slots=True)
class Found:
    """The file that was found, held by `descriptor` (O_PATH): no swap of names changes what that is.

    `path` has no links; `within` are the directories from the root down, by device and inode.
    """

    path: str
    descriptor: int
    status: os.stat_result
    within: frozenset[Identity]

    @property
    def identity(self) -> Identity:
        """Two paths with the same identity lead to the same file, whatever was mounted or linked where."""
        return identify(self.status)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)


def identify(status: os.stat_result) -> Identity:
    """Return device and inode, which stay the same under every name."""
    return status.st_dev, status.st_ino


def find(path: str, *, root: str | int = "/", follows_links: bool = False) -> Found:
    """Open an absolute path below that root; the caller closes it. Raises OSError, or LinkInPath.

    With `follows_links` a link is followed where root alone can have placed it: in a directory that belongs to root and
    that nobody else can write. Sandboxed code never is root, so none of these links is its own.
    """
    with ExitStack() as stack:
        return _Walk(stack, root, follows_links).go(path)


class _Walk:
    """The directories that are open, from the root down, and the names that led there."""

    def __init__(self, stack: ExitStack, root: str | int, follows_links: bool) -> None:
        self._follows_links = follows_links
        self._stack = stack
        self._names: list[str] = []
        self._opened: list[int] = []
        top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if isinstance(root, str) else os.dup(root)
        self._keep(top)

    def _keep(self, descriptor: int) -> None:
        self._stack.callback(os.close, descriptor)
        self._opened.append(descriptor)

    def go(self, path: str) -> Found:
        pending = deque(path.split("/"))
        links = 0
        while pending:
            name = pending.popleft()
            if name == "..":
                del self._names[-1:]
                del self._opened[max(1, len(self._names) + 1) :]
            elif name not in ("", "."):
                link = self._enter(name)
                if link is not None:
                    links += 1
                    pending.extendleft(reversed(self._target(link, name, links)))
        *above, last = self._opened
        within = frozenset(identify(os.fstat(each)) for each in above)
        return Found("/" + "/".join(self._names), os.dup(last), os.fstat(last), within)

    def _enter(self, name: str) -> int | None:
        """Go down; the descriptor of a link is given back."""
        found = os.open(name, _OPEN, dir_fd=self._opened[-1])
        if stat.S_ISLNK(os.fstat(found).st_mode):
            self._stack.callback(os.close, found)
            return found
        self._keep(found)
        self._names.append(name)
        return None

    def _target(self, link: int, name: str, links: int) -> list[str]:
        if not self._follows_links or not _is_roots_alone(self._opened[-1]):
            raise LinkInPath("/" + "/".join((*self._names, name)))
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink("", dir_fd=link)
        if target.startswith("/"):
            self._names.clear()
            del self._opened[1:]
        return target.split("/")


def _is_roots_alone(directory: int) -> bool:
    status = os.fstat(directory)
    return status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def closed_directory(path: str) -> str | None:
    """Return the nearest directory, from this one up to the root, that others cannot enter; None if there is none."""
    while os.stat(path).st_mode & stat.S_IXOTH:
        if path == "/":
            return None
        path = os.path.dirname(path)
    return path


def admit_group(path: Path, group: int | None) -> None:
    """Let the group through to what is below, and nobody else but the owner; without a group, nobody else."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if group is not None:
            os.fchown(directory, -1, group)
        os.fchmod(directory, stat.S_IRWXU if group is None else stat.S_IRWXU | stat.S_IXGRP)
    finally:
        os.close(directory)
