"""Interface of the files inside a sandbox."""

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from os import PathLike

from cove.model import Changes, FileEvent, FileInfo, SearchMatch
from cove.model.file import MOST_DOWNLOAD_BYTES


class Files(ABC):
    """The sandbox's files, used with the sandbox's own rights.

    Paths are those inside. A relative one starts at the sandbox's working directory or, through a session, at the
    session's. A name that is not UTF-8 comes and goes with surrogate escapes, as `os.fsdecode` makes them. With `user`,
    a name or number of the sandbox's, a call has that user's rights, and what it makes is that user's; UserUnavailable
    where the sandbox has no other user.
    """

    @abstractmethod
    async def read(self, path: str, *, user: str | None = None) -> bytes:
        """Read a regular file."""

    @abstractmethod
    async def read_text(self, path: str, encoding: str = "utf-8", *, user: str | None = None) -> str:
        """Read a text file; raises ValidationFailed when it is not in that encoding."""

    @abstractmethod
    def read_stream(
        self, path: str, *, start: int = 0, end: int | None = None, user: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Stream the bytes from `start` up to, not including, `end`; what is appended meanwhile is left out."""

    @abstractmethod
    async def write(self, path: str, data: bytes | str, *, mode: int | None = None, user: str | None = None) -> None:
        """Replace a file's content at once: readers see the old or the new one. Missing directories are made.

        What the code inside could not write raises PermissionDenied. The file keeps its owner, extended attributes and,
        unless `mode` is given, its mode. A link is followed. A file with several names, or whose directory does not let
        it be replaced, is written in place. Text is written as UTF-8.
        """

    @abstractmethod
    async def write_stream(
        self, path: str, chunks: AsyncIterable[bytes], *, mode: int | None = None, user: str | None = None
    ) -> int:
        """Write a file from pieces; returns how many bytes there were. If a piece fails, the old file stays."""

    @abstractmethod
    async def append(self, path: str, data: bytes | str, *, user: str | None = None) -> None:
        """Add to the end of a file, which is made if it is missing."""

    @abstractmethod
    async def mkdir(self, path: str, *, parents: bool = True, user: str | None = None) -> None:
        """Make a directory. With `parents` those above it too, and one that is there already is fine."""

    @abstractmethod
    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Remove a file or a link, not what it points to; a directory raises IsDirectory."""

    @abstractmethod
    async def remove_tree(self, path: str, *, user: str | None = None) -> None:
        """Remove a directory and all that is in it, whatever its modes; no link is followed."""

    @abstractmethod
    async def rename(self, old: str, new: str, *, user: str | None = None) -> None:
        """Give a file or directory another name on the same file system, as rename(2): a file there is replaced."""

    @abstractmethod
    async def move(self, source: str, destination: str, *, user: str | None = None) -> None:
        """Move as `mv`: into `destination` if that is a directory, also to another file system."""

    @abstractmethod
    async def copy(self, source: str, destination: str, *, user: str | None = None) -> None:
        """Copy as `cp -r`: a file or a directory with all that is in it, into `destination` if that is a directory.

        Modes and times are kept, links are copied as links; a file in the way is replaced.
        """

    @abstractmethod
    async def list(
        self, path: str = ".", *, recursive: bool = False, hidden: bool = True, user: str | None = None
    ) -> builtins.list[FileInfo]:
        """List a directory, sorted by path; without `hidden` no names that begin with a dot."""

    @abstractmethod
    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Describe the entry under that name; a link is not followed."""

    @abstractmethod
    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Return whether there is anything; a link counts when what it points to exists."""

    @abstractmethod
    async def chmod(self, path: str, mode: int, *, user: str | None = None) -> None:
        """Change the permission bits of a file; a link is followed."""

    @abstractmethod
    async def glob(self, pattern: str, *, root: str = ".", user: str | None = None) -> builtins.list[str]:
        """Find the paths below `root`, relative and sorted, that match: `*`, `?`, `[a-z]`, and `**` for any depth.

        As in a shell, names that begin with a dot must be asked for by one. A pattern with `..` is refused.
        """

    @abstractmethod
    async def search(
        self, pattern: str, path: str = ".", *, glob: str | None = None, limit: int = 1000, user: str | None = None
    ) -> builtins.list[SearchMatch]:
        """Search text files for lines that match a regular expression, up to `limit`; `glob` chooses the files.

        Binary files (with a NUL byte), files over 64 MiB, and `.git` are left out. After 60 s it is LimitExceeded.
        """

    @abstractmethod
    async def replace(self, path: str, old: str, new: str, *, count: int | None = 1, user: str | None = None) -> int:
        """Put `new` where exactly `old` stands; returns how often. Raises ValidationFailed if it is absent.

        It must stand there exactly `count` times, once by default; with None any number will do. Beyond 1 GiB, before
        or afterwards, it is FileTooLarge.
        """

    @abstractmethod
    async def upload(self, local: str | PathLike[str], path: str, *, user: str | None = None) -> None:
        """Copy a file, or what is in a directory, from this program's machine to `path`.

        A directory is merged into one that is there. If anything is refused or fails, the old tree stays.
        """

    @abstractmethod
    async def download(
        self, path: str, local: str | PathLike[str], *, max_bytes: int = MOST_DOWNLOAD_BYTES, user: str | None = None
    ) -> None:
        """Copy a file, or what is in a directory, from the sandbox to `local` on this program's machine.

        What comes is not trusted: links that lead out of it are refused, and no set-user-id bit survives. More than
        `max_bytes`, 16 GiB by default, raises FileTooLarge; holes count, and stay holes.
        """

    @abstractmethod
    def read_archive(self, path: str = ".", *, user: str | None = None) -> AsyncGenerator[bytes, None]:
        """Stream a directory as an uncompressed tar archive, with names relative to it."""

    @abstractmethod
    async def write_archive(self, path: str, chunks: AsyncIterable[bytes], *, user: str | None = None) -> None:
        """Unpack a tar stream into a directory, as `upload` does.

        Absolute names, `..`, links that lead out and devices are refused; if anything fails, the old tree stays.
        """

    @abstractmethod
    def watch(
        self,
        path: str = ".",
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (".git", "node_modules"),
        user: str | None = None,
    ) -> AsyncGenerator[FileEvent, None]:
        """Watch a directory tree, or a file (inotify). First comes `watching`: from then on nothing is missed.

        Patterns match a name or a path below `path`. It ends when `path` itself is removed or moved away.
        """

    @abstractmethod
    async def check_changes(
        self,
        path: str = ".",
        *,
        since: str | None = None,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (".git", "node_modules"),
        user: str | None = None,
    ) -> Changes:
        """Compare a tree with that version. Without `since`: `unchanged`, and a version to begin with."""
