"""The blocking classes. Made from cove.api by scripts/make_blocking.py; change that, then run it."""

import builtins
import re
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from datetime import datetime
from os import PathLike
from typing import Literal, Self, TypeVar, Unpack

from cove import api
from cove.blocking.portal import Portal, get_portal
from cove.model import (
    AnyMount,
    ApiKeyInfo,
    ApiKeyMade,
    BackupInfo,
    BuildEvent,
    Changes,
    CodeContextInfo,
    CodeEvent,
    DestroyedSandbox,
    ExecResult,
    Execution,
    ExportInfo,
    ExposedPort,
    FileChange,
    FileEvent,
    FileInfo,
    GitBranch,
    GitClone,
    GitHead,
    GitStatus,
    IdleAction,
    ImageInfo,
    JournalEvent,
    Limits,
    LogEvent,
    LogMatch,
    Network,
    NetworkEvent,
    NetworkPolicy,
    Outcome,
    ProcessExit,
    ProcessStatus,
    Quota,
    ResetReport,
    SandboxInfo,
    SandboxSpec,
    SandboxStatus,
    SearchMatch,
    SessionInfo,
    SnapshotInfo,
    SpecFields,
    TaskResult,
    TerminalEvent,
    TerminalInfo,
    TransferProgress,
    Usage,
    VolumeInfo,
)
from cove.model.file import MOST_DOWNLOAD_BYTES
from cove.model.fleet import Item, Value
from cove.model.spec import HasId

T = TypeVar("T", bound=api.Destroyable)


async def _opened(opening: "api.AwaitableContext[T]") -> T:
    return await opening


async def _destroy(opened: api.Destroyable) -> None:
    await opened.destroy()


async def _delete(made: api.AsyncVolume) -> None:
    await made.delete()


def _in_thread(
    task: Callable[["Sandbox", Item], Value], portal: Portal
) -> Callable[[api.AsyncSandbox, Item], Awaitable[Value]]:
    async def run(sandbox: api.AsyncSandbox, item: Item) -> Value:
        return await portal.run(lambda: task(Sandbox(sandbox, portal), item), sandbox.destroy)

    return run


def _fed(items: Iterable[Item], portal: Portal) -> AsyncIterable[Item] | Iterable[Item]:
    return items if isinstance(items, Sized) else portal.feed(items)


def _inner(context: "CodeContext | str | None") -> api.CodeContext | str | None:
    return context._inner if isinstance(context, CodeContext) else context


