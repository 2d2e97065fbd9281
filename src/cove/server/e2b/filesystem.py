"""The filesystem service: entries with their owners, directories, moves and removals."""

import posixpath
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from cove.errors import FileExists, FileNotFound, IsDirectory, NotDirectory
from cove.model import FileInfo, FileKind
from cove.runtime.file_access import Stat
from cove.runtime.sandbox import Sandbox
from cove.server.e2b.homes import Names, home_of
from cove.server.e2b.protocol import resolve
from cove.server.e2b.rpc import Caller, Message, Unary, Wire, decode
from cove.wire.connect import Code, ConnectError

SERVICE: Final = "/filesystem.Filesystem/"
# Each entry is looked at on its own: its owner, and where a link leads.
_MOST_ENTRIES: Final = 20_000
_MOST_DEPTH: Final = 1000
_KINDS: Final[Mapping[FileKind, str]] = {
    FileKind.FILE: "FILE_TYPE_FILE",
    FileKind.DIRECTORY: "FILE_TYPE_DIRECTORY",
}


class _Path(Wire):
    path: str = ""


class _ListDir(Wire):
    path: str = ""
    depth: int = 1


class _Move(Wire):
    source: str = ""
    destination: str = ""


class FilesystemService:
    """The files of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._files = sandbox.files
        self.calls: Mapping[str, Unary] = {
            "Stat": self._stat,
            "ListDir": self._list_dir,
            "MakeDir": self._make_dir,
            "Move": self._move,
            "Remove": self._remove,
        }

    async def path(self, text: str, caller: Caller) -> str:
        """Return a path of a request made absolute."""
        path = resolve(text, await home_of(self._sandbox, caller.user))
        return posixpath.normpath(path).replace("//", "/") if ".." not in path.split("/") else path

    async def _stat(self, body: bytes, caller: Caller) -> Message:
        path = await self.path(decode(body, _Path).path, caller)
        return {"entry": await self.describe(path, caller)}

    async def describe(self, path: str, caller: Caller) -> Message:
        """Describe what is at a path."""
        info = await self._files.stat(path, user=caller.user)
        return await self._entry(info, await Names.of(self._sandbox), caller)

    async def _entry(self, info: FileInfo, names: Names, caller: Caller) -> dict[str, object]:
        found = await self._files.stat_owned(info.path, follow=False, user=caller.user)
        target = found
        if info.kind is FileKind.SYMLINK:
            target = await self._target(info.path, caller) or found
        entry: dict[str, object] = {
            "name": info.name,
            "path": info.path,
            "type": _kind(target),
            "size": str(target.size),
            "mode": stat.S_IMODE(target.mode) & 0o777,
            "permissions": stat.filemode(found.mode),
            "owner": names.user(found.user_id),
            "group": names.group(found.group_id),
            "modifiedTime": timestamp(info.modified_at),
        }
        if info.target is not None:
            entry |= {"symlinkTarget": info.target, "isSymlink": True}
        return entry

    async def _target(self, path: str, caller: Caller) -> Stat | None:
        try:
            return await self._files.stat_owned(path, follow=True, user=caller.user)
        except (FileNotFound, NotDirectory):
            return None

    async def _list_dir(self, body: bytes, caller: Caller) -> Message:
        wanted = decode(body, _ListDir)
        path = await self.path(wanted.path, caller)
        names = await Names.of(self._sandbox)
        entries: list[dict[str, object]] = []
        for info in await self._walk(path, min(max(wanted.depth, 1), _MOST_DEPTH), caller):
            try:
                entry = await self._entry(info, names, caller)
            except (FileNotFound, NotDirectory):
                continue  # removed while we looked
            if entry["type"] != "FILE_TYPE_UNSPECIFIED":
                entries.append(entry)
        return {"entries": entries}

    async def _walk(self, top: str, depth: int, caller: Caller) -> list[FileInfo]:
        found: list[FileInfo] = []
        level = [await self._root(top, caller)]
        for _ in range(depth):
            below: list[FileInfo] = []
            for directory in level:
                try:
                    below += await self._files.list(directory, user=caller.user)
                except (FileNotFound, NotDirectory):
                    if directory == top:
                        raise
                if len(found) + len(below) > _MOST_ENTRIES:
                    raise ConnectError(
                        Code.RESOURCE_EXHAUSTED,
                        f"{top} has more than {_MOST_ENTRIES} entries: list its directories one by one",
                    )
            found += below
            level = [each.path for each in below if each.kind is FileKind.DIRECTORY]
            if not level:
                break
        return sorted(found, key=lambda info: info.path)

    async def _root(self, path: str, caller: Caller) -> str:
        found = await self._files.stat_owned(path, follow=True, user=caller.user)
        if not found.is_directory:
            raise ConnectError(Code.INVALID_ARGUMENT, f"{path} is not a directory")
        return path

    async def _make_dir(self, body: bytes, caller: Caller) -> Message:
        path = await self.path(decode(body, _Path).path, caller)
        there = await self._target(path, caller)
        if there is not None and there.is_directory:
            raise ConnectError(Code.ALREADY_EXISTS, f"{path} exists already")
        try:
            await self._files.mkdir(path, user=caller.user)
        except (FileExists, NotDirectory) as error:
            raise ConnectError(Code.INVALID_ARGUMENT, error.message) from None
        return {"entry": await self.describe(path, caller)}

    async def _move(self, body: bytes, caller: Caller) -> Message:
        wanted = decode(body, _Move)
        source, destination = await self.path(wanted.source, caller), await self.path(wanted.destination, caller)
        await self._files.stat(source, user=caller.user)
        await self._files.mkdir(posixpath.dirname(destination) or "/", user=caller.user)
        await self._files.rename(source, destination, user=caller.user)
        return {"entry": await self.describe(destination, caller)}

    async def _remove(self, body: bytes, caller: Caller) -> Message:
        path = await self.path(decode(body, _Path).path, caller)
        try:
            await self._files.remove(path, user=caller.user)
        except IsDirectory:
            await self._files.remove_tree(path, user=caller.user)
        except (FileNotFound, NotDirectory):
            pass  # what is not there is fine
        return {}


def _kind(found: Stat) -> str:
    if found.is_directory:
        return _KINDS[FileKind.DIRECTORY]
    return _KINDS[FileKind.FILE] if found.is_file else "FILE_TYPE_UNSPECIFIED"


def timestamp(moment: datetime) -> str:
    """Return a time as RFC 3339 has it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