class Process:
    """A process with an id, a log and an end. Its attributes are as of the last `refresh`."""

    def __init__(self, inner: api.Process, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def pid(self) -> int:
        return self._inner.pid

    @property
    def command(self) -> str | Sequence[str]:
        return self._inner.command

    @property
    def session_id(self) -> str | None:
        return self._inner.session_id

    @property
    def started_at(self) -> datetime:
        return self._inner.started_at

    @property
    def ended_at(self) -> datetime | None:
        return self._inner.ended_at

    @property
    def status(self) -> ProcessStatus:
        return self._inner.status

    @property
    def outcome(self) -> Outcome | None:
        return self._inner.outcome

    @property
    def exit_code(self) -> int | None:
        return self._inner.exit_code

    @property
    def signal(self) -> int | None:
        return self._inner.signal

    def refresh(self) -> Self:
        """Bring the attributes up to date; returns self."""
        self._portal.call(lambda: self._inner.refresh())
        return self

    def kill(self, signal: int | str = "TERM") -> None:
        """Signal the whole tree. KILL returns when nothing of it is left. For an ended process it is a no-op."""
        self._portal.call(lambda: self._inner.kill(signal))

    def terminate(self, grace: float = 5.0) -> None:
        """TERM, then KILL after `grace` seconds; returns when the whole tree is gone."""
        self._portal.call(lambda: self._inner.terminate(grace))

    def wait(self, timeout: float | None = None) -> ProcessExit:
        """Wait for the end. After `timeout` seconds raises ProcessWaitTimeout; the process runs on."""
        return self._portal.call(lambda: self._inner.wait(timeout))

    def output(self, timeout: float | None = None) -> ExecResult:
        """Wait for the end and give what was printed, as `exec` would."""
        return self._portal.call(lambda: self._inner.output(timeout))

    def logs(
        self, *, since: str | None = None, follow: bool = True, lossless: bool = False
    ) -> Generator[LogEvent, None, None]:
        """Follow the output after the cursor `since` (default: from the beginning), then Exit.

        Without `follow` it stops at what is there now. A reader that falls behind what is kept gets a Gap; with
        `lossless` the process waits for it instead. Leaving early frees everything at once.
        """
        return self._portal.iterate(self._inner.logs(since=since, follow=follow, lossless=lossless))

    def wait_for_log(self, pattern: str | re.Pattern[str], *, timeout: float | None = None) -> LogMatch:
        """Wait for the first line, already printed or to come, that contains the text or matches the expression.

        A text is also found in a line that has not ended yet; an expression sees whole lines only, of those beyond
        64 KiB the last part. With `timeout=0` only what is printed already is looked at.
        """
        return self._portal.call(lambda: self._inner.wait_for_log(pattern, timeout=timeout))

    def wait_for_port(
        self,
        port: int,
        *,
        mode: Literal["http", "tcp"] = "http",
        path: str = "/",
        status: tuple[int, int] = (200, 399),
        timeout: float | None = None,
    ) -> None:
        """Wait until something listens on that port inside the sandbox and, for http, answers in that status range."""
        self._portal.call(lambda: self._inner.wait_for_port(port, mode=mode, path=path, status=status, timeout=timeout))

    def write_stdin(self, data: bytes | str) -> None:
        """Write to its standard input; needs `stdin=True` at the start."""
        self._portal.call(lambda: self._inner.write_stdin(data))

    def close_stdin(self) -> None:
        """End its standard input. Idempotent."""
        self._portal.call(lambda: self._inner.close_stdin())


class Files:
    """The sandbox's files, used with the sandbox's own rights.

    Paths are those inside. A relative one starts at the sandbox's working directory or, through a session, at the
    session's. A name that is not UTF-8 comes and goes with surrogate escapes, as `os.fsdecode` makes them. With `user`,
    a name or number of the sandbox's, a call has that user's rights, and what it makes is that user's; UserUnavailable
    where the sandbox has no other user.
    """

    def __init__(self, inner: api.Files, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def read(self, path: str, *, user: str | None = None) -> bytes:
        """Read a regular file."""
        return self._portal.call(lambda: self._inner.read(path, user=user))

    def read_text(self, path: str, encoding: str = "utf-8", *, user: str | None = None) -> str:
        """Read a text file; raises ValidationFailed when it is not in that encoding."""
        return self._portal.call(lambda: self._inner.read_text(path, encoding, user=user))

    def read_stream(
        self, path: str, *, start: int = 0, end: int | None = None, user: str | None = None
    ) -> Generator[bytes, None, None]:
        """Stream the bytes from `start` up to, not including, `end`; what is appended meanwhile is left out."""
        return self._portal.iterate(self._inner.read_stream(path, start=start, end=end, user=user))

    def write(self, path: str, data: bytes | str, *, mode: int | None = None, user: str | None = None) -> None:
        """Replace a file's content at once: readers see the old or the new one. Missing directories are made.

        What the code inside could not write raises PermissionDenied. The file keeps its owner, extended attributes and,
        unless `mode` is given, its mode. A link is followed. A file with several names, or whose directory does not let
        it be replaced, is written in place. Text is written as UTF-8.
        """
        self._portal.call(lambda: self._inner.write(path, data, mode=mode, user=user))

    def write_stream(
        self, path: str, chunks: Iterable[bytes], *, mode: int | None = None, user: str | None = None
    ) -> int:
        """Write a file from pieces; returns how many bytes there were. If a piece fails, the old file stays."""
        return self._portal.call(
            lambda: self._inner.write_stream(path, self._portal.feed(chunks), mode=mode, user=user)
        )

    def append(self, path: str, data: bytes | str, *, user: str | None = None) -> None:
        """Add to the end of a file, which is made if it is missing."""
        self._portal.call(lambda: self._inner.append(path, data, user=user))

    def mkdir(self, path: str, *, parents: bool = True, user: str | None = None) -> None:
        """Make a directory. With `parents` those above it too, and one that is there already is fine."""
        self._portal.call(lambda: self._inner.mkdir(path, parents=parents, user=user))

    def remove(self, path: str, *, user: str | None = None) -> None:
        """Remove a file or a link, not what it points to; a directory raises IsDirectory."""
        self._portal.call(lambda: self._inner.remove(path, user=user))

    def remove_tree(self, path: str, *, user: str | None = None) -> None:
        """Remove a directory and all that is in it, whatever its modes; no link is followed."""
        self._portal.call(lambda: self._inner.remove_tree(path, user=user))

    def rename(self, old: str, new: str, *, user: str | None = None) -> None:
        """Give a file or directory another name on the same file system, as rename(2): a file there is replaced."""
        self._portal.call(lambda: self._inner.rename(old, new, user=user))

    def move(self, source: str, destination: str, *, user: str | None = None) -> None:
        """Move as `mv`: into `destination` if that is a directory, also to another file system."""
        self._portal.call(lambda: self._inner.move(source, destination, user=user))

    def copy(self, source: str, destination: str, *, user: str | None = None) -> None:
        """Copy as `cp -r`: a file or a directory with all that is in it, into `destination` if that is a directory.

        Modes and times are kept, links are copied as links; a file in the way is replaced.
        """
        self._portal.call(lambda: self._inner.copy(source, destination, user=user))

    def list(
        self, path: str = ".", *, recursive: bool = False, hidden: bool = True, user: str | None = None
    ) -> builtins.list[FileInfo]:
        """List a directory, sorted by path; without `hidden` no names that begin with a dot."""
        return self._portal.call(lambda: self._inner.list(path, recursive=recursive, hidden=hidden, user=user))

    def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Describe the entry under that name; a link is not followed."""
        return self._portal.call(lambda: self._inner.stat(path, user=user))

    def exists(self, path: str, *, user: str | None = None) -> bool:
        """Return whether there is anything; a link counts when what it points to exists."""
        return self._portal.call(lambda: self._inner.exists(path, user=user))

    def chmod(self, path: str, mode: int, *, user: str | None = None) -> None:
        """Change the permission bits of a file; a link is followed."""
        self._portal.call(lambda: self._inner.chmod(path, mode, user=user))

    def glob(self, pattern: str, *, root: str = ".", user: str | None = None) -> builtins.list[str]:
        """Find the paths below `root`, relative and sorted, that match: `*`, `?`, `[a-z]`, and `**` for any depth.

        As in a shell, names that begin with a dot must be asked for by one. A pattern with `..` is refused.
        """
        return self._portal.call(lambda: self._inner.glob(pattern, root=root, user=user))

    def search(
        self, pattern: str, path: str = ".", *, glob: str | None = None, limit: int = 1000, user: str | None = None
    ) -> builtins.list[SearchMatch]:
        """Search text files for lines that match a regular expression, up to `limit`; `glob` chooses the files.

        Binary files (with a NUL byte), files over 64 MiB, and `.git` are left out. After 60 s it is LimitExceeded.
        """
        return self._portal.call(lambda: self._inner.search(pattern, path, glob=glob, limit=limit, user=user))

    def replace(self, path: str, old: str, new: str, *, count: int | None = 1, user: str | None = None) -> int:
        """Put `new` where exactly `old` stands; returns how often. Raises ValidationFailed if it is absent.

        It must stand there exactly `count` times, once by default; with None any number will do. Beyond 1 GiB, before
        or afterwards, it is FileTooLarge.
        """
        return self._portal.call(lambda: self._inner.replace(path, old, new, count=count, user=user))

    def upload(self, local: str | PathLike[str], path: str, *, user: str | None = None) -> None:
        """Copy a file, or what is in a directory, from this program's machine to `path`.

        A directory is merged into one that is there. If anything is refused or fails, the old tree stays.
        """
        self._portal.call(lambda: self._inner.upload(local, path, user=user))

    def download(
        self, path: str, local: str | PathLike[str], *, max_bytes: int = MOST_DOWNLOAD_BYTES, user: str | None = None
    ) -> None:
        """Copy a file, or what is in a directory, from the sandbox to `local` on this program's machine.

        What comes is not trusted: links that lead out of it are refused, and no set-user-id bit survives. More than
        `max_bytes`, 16 GiB by default, raises FileTooLarge; holes count, and stay holes.
        """
        self._portal.call(lambda: self._inner.download(path, local, max_bytes=max_bytes, user=user))

    def read_archive(self, path: str = ".", *, user: str | None = None) -> Generator[bytes, None, None]:
        """Stream a directory as an uncompressed tar archive, with names relative to it."""
        return self._portal.iterate(self._inner.read_archive(path, user=user))

    def write_archive(self, path: str, chunks: Iterable[bytes], *, user: str | None = None) -> None:
        """Unpack a tar stream into a directory, as `upload` does.

        Absolute names, `..`, links that lead out and devices are refused; if anything fails, the old tree stays.
        """
        self._portal.call(lambda: self._inner.write_archive(path, self._portal.feed(chunks), user=user))

    def watch(
        self,
        path: str = ".",
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (".git", "node_modules"),
        user: str | None = None,
    ) -> Generator[FileEvent, None, None]:
        """Watch a directory tree, or a file (inotify). First comes `watching`: from then on nothing is missed.

        Patterns match a name or a path below `path`. It ends when `path` itself is removed or moved away.
        """
        return self._portal.iterate(
            self._inner.watch(path, recursive=recursive, include=include, exclude=exclude, user=user)
        )

    def check_changes(
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
        return self._portal.call(
            lambda: self._inner.check_changes(
                path, since=since, recursive=recursive, include=include, exclude=exclude, user=user
            )
        )


class Git:
    """Repositories inside the sandbox, by the sandbox's own git: what a call does, `git` on a command line does.

    `path` is a directory of the repository. Hooks run inside, as all of git does. A call whose time is up, or that is
    cancelled, is ended and raises GitTimeout; the repository is then as git left it.

    `token`, or a password in the URL, is given to the URL's own host only and is found neither in arguments, nor in
    the repository's configuration, nor in errors. No hook runs in a call that has one. Code inside has the same user
    as git and can read it while the call runs.
    """

    def __init__(self, inner: api.Git, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def clone(
        self,
        url: str,
        path: str | None = None,
        *,
        branch: str | None = None,
        depth: int | None = None,
        timeout: float | None = None,
        token: str | None = None,
    ) -> GitClone:
        """Clone with the sandbox's own network; by default into a directory named like the repository."""
        return self._portal.call(
            lambda: self._inner.clone(url, path, branch=branch, depth=depth, timeout=timeout, token=token)
        )

    def status(self, path: str = ".", *, timeout: float | None = None) -> GitStatus:
        """Describe the checkout: HEAD, how far it is from its upstream as last seen, and which files differ."""
        return self._portal.call(lambda: self._inner.status(path, timeout=timeout))

    def diff(
        self,
        path: str = ".",
        *,
        paths: Sequence[str] = (),
        base: str | None = None,
        staged: bool = False,
        max_bytes: int = 1 << 20,
        timeout: float | None = None,
    ) -> str:
        """Changes as a patch: of files beside the index or the commit `base`, or of what is `staged`.

        Only of `paths`, if there are any. A patch over `max_bytes` raises FileTooLarge. What is not UTF-8 is replaced.
        """
        return self._portal.call(
            lambda: self._inner.diff(path, paths=paths, base=base, staged=staged, max_bytes=max_bytes, timeout=timeout)
        )

    def add(self, paths: Sequence[str] | None = None, path: str = ".", *, timeout: float | None = None) -> None:
        """Stage files or directories, by their names and not by patterns; without any, everything."""
        self._portal.call(lambda: self._inner.add(paths, path, timeout=timeout))

    def commit(
        self,
        message: str,
        path: str = ".",
        *,
        all: bool = False,
        allow_empty: bool = False,
        author: str | None = None,
        timeout: float | None = None,
    ) -> GitHead:
        """Record what is staged, or with `all` every change of tracked files; GitNothingToCommit if there is nothing.

        `author`, as `Name <name@example.com>`, is also the committer; without it the configuration says who it is.
        """
        return self._portal.call(
            lambda: self._inner.commit(message, path, all=all, allow_empty=allow_empty, author=author, timeout=timeout)
        )

    def push(
        self,
        path: str = ".",
        *,
        remote: str = "origin",
        branch: str | None = None,
        force: bool = False,
        set_upstream: bool = False,
        token: str | None = None,
        url: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send a branch, by default the one that is checked out, to that of the same name; GitRejected if refused.

        `remote` is a name or a URL. With the name of a remote a token needs `url`, whose host it is for: where the
        name leads is the repository's configuration, which code inside can change.
        """
        self._portal.call(
            lambda: self._inner.push(
                path,
                remote=remote,
                branch=branch,
                force=force,
                set_upstream=set_upstream,
                token=token,
                url=url,
                timeout=timeout,
            )
        )

    def pull(
        self,
        path: str = ".",
        *,
        remote: str | None = None,
        branch: str | None = None,
        rebase: bool = False,
        token: str | None = None,
        url: str | None = None,
        timeout: float | None = None,
    ) -> GitHead:
        """Fetch and merge, or rebase on, the upstream, or `branch` of `remote`; the same holds for the token.

        GitConflict leaves the merge as git does, to be resolved and committed.
        """
        return self._portal.call(
            lambda: self._inner.pull(
                path, remote=remote, branch=branch, rebase=rebase, token=token, url=url, timeout=timeout
            )
        )

    def branch(
        self,
        name: str,
        path: str = ".",
        *,
        start: str | None = None,
        delete: bool = False,
        force: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Make a branch at `start` or at what is checked out, or delete one; `force` moves it, or drops commits."""
        self._portal.call(
            lambda: self._inner.branch(name, path, start=start, delete=delete, force=force, timeout=timeout)
        )

    def branches(self, path: str = ".", *, timeout: float | None = None) -> list[GitBranch]:
        """Return the local branches, by name."""
        return self._portal.call(lambda: self._inner.branches(path, timeout=timeout))

    def checkout(
        self, ref: str, path: str = ".", *, create: bool = False, force: bool = False, timeout: float | None = None
    ) -> GitHead:
        """Switch to a branch, a tag or a commit, or to a new branch with `create`; `force` drops local changes."""
        return self._portal.call(lambda: self._inner.checkout(ref, path, create=create, force=force, timeout=timeout))


class TcpConnection:
    """A connection to a port inside, opened and closed by `with`."""

    def __init__(self, inner: api.TcpConnection, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect; ServiceNotResponding when nothing listens there."""
        self._portal.call(lambda: self._inner.open())

    def read(self, most: int = 65536) -> bytes:
        """Return what has come, at most so many bytes; waits for the first. b"" at the end of the stream."""
        return self._portal.call(lambda: self._inner.read(most))

    def write(self, data: bytes) -> None:
        """Send; returns when the system has taken it all. ConnectionLost when the other side is gone."""
        self._portal.call(lambda: self._inner.write(data))

    def write_eof(self) -> None:
        """Say that nothing more will be written; reading goes on."""
        self._portal.call(lambda: self._inner.write_eof())

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._portal.call(lambda: self._inner.close())


class Ports:
    """The listening ports inside the sandbox, and who outside can reach them."""

    def __init__(self, inner: api.Ports, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def expose(self, port: int, name: str | None = None, token: str | None = None) -> ExposedPort:
        """Let whoever knows the URL reach the port; `token` is what makes it hard to guess.

        Nothing has to listen yet. PortAlreadyExposed if it is exposed.
        """
        return self._portal.call(lambda: self._inner.expose(port, name, token))

    def unexpose(self, port: int) -> None:
        """Revoke the URL: it leads nowhere from here on, and connections that came through it end. Idempotent."""
        self._portal.call(lambda: self._inner.unexpose(port))

    def list(self) -> builtins.list[ExposedPort]:
        """Return all exposed ports, in order."""
        return self._portal.call(lambda: self._inner.list())

    def connect(self, port: int) -> TcpConnection:
        """Connect to the port, exposed or not, for this program alone: `async with ports.connect(5432) as c`."""
        return TcpConnection(self._inner.connect(port), self._portal)


class Backups:
    """Backups of directories. They outlive the sandbox, and every sandbox of the same owner can restore them."""

    def __init__(self, inner: api.Backups, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def create(
        self, dir: str, name: str | None = None, ttl: float | None = None, gitignore: bool = False
    ) -> BackupInfo:
        """Save a directory and all in it; it is there whole, or not at all.

        After `ttl` seconds it expires; by default it never does. With `gitignore` files that Git ignores there are left
        out: by every `.gitignore`, also where there is no repository. What changes meanwhile may be in it or not.
        """
        return self._portal.call(lambda: self._inner.create(dir, name, ttl, gitignore))

    def restore(self, id: str, dir: str | None = None) -> BackupInfo:
        """Make a directory what the backup has: where it was saved, or at `dir`. What else is there is removed.

        What fails changes nothing. BackupNotFound without such a backup, BackupExpired when its time is over.
        """
        return self._portal.call(lambda: self._inner.restore(id, dir))

    def list(self) -> builtins.list[BackupInfo]:
        """All backups that can be restored, oldest first."""
        return self._portal.call(lambda: self._inner.list())

    def delete(self, id: str) -> None:
        """Remove a backup; BackupNotFound without such a one."""
        self._portal.call(lambda: self._inner.delete(id))


class Mounts:
    """The mounts of a sandbox, which can be changed while it runs. They are back after a restart."""

    def __init__(self, inner: api.Mounts, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def add(self, mount: AnyMount) -> None:
        """Mount it, at a target outside the system's directories; what is missing on the way there is made.

        A target that is used, or would cover another one, is MountExists. No link on the way to it is followed. On a
        server, only what its configuration allows can be mounted.
        """
        self._portal.call(lambda: self._inner.add(mount))

    def list(self) -> builtins.list[AnyMount]:
        """Return all mounts, also those that it was created with."""
        return self._portal.call(lambda: self._inner.list())

    def remove(self, target: str) -> None:
        """Unmount it; raises MountNotFound. Programs that have files in it open keep those until they close them.

        What was written to a bucket is sent before this returns.
        """
        self._portal.call(lambda: self._inner.remove(target))

    def sync(self, target: str) -> None:
        """Send what was written to a bucket. Where it is copied, not mounted, copy it in and out."""
        self._portal.call(lambda: self._inner.sync(target))


class Session:
    """A persistent bash: what one command leaves behind, the next one finds."""

    def __init__(self, inner: api.Session, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def files(self) -> Files:
        return Files(self._inner.files, self._portal)

    def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        """Run one command in the shell. Commands of one session run one at a time, in the order they came.

        `cwd` and `env` hold for this call only. When `timeout` is over the command is interrupted and the session
        goes on with its state; if bash cannot be brought back, it is restarted and the result says so. The time
        counts from the call: a command whose turn has not come by then is not started. A command that ends the
        shell (`exit`, `exec`) raises SessionTerminated.

        It returns when the command has ended. To read output while it comes, start a process:

            process = await session.start_process(command, keep=False)
            async for event in process.logs(): ...
            exit = await process.wait()
        """
        return self._portal.call(
            lambda: self._inner.exec(command, cwd=cwd, env=env, timeout=timeout, stdin=stdin, max_output=max_output)
        )

    def start_process(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        keep: bool = True,
        lossless: bool = False,
    ) -> "Process":
        """Start a process from a copy of the session's state; it changes nothing in the session.

        A session with more than 16 MiB of state raises LimitExceeded here.
        """
        return Process(
            self._portal.call(
                lambda: self._inner.start_process(
                    command, id=id, cwd=cwd, env=env, timeout=timeout, stdin=stdin, keep=keep, lossless=lossless
                )
            ),
            self._portal,
        )

    def set_env(self, env: Mapping[str, str | None]) -> None:
        """Export variables in the shell; None unsets."""
        self._portal.call(lambda: self._inner.set_env(env))

    def fork(self) -> "Session":
        """Copy the session with its state: directory, variables, functions, options, aliases, limits, umask.

        It waits for its turn like a command. The copy is a session of its own, with a new id and another shell. Jobs,
        traps and open descriptors are not copied. A session with more than 16 MiB of state raises LimitExceeded.
        """
        return Session(self._portal.call(lambda: self._inner.fork()), self._portal)

    def cwd(self) -> str:
        """Return the working directory after the last completed command."""
        return self._portal.call(lambda: self._inner.cwd())

    def env(self) -> dict[str, str]:
        """Return the exported variables after the last completed command; LimitExceeded where they are over 2 MiB."""
        return self._portal.call(lambda: self._inner.env())

    def delete(self) -> None:
        """End the shell, its running command and every process it started. Idempotent."""
        self._portal.call(lambda: self._inner.delete())


class TerminalConnection:
    """One viewer of a terminal, opened and closed by `with` and iterated for its events.

    First comes what the terminal has kept (Output), then Ready, then live Output, at last Exit.
    """

    def __init__(self, inner: api.TerminalConnection, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[TerminalEvent]:
        return self.events()

    def open(self) -> None:
        """Start to watch: everything from here on will be seen."""
        self._portal.call(lambda: self._inner.open())

    def close(self) -> None:
        """Stop to watch; the terminal lives on. Idempotent."""
        self._portal.call(lambda: self._inner.close())

    def events(self) -> Generator[TerminalEvent, None, None]:
        """Receive what the terminal shows."""
        return self._portal.iterate(self._inner.events())

    def write(self, data: bytes | str) -> None:
        """Type."""
        self._portal.call(lambda: self._inner.write(data))

    def resize(self, cols: int, rows: int) -> None:
        """Change the size of the terminal, for all viewers."""
        self._portal.call(lambda: self._inner.resize(cols, rows))


class Terminal:
    """A shell on a terminal of its own, with any number of viewers."""

    def __init__(self, inner: api.Terminal, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def cols(self) -> int:
        return self._inner.cols

    @property
    def rows(self) -> int:
        return self._inner.rows

    def connect(self, *, since: str | None = None, lossless: bool = False) -> TerminalConnection:
        """Connect a viewer; with `since`, one that has seen everything up to that cursor.

        A viewer that falls far behind gets a Gap. With `lossless` the program waits for it, as on a terminal that is
        full: such a viewer must read on, or close.
        """
        return TerminalConnection(self._inner.connect(since=since, lossless=lossless), self._portal)

    def resize(self, cols: int, rows: int) -> None:
        """Change the size, 1 to 1000 each way; programs are told."""
        self._portal.call(lambda: self._inner.resize(cols, rows))

    def destroy(self) -> None:
        """End the shell and everything it started. Viewers see the end. Idempotent."""
        self._portal.call(lambda: self._inner.destroy())


class CodeContext:
    """One executor process with state, from creation to deletion: what one run defines, the next one finds."""

    def __init__(self, inner: api.CodeContext, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def language(self) -> str:
        return self._inner.language

    def run(self, code: str, *, timeout: float | None = None) -> Execution:
        """Run code to its end. Runs of one context take turns, in the order they came.

        An error in the code is part of the result. After `timeout` seconds the code is interrupted; the context
        lives on if it comes back. Raises ContextCrashed when the executor has ended.
        """
        return self._portal.call(lambda: self._inner.run(code, timeout=timeout))

    def stream(self, code: str, *, timeout: float | None = None) -> Generator[CodeEvent, None, None]:
        """Stream the same as events while it runs; leaving early interrupts the code."""
        return self._portal.iterate(self._inner.stream(code, timeout=timeout))

    def fork(self, count: int = 1, *, force: bool = False) -> builtins.list["CodeContext"]:
        """Copy a Python context with all its variables, so many times; memory is shared until one side writes to it.

        It waits for its turn like a run. Each copy is a context of its own, with a new id. Threads, child processes and
        connections are not copied, and open files share their position; a context with threads raises ForkRefused,
        which names them, unless `force` says that they do not matter. Other languages raise UnsupportedLanguage.
        """
        return [
            CodeContext(each, self._portal) for each in self._portal.call(lambda: self._inner.fork(count, force=force))
        ]

    def interrupt(self) -> None:
        """Interrupt what runs now; nothing happens if nothing does."""
        self._portal.call(lambda: self._inner.interrupt())

    def delete(self) -> None:
        """End the executor and everything it started. Idempotent."""
        self._portal.call(lambda: self._inner.delete())


class Snapshot:
    """A snapshot, made by `sandbox.snapshot()`. It stays until it is deleted, also when the sandbox is gone.

    `name` and `labels` are what it was given; `parent` is the id of the snapshot that its sandbox stood on,
    `owner` the tenant it belongs to.
    """

    def __init__(self, inner: api.AsyncSnapshot, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def name(self) -> str | None:
        return self._inner.name

    @property
    def labels(self) -> Mapping[str, str]:
        return self._inner.labels

    @property
    def created_at(self) -> datetime:
        return self._inner.created_at

    @property
    def parent(self) -> str | None:
        return self._inner.parent

    @property
    def size(self) -> int | None:
        return self._inner.size

    @property
    def owner(self) -> str | None:
        return self._inner.owner

    @classmethod
    def get(cls, id: str, *, url: str | None = None, api_key: str | None = None) -> "Snapshot":
        """The snapshot with that id; raises SnapshotNotFound."""
        return Snapshot(get_portal().call(lambda: api.AsyncSnapshot.get(id, url=url, api_key=api_key)), get_portal())

    @classmethod
    def list(
        cls, *, labels: Mapping[str, str] | None = None, url: str | None = None, api_key: str | None = None
    ) -> builtins.list[SnapshotInfo]:
        """All snapshots that have these labels, oldest first."""
        return get_portal().call(lambda: api.AsyncSnapshot.list(labels=labels, url=url, api_key=api_key))

    @classmethod
    def load(
        cls,
        source: str | PathLike[str],
        *,
        progress: "Callable[[TransferProgress], object] | None" = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "Snapshot":
        """Load what `export` has written, from a path of yours or `s3://…`; verified by digest, or ValidationFailed."""
        return Snapshot(
            get_portal().call(lambda: api.AsyncSnapshot.load(source, progress=progress, url=url, api_key=api_key)),
            get_portal(),
        )

    def export(
        self, target: str | PathLike[str], *, progress: "Callable[[TransferProgress], object] | None" = None
    ) -> ExportInfo:
        """Write it as compressed layers named by digest; layers that are there already are not written again.

        The target is a path of yours, a directory if it is one or ends with `/`, otherwise one file; or
        `s3://BUCKET/PREFIX`, with the credentials of your environment.
        """
        return self._portal.call(lambda: self._inner.export(target, progress=progress))

    def read_archive(self) -> Generator[bytes, None, None]:
        """Read what `export` writes to one file, in pieces."""
        return self._portal.iterate(self._inner.read_archive())

    def digest(self) -> str:
        """Return the digest of its files, computed when it is first asked for. Equal digests mean equal content."""
        return self._portal.call(lambda: self._inner.digest())

    def info(self) -> SnapshotInfo:
        """Describe the snapshot, and count what the files take that it added."""
        return self._portal.call(lambda: self._inner.info())

    def delete(self) -> None:
        """Remove it. What sandboxes and other snapshots stand on stays until the last of them is gone."""
        self._portal.call(lambda: self._inner.delete())


class Transaction:
    """Opened by `async with sandbox.transaction()`: leaving it without `commit` takes all changes of files back.

    Everybody's writes count. Taking them back ends what holds files of theirs open; other processes and the variables
    of sessions stay. While it is open it renews its lease: when this program vanishes, the changes are taken back.
    """

    def __init__(self, inner: api.AsyncTransaction, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Begin; raises TransactionOpen while another one is open."""
        self._portal.call(lambda: self._inner.open())

    def commit(self) -> None:
        """Keep the changes: the transaction is over."""
        self._portal.call(lambda: self._inner.commit())

    def close(self) -> None:
        """Take the changes back, if they were not committed. Idempotent."""
        self._portal.call(lambda: self._inner.close())


class Sandbox:
    """A Linux computer for an agent or any other program. Made by `create`, ended by `destroy`."""

    def __init__(self, inner: api.AsyncSandbox, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self.destroy()
        else:
            self.detach()

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def files(self) -> Files:
        return Files(self._inner.files, self._portal)

    @property
    def git(self) -> Git:
        return Git(self._inner.git, self._portal)

    @property
    def mounts(self) -> Mounts:
        return Mounts(self._inner.mounts, self._portal)

    @property
    def ports(self) -> Ports:
        return Ports(self._inner.ports, self._portal)

    @property
    def backups(self) -> Backups:
        return Backups(self._inner.backups, self._portal)

    @classmethod
    def create(
        cls,
        *,
        id: str | None = None,
        spec: SandboxSpec | None = None,
        url: str | None = None,
        api_key: str | None = None,
        exist_ok: bool = False,
        **spec_fields: Unpack[SpecFields],
    ) -> "Sandbox":
        """Make a sandbox; as a context manager it is destroyed at the end.

        It lives in this program unless `url` or COVE_URL names a server. Fields of SandboxSpec can be given
        directly: `create(network="host", env={"A": "1"})`. With `exist_ok` a sandbox that has the id already is
        given back as it is.
        """
        return Sandbox(
            get_portal().call(
                lambda: _opened(
                    api.AsyncSandbox.create(
                        id=id, spec=spec, url=url, api_key=api_key, exist_ok=exist_ok, **spec_fields
                    )
                ),
                _destroy,
            ),
            get_portal(),
        )

    @classmethod
    def connect(cls, id: str, *, url: str | None = None, api_key: str | None = None) -> "Sandbox":
        """The sandbox with that id; raises SandboxNotFound. Leaving `with` detaches and destroys nothing."""
        return Sandbox(
            get_portal().call(lambda: _opened(api.AsyncSandbox.connect(id, url=url, api_key=api_key))),
            get_portal(),
            owned=False,
        )

    @classmethod
    def list(
        cls,
        *,
        labels: Mapping[str, str] | None = None,
        status: SandboxStatus | str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> builtins.list[SandboxInfo]:
        """The sandboxes of this program, or of the server: all, or those that have these labels and this status."""
        return get_portal().call(lambda: api.AsyncSandbox.list(labels=labels, status=status, url=url, api_key=api_key))

    def info(self) -> SandboxInfo:
        """Describe the sandbox, and what the machine made possible."""
        return self._portal.call(lambda: self._inner.info())

    def usage(self) -> Usage:
        """Measure resource usage at this moment. Counting its files takes time where there are many."""
        return self._portal.call(lambda: self._inner.usage())

    def destroy(self) -> None:
        """End everything in it and remove all it has on disk. Idempotent."""
        self._portal.call(lambda: self._inner.destroy())

    def stop(self) -> None:
        """End everything that runs; all else stays as it is until `start`. Idempotent.

        Files, environment, labels, exposed ports and sessions are there again after `start`; processes, terminals and
        code contexts have ended with the outcome `stopped`. Until then every call is SandboxStopped.
        """
        self._portal.call(lambda: self._inner.stop())

    def start(self) -> None:
        """Start it again after `stop`, or when it is lost; resume it when it is paused. Idempotent."""
        self._portal.call(lambda: self._inner.start())

    def restart(self) -> None:
        """End everything that runs and start again, as `stop` and `start` do; also when it is lost."""
        self._portal.call(lambda: self._inner.restart())

    def move(self, node: str | None = None) -> None:
        """Move it to another node of the cluster, or to that with most room; only while it is stopped. Idempotent.

        Its id, files, environment, labels, lifetime, journal and sessions go with it. If that fails, it is where it
        was. While it is moved, calls are SandboxUnavailable: nothing was started, try again.
        """
        self._portal.call(lambda: self._inner.move(node))

    def pause(self, *, wake: bool = True) -> None:
        """Freeze everything in it where it stands, and keep its memory. Idempotent.

        The next call resumes it; without `wake` only `resume` does, and other calls are SandboxPaused. Time stands
        still inside: what a command has left of its timeout it still has when it goes on. Without isolation it is
        ValidationFailed.
        """
        self._portal.call(lambda: self._inner.pause(wake=wake))

    def resume(self) -> None:
        """Let everything in it go on after `pause`. Idempotent."""
        self._portal.call(lambda: self._inner.resume())

    def set_lifetime(self, seconds: float | None) -> None:
        """Destroy it so many seconds from now, whatever was said before; None: never by itself."""
        self._portal.call(lambda: self._inner.set_lifetime(seconds))

    def set_idle_timeout(
        self, seconds: float | None, *, action: IdleAction | Literal["stop", "pause"] = IdleAction.STOP
    ) -> None:
        """Stop or pause it when it has been idle for so long, until the next call; None: never. Ends `keep_alive`."""
        self._portal.call(lambda: self._inner.set_idle_timeout(seconds, action=action))

    def set_labels(self, labels: Mapping[str, str]) -> None:
        """Replace its labels, by which `list` finds it."""
        self._portal.call(lambda: self._inner.set_labels(labels))

    def detach(self) -> None:
        """Let go of the connection to a server; the sandbox lives on. One in this program has none."""
        self._portal.call(lambda: self._inner.detach())

    def set_env(self, env: Mapping[str, str | None]) -> None:
        """Change the environment of what starts later; None unsets."""
        self._portal.call(lambda: self._inner.set_env(env))

    def set_network(self, network: Network | NetworkPolicy | Literal["none", "internet"]) -> None:
        """Let this policy hold from now on, for open connections too.

        A sandbox with the host's network keeps it, and no other gets it: ValidationFailed. When something inside
        listens on a port of the policy already, it is PortInUse and the old policy stays.
        """
        self._portal.call(lambda: self._inner.set_network(network))

    def network_log(self, *, since: str | None = None, follow: bool = False) -> Generator[NetworkEvent, None, None]:
        """Read what the policy allowed and refused, from the cursor of an event on; with `follow`, as it happens."""
        return self._portal.iterate(self._inner.network_log(since=since, follow=follow))

    def snapshot(self, name: str | None = None, labels: Mapping[str, str] | None = None) -> "Snapshot":
        """Keep the files as they are at this moment: /workspace, /home/user and /tmp.

        Everything that a command has written which returned before the call is in it, and nothing of one that begins
        after it. Mounts, /dev/shm and /run are not. Sessions are: directory, variables, functions, options and
        aliases; one in the middle of a command as its state was last known before. It costs the same whatever there
        is; while a process stands in those directories or holds files of them open, what was written since the last
        snapshot is copied.
        """
        return Snapshot(self._portal.call(lambda: self._inner.snapshot(name, labels)), self._portal)

    def commit(self, name: str) -> "Image":
        """Make an image of a sandbox on an image: that image, and all that was written since, as it is now.

        It has the sandbox's user and the variables and settings of its image; `set_env`, mounts and volumes are not in
        it. An image with the same name is replaced. ValidationFailed for a sandbox on the host's system.
        """
        return Image(self._portal.call(lambda: self._inner.commit(name)), self._portal)

    def restore(self, snapshot: "str | HasId") -> None:
        """Go back to a snapshot, of this sandbox or of another: everything that runs is ended first.

        Sessions are those of the snapshot, with the same ids and as they were then; who holds one goes on with it.
        Other sessions, processes, terminals and contexts are gone.
        """
        self._portal.call(lambda: self._inner.restore(snapshot))

    def fork(self, count: int = 1) -> builtins.list["Sandbox"]:
        """Make so many copies of this sandbox as it is now, each with an id, processes and limits of its own.

        They stand on the same layers and share nothing else; each has the sessions, by the same ids. When not all of
        them can be made, none is.
        """
        return [Sandbox(each, self._portal) for each in self._portal.call(lambda: self._inner.fork(count))]

    def changes(self, since: "str | HasId | None" = None) -> builtins.list[FileChange]:
        """List the files that differ from those at its creation, or in that snapshot, sorted by path."""
        return self._portal.call(lambda: self._inner.changes(since))

    def diff(self, path: str | None = None, since: "str | HasId | None" = None) -> str:
        """Write the differences as a patch, of all files or of those at or below a path; binary files are named."""
        return self._portal.call(lambda: self._inner.diff(path, since))

    def reset(self) -> ResetReport:
        """Make it as it was created, and say by what that is proven.

        Everything in it ends with its jail, and another one begins on the files of its creation: no process, session,
        terminal or context, nothing in /dev/shm. Environment, network policy, mounts and labels are those of its
        creation again, and no port is exposed. What is in mounts, the network's log and the end of its lifetime stay.
        """
        return self._portal.call(lambda: self._inner.reset())

    def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        max_output: int | None = None,
        user: str | None = None,
    ) -> ExecResult:
        """Run one command, wait for it, and give its result. No state is kept from call to call.

        A string is run as `bash -c` would; a list is run without a shell. When `timeout` is over, everything the
        command started is ended and the result says `timed_out`. With `user`, a name or number of the sandbox's, it
        runs as that one, with its HOME; UserUnavailable where the sandbox has one user.

        It returns when the command has ended. To read output while it comes, start a process:

            process = await sandbox.start_process(command, keep=False)
            async for event in process.logs(): ...
            exit = await process.wait()
        """
        return self._portal.call(
            lambda: self._inner.exec(
                command, cwd=cwd, env=env, timeout=timeout, stdin=stdin, max_output=max_output, user=user
            )
        )

    def start_process(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        keep: bool = True,
        lossless: bool = False,
        user: str | None = None,
    ) -> "Process":
        """Start a process that lives on its own; returns once it runs.

        After its end it is remembered, with its log, until `cleanup_processes`; with `keep=False` it is forgotten
        when it has ended and its readers are done. With `lossless` it waits, as on any full pipe, when half a megabyte
        of its output is unread, until somebody calls `logs(lossless=True)` or `output`: such a reader has no Gap.
        """
        return Process(
            self._portal.call(
                lambda: self._inner.start_process(
                    command,
                    id=id,
                    cwd=cwd,
                    env=env,
                    timeout=timeout,
                    stdin=stdin,
                    keep=keep,
                    lossless=lossless,
                    user=user,
                )
            ),
            self._portal,
        )

    def get_process(self, id: str) -> "Process":
        """The process with that id; raises ProcessNotFound."""
        return Process(self._portal.call(lambda: self._inner.get_process(id)), self._portal)

    def list_processes(self) -> builtins.list["Process"]:
        """All running and remembered processes, oldest first."""
        return [Process(each, self._portal) for each in self._portal.call(lambda: self._inner.list_processes())]

    def kill_process(self, id: str, signal: int | str = "TERM") -> None:
        """Signal the whole tree of that process."""
        self._portal.call(lambda: self._inner.kill_process(id, signal))

    def kill_all_processes(self, signal: int | str = "TERM") -> int:
        """Signal every running process's tree; returns how many there were."""
        return self._portal.call(lambda: self._inner.kill_all_processes(signal))

    def cleanup_processes(self) -> int:
        """Forget the ended processes; returns how many there were."""
        return self._portal.call(lambda: self._inner.cleanup_processes())

    def create_session(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> "Session":
        """A new shell; `timeout` is the default for its commands. An id whose shell has ended can be taken again."""
        return Session(
            self._portal.call(lambda: self._inner.create_session(id=id, cwd=cwd, env=env, timeout=timeout, user=user)),
            self._portal,
        )

    def get_session(self, id: str) -> "Session":
        """The session with that id; raises SessionNotFound."""
        return Session(self._portal.call(lambda: self._inner.get_session(id)), self._portal)

    def list_sessions(self) -> builtins.list[SessionInfo]:
        """All sessions, oldest first."""
        return self._portal.call(lambda: self._inner.list_sessions())

    def delete_session(self, id: str) -> None:
        """End the session with that id and everything it started."""
        self._portal.call(lambda: self._inner.delete_session(id))

    def terminal(
        self,
        *,
        id: str | None = None,
        shell: str | Sequence[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        cols: int = 80,
        rows: int = 24,
        user: str | None = None,
    ) -> "Terminal":
        """The terminal with that id, or a new one running `shell` (default: bash)."""
        return Terminal(
            self._portal.call(
                lambda: self._inner.terminal(id=id, shell=shell, cwd=cwd, env=env, cols=cols, rows=rows, user=user)
            ),
            self._portal,
        )

    def get_terminal(self, id: str) -> "Terminal":
        """The terminal with that id; raises TerminalNotFound."""
        return Terminal(self._portal.call(lambda: self._inner.get_terminal(id)), self._portal)

    def list_terminals(self) -> builtins.list[TerminalInfo]:
        """All terminals, oldest first."""
        return self._portal.call(lambda: self._inner.list_terminals())

    def create_code_context(
        self,
        language: str = "python",
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> "CodeContext":
        """A new executor process for python, javascript or typescript; `timeout` is the default for its runs."""
        return CodeContext(
            self._portal.call(
                lambda: self._inner.create_code_context(language, id=id, cwd=cwd, env=env, timeout=timeout, user=user)
            ),
            self._portal,
        )

    def get_code_context(self, id: str) -> "CodeContext":
        """The code context with that id; raises ContextNotFound."""
        return CodeContext(self._portal.call(lambda: self._inner.get_code_context(id)), self._portal)

    def list_code_contexts(self) -> builtins.list[CodeContextInfo]:
        """All code contexts, oldest first."""
        return self._portal.call(lambda: self._inner.list_code_contexts())

    def delete_code_context(self, id: str) -> None:
        """End the executor with that id and everything it started, also while code runs."""
        self._portal.call(lambda: self._inner.delete_code_context(id))

    def run_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> Execution:
        """Run code in that context; without one, in a clean executor that is used for nothing else."""
        return self._portal.call(
            lambda: self._inner.run_code(code, context=_inner(context), language=language, timeout=timeout)
        )

    def stream_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> Generator[CodeEvent, None, None]:
        """The same as events while it runs."""
        return self._portal.iterate(
            self._inner.stream_code(code, context=_inner(context), language=language, timeout=timeout)
        )

    def journal(self, *, since: str | None = None, follow: bool = False) -> Generator[JournalEvent, None, None]:
        """Read what was done to it and in it, by whom and how it ended, from the cursor of an event on.

        With `follow`, what comes later too, until it is destroyed. It is there also while the sandbox is stopped, and
        reading it wakes nothing. What is no longer kept, or was lost, is a gap.
        """
        return self._portal.iterate(self._inner.journal(since=since, follow=follow))

    @classmethod
    def list_destroyed(cls, *, url: str | None = None, api_key: str | None = None) -> builtins.list[DestroyedSandbox]:
        """The destroyed sandboxes of a server whose journals are still kept, oldest first."""
        return get_portal().call(lambda: api.AsyncSandbox.list_destroyed(url=url, api_key=api_key))

    @classmethod
    def destroyed_journal(
        cls, key: str, *, since: str | None = None, url: str | None = None, api_key: str | None = None
    ) -> Generator[JournalEvent, None, None]:
        """Read the journal of a destroyed sandbox, by the key that `list_destroyed` gives it."""
        return get_portal().iterate(api.AsyncSandbox.destroyed_journal(key, since=since, url=url, api_key=api_key))

    def token(self, operations: Sequence[str], *, expires: float = 3600.0, path: str | None = None) -> str:
        """Make a key that reaches this sandbox alone, for some operations, until so many seconds are over.

        `["terminal", "files.read"]` names families, or what only reads of one; the names of single operations are
        in the reference of the HTTP API. With `path`, only that file is read or written. It ends with the sandbox,
        and makes no other tokens. PermissionDenied for a sandbox without a server.
        """
        return self._portal.call(lambda: self._inner.token(operations, expires=expires, path=path))

    def signed_url(self, path: str, *, write: bool = False, expires: float = 3600.0) -> str:
        """Make a URL that reads one file by GET, or with `write` replaces it by PUT, for whoever has it.

        PermissionDenied for a sandbox without a server.
        """
        return self._portal.call(lambda: self._inner.signed_url(path, write=write, expires=expires))

    def transaction(self) -> Transaction:
        """Changes of files that are kept together: `async with sandbox.transaction() as change`.

        Leaving it without `change.commit()` takes back what anybody has written meanwhile.
        """
        return Transaction(self._inner.transaction(), self._portal)

    def begin_transaction(self, lease: float = 30.0) -> str:
        """Begin a transaction and return its id; `transaction` does that for you.

        One at a time: TransactionOpen. When nobody renews it for `lease` seconds, or the sandbox's runtime is killed,
        it is rolled back.
        """
        return self._portal.call(lambda: self._inner.begin_transaction(lease))

    def renew_transaction(self, id: str, lease: float = 30.0) -> None:
        """Keep a transaction open for so many seconds from now; raises ValidationFailed when it is over."""
        self._portal.call(lambda: self._inner.renew_transaction(id, lease))

    def commit_transaction(self, id: str) -> None:
        """Keep what was written since it began; raises ValidationFailed when it is over."""
        self._portal.call(lambda: self._inner.commit_transaction(id))

    def rollback_transaction(self, id: str) -> None:
        """Take back what was written since it began: what holds those files open is ended. Idempotent."""
        self._portal.call(lambda: self._inner.rollback_transaction(id))


class Volume:
    """A named volume. `VolumeMount(volume=name, target=...)` lets a sandbox use it."""

    def __init__(self, inner: api.AsyncVolume, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)

    @property
    def name(self) -> str:
        return self._inner.name

    @classmethod
    def create(
        cls, name: str, *, size: int | None = None, url: str | None = None, api_key: str | None = None
    ) -> "Volume":
        """Make a volume that holds at most `size` bytes. Raises VolumeAlreadyExists."""
        return Volume(
            get_portal().call(lambda: api.AsyncVolume.create(name, size=size, url=url, api_key=api_key), _delete),
            get_portal(),
        )

    @classmethod
    def get(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> "Volume":
        """The volume with that name; raises VolumeNotFound."""
        return Volume(get_portal().call(lambda: api.AsyncVolume.get(name, url=url, api_key=api_key)), get_portal())

    @classmethod
    def list(cls, *, url: str | None = None, api_key: str | None = None) -> builtins.list[VolumeInfo]:
        """The volumes of this user's state directory, or of the server."""
        return get_portal().call(lambda: api.AsyncVolume.list(url=url, api_key=api_key))

    def info(self) -> VolumeInfo:
        """Describe the volume, and measure what it holds."""
        return self._portal.call(lambda: self._inner.info())

    def delete(self) -> None:
        """Remove it with all that is in it. VolumeInUse while a sandbox, running or stopped, has it mounted."""
        self._portal.call(lambda: self._inner.delete())


class ApiKey:
    """The keys of a server, for its admins; without a `url` those of this user's state directory."""

    def __init__(self, inner: api.AsyncApiKey, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    @classmethod
    def create(
        cls,
        name: str,
        *,
        tenant: str | None = None,
        is_admin: bool = False,
        expires_at: datetime | None = None,
        quota: Quota | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> ApiKeyMade:
        """Make a key, whose text is told this once. Its tenant is called as the key, unless it is said.

        Raises ApiKeyAlreadyExists.
        """
        return get_portal().call(
            lambda: api.AsyncApiKey.create(
                name, tenant=tenant, is_admin=is_admin, expires_at=expires_at, quota=quota, url=url, api_key=api_key
            )
        )

    @classmethod
    def list(cls, *, url: str | None = None, api_key: str | None = None) -> builtins.list[ApiKeyInfo]:
        """Describe all keys, oldest first."""
        return get_portal().call(lambda: api.AsyncApiKey.list(url=url, api_key=api_key))

    @classmethod
    def get(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> ApiKeyInfo:
        """Describe one key. Raises ApiKeyNotFound."""
        return get_portal().call(lambda: api.AsyncApiKey.get(name, url=url, api_key=api_key))

    @classmethod
    def rotate(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> ApiKeyMade:
        """Replace a key by a new one with the same rights; the old one stops working at once."""
        return get_portal().call(lambda: api.AsyncApiKey.rotate(name, url=url, api_key=api_key))

    @classmethod
    def delete(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> None:
        """Revoke a key: it stops working at once, also in streams that are open. What it made stays its tenant's."""
        get_portal().call(lambda: api.AsyncApiKey.delete(name, url=url, api_key=api_key))


class Image:
    """An image in this user's state directory, or in that of a server.

    `AsyncSandbox.create(image=name)` makes a sandbox on it, in the same place.
    """

    def __init__(self, inner: api.AsyncImage, portal: Portal, *, owned: bool = True) -> None:
        self._inner = inner
        self._portal = portal
        self._owned = owned

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)

    @property
    def name(self) -> str:
        return self._inner.name

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        name: str | None = None,
        progress: "Callable[[TransferProgress], object] | None" = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "Image":
        """Load an archive of an image, or a root file system; an image with the same name is replaced.

        Archives are those of `docker save` and of OCI tools, plain or compressed by gzip or zstd. A root file system
        is a tar archive or a directory, and needs a `name`. The path is yours: a server is sent what is there. Raises
        ImageInvalid.
        """
        return Image(
            get_portal().call(
                lambda: api.AsyncImage.load(path, name=name, progress=progress, url=url, api_key=api_key)
            ),
            get_portal(),
        )

    @classmethod
    def pull(
        cls,
        reference: str,
        *,
        progress: "Callable[[TransferProgress], object] | None" = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "Image":
        """Pull `HOST/NAME:TAG` from a registry, with the credentials of `~/.docker/config.json`.

        What an interrupted pull has fetched is used by the next. A server pulls from registries that its configuration
        allows, with credentials of its own. Raises ImageNotFound, ImageInvalid, Unauthorized, PermissionDenied.
        """
        return Image(
            get_portal().call(lambda: api.AsyncImage.pull(reference, progress=progress, url=url, api_key=api_key)),
            get_portal(),
        )

    @classmethod
    def build(
        cls,
        directory: str | None = None,
        *,
        name: str | None = None,
        dockerfile: str = "Dockerfile",
        build_args: Mapping[str, str] | None = None,
        target: str | None = None,
        preset: str | None = None,
        base: str | None = None,
        network: "Network | NetworkPolicy | Literal['none', 'internet', 'host'] | None" = None,
        limits: Limits | None = None,
        timeout: float | None = None,
        cache: bool = True,
        progress: "Callable[[BuildEvent], object] | None" = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "Image":
        """Build an image from a directory with a Dockerfile; one with the same name is replaced.

        With `preset` it is one of Cove's own recipes, `python`, `node` or `data`, on the image `base`, which is
        `debian:bookworm` unless you say another; its network is then the preset `packages`, otherwise none.

        Each RUN has a sandbox of its own on the image so far, which reaches what `network` allows and has `limits`.
        Steps that were done before are taken from the build cache, unless `cache` is false. `target` names the stage
        to build, the last by default. `timeout` is for the whole build. `progress` is called with each step, and with
        what it prints. Raises BuildFailed with the line, the exit code and the last output of a step that failed,
        ValidationFailed for what cannot be read, ImageNotFound for an image in FROM.
        """
        return Image(
            get_portal().call(
                lambda: api.AsyncImage.build(
                    directory,
                    name=name,
                    dockerfile=dockerfile,
                    build_args=build_args,
                    target=target,
                    preset=preset,
                    base=base,
                    network=network,
                    limits=limits,
                    timeout=timeout,
                    cache=cache,
                    progress=progress,
                    url=url,
                    api_key=api_key,
                )
            ),
            get_portal(),
        )

    @classmethod
    def bootstrap(
        cls,
        distribution: str = "debian",
        *,
        suite: str = "bookworm",
        include: Sequence[str] = (),
        name: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "Image":
        """Make a small image of Debian by `mmdebstrap` on this machine, from the sources that its own apt has.

        `include` names more packages. It is called `debian:bookworm`, by its suite, unless you give it a name. For a
        server it is made here, and sent.
        """
        return Image(
            get_portal().call(
                lambda: api.AsyncImage.bootstrap(
                    distribution, suite=suite, include=include, name=name, url=url, api_key=api_key
                )
            ),
            get_portal(),
        )

    @classmethod
    def get(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> "Image":
        """The image with that name; raises ImageNotFound."""
        return Image(get_portal().call(lambda: api.AsyncImage.get(name, url=url, api_key=api_key)), get_portal())

    @classmethod
    def list(cls, *, url: str | None = None, api_key: str | None = None) -> builtins.list[ImageInfo]:
        """All images, by their names."""
        return get_portal().call(lambda: api.AsyncImage.list(url=url, api_key=api_key))

    @classmethod
    def prune(cls, *, all: bool = False, url: str | None = None, api_key: str | None = None) -> builtins.list[str]:
        """Remove what has no name: the build cache, and what interrupted pulls have left.

        With `all` images that no sandbox and no snapshot stands on are forgotten too; returns their names.
        """
        return get_portal().call(lambda: api.AsyncImage.prune(all=all, url=url, api_key=api_key))

    def info(self) -> ImageInfo:
        """Describe the image."""
        return self._portal.call(lambda: self._inner.info())

    def save(
        self, path: str | PathLike[str], *, progress: "Callable[[TransferProgress], object] | None" = None
    ) -> None:
        """Write it to a path of yours as an OCI archive, which `load` and other tools take.

        The same image gives the same bytes. Set-id bits and attributes are not in it; owners are, where they are real.
        """
        self._portal.call(lambda: self._inner.save(path, progress=progress))

    def read_archive(self) -> Generator[bytes, None, None]:
        """Read what `save` writes, in pieces."""
        return self._portal.iterate(self._inner.read_archive())

    def delete(self, *, force: bool = False) -> None:
        """Forget the image. ImageInUse while a sandbox, running or stopped, or a snapshot stands on it.

        With `force` only its name goes then: layers stay as long as anything stands on them.
        """
        self._portal.call(lambda: self._inner.delete(force=force))


class Fleet:
    """Sandboxes that work through many tasks; opened and closed by `with`.

    There are as many as the machine or the server allows, `size` at most. In your program that is 16 for each core,
    as far as the memory that is free lasts: `limits.memory` for each, or 128 MiB. A server that is full is asked for
    more later. A sandbox that has done a task is used again after a `reset` that is proven, or thrown away; with
    `reuse=False`, or with a `startup`, each has one task. `progress` shows a bar on standard error; None: where that
    is a terminal. All other arguments are those of `AsyncSandbox.create`.
    """

    def __init__(
        self,
        size: int = 64,
        *,
        spec: SandboxSpec | None = None,
        url: str | None = None,
        api_key: str | None = None,
        reuse: bool = True,
        progress: bool | None = None,
        **spec_fields: Unpack[SpecFields],
    ) -> None:
        self._inner = api.AsyncFleet(
            size, spec=spec, url=url, api_key=api_key, reuse=reuse, progress=progress, **spec_fields
        )
        self._portal = get_portal()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Make the first sandbox: what cannot be created is told here."""
        self._portal.call(lambda: self._inner.open())

    def close(self) -> None:
        """End all tasks and destroy all sandboxes. Idempotent."""
        self._portal.call(lambda: self._inner.close())

    def map(
        self,
        task: Callable[["Sandbox", Item], Value],
        items: Iterable[Item],
        *,
        retries: int = 2,
        ordered: bool = False,
        idempotent: bool | None = None,
    ) -> Generator[TaskResult[Item, Value], None, None]:
        """Run the task for each item, in a sandbox that is as it was created; gives results as they come.

        What a task raises is the `error` of its result. Where Cove or the machine failed, the task begins again, up to
        `retries` times, in another sandbox: always if it had not begun, otherwise if it is `idempotent`. None: what it
        did ended with its sandbox, unless it had the host's network or files, or a mount that can be written. More
        than a fifth of the last 50 results that tell of such failures (`is_infrastructure_failure`) end the whole. With
        `ordered` results come in the order of the items. Leaving it early ends the tasks that run.
        """
        return self._portal.iterate(
            self._inner.map(
                _in_thread(task, self._portal),
                _fed(items, self._portal),
                retries=retries,
                ordered=ordered,
                idempotent=idempotent,
            )
        )
