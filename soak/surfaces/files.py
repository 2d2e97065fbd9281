"""A directory whose files are known."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import aclosing, suppress

from cove import AsyncSandbox
from cove.errors import FileNotFound, NoSpace
from cove.model import FileEventKind
from soak.faults import Fault
from soak.hand import Hand, Step, Surface
from soak.model import check
from soak.possible import Possible, Violation
from soak.trees import Tree, copy_tree, settle

_NAMES = tuple(f"file-{number}" for number in range(6))
_SIZES = (0, 1, 100, 5_000, 300_000)
_FILLING = 64 << 20


class FileTree(Surface):
    """Written, read, renamed, removed, listed, watched. A file that is not there is None."""

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        top = "/workspace" if hand.subject.spec.image == "host" else "/etc"  # of an image, the system itself
        self.directory = f"{top}/{hand.name.replace('/', '-')}"
        self._files: dict[str, Possible[bytes | None]] = {name: Possible[bytes | None](None) for name in _NAMES}
        self._was_struck = False

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        return {
            self._write: 4,
            self._append: 2,
            self._read: 4,
            self._remove: 1,
            self._rename: 1,
            self._copy: 1,
            self._list: 2,
            self._watch: 0.7,
            self._replace_inside: 1,
            self._fill: 0.5 if self.hand.subject.disk else 0,
        }

    def forget(self) -> None:
        """What was being written when the sandbox ended may have left a file with a name of its own."""
        self._was_struck = True

    def remember(self) -> Tree:
        """What is known of all files now."""
        return copy_tree(self._files)

    def become(self, tree: Tree) -> None:
        """All files are as they were then."""
        self._files = copy_tree(tree)

    def gone(self) -> None:
        """No file is there."""
        for file in self._files.values():
            file.become(None)

    async def settle(self, subject: str, *states: Tree) -> None:
        """After a change that was not answered all files are those of one state."""
        found = await self.hand.insist("read-all", lambda: read_all(self.hand.sandbox, self.directory))
        assert found is not None
        self._files = settle(found, subject, *states)

    async def change(self) -> None:
        """Any change, answered or not."""
        await self.hand.random.choice((self._write, self._append, self._remove, self._rename, self._replace_inside))()

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _any(self) -> tuple[str, Possible[bytes | None]]:
        name = self.hand.random.choice(_NAMES)
        return name, self._files[name]

    def _content(self) -> bytes:
        return self.hand.random.randbytes(self.hand.random.choice(_SIZES))

    async def _write(self) -> None:
        name, file = self._any()
        content = self._content()
        written = self.hand.sandbox.files.write(self._path(name), content)
        answer = await self.hand.call(f"write {name} {len(content)}", written)
        if answer.is_done:
            file.become(content)
        else:
            file.may_become(content)

    async def _append(self) -> None:
        name, file = self._any()
        content = self.hand.random.randbytes(50)
        answer = await self.hand.call(f"append {name}", self.hand.sandbox.files.append(self._path(name), content))
        may_be_empty = not answer.is_done and None in file.values
        file.change(lambda old: (old or b"") + content, is_certain=answer.is_done)
        if may_be_empty:
            file.may_become(b"")  # it was made, and nothing was written yet

    async def _read(self) -> None:
        await self._observe(*self._any())

    async def _observe(self, name: str, file: Possible[bytes | None], *, is_steady: bool = False) -> None:
        reading = self.hand.sandbox.files.read(self._path(name))
        answer = await self.hand.call(f"read {name}", reading, FileNotFound, is_steady=is_steady)
        if answer.is_certain:
            file.observe(None if answer.error is not None else answer.value, name)

    async def _remove(self) -> None:
        name, file = self._any()
        answer = await self.hand.call(f"remove {name}", self.hand.sandbox.files.remove(self._path(name)), FileNotFound)
        if answer.is_certain and answer.error is not None:
            file.observe(None, name)
        elif answer.is_certain:
            file.become(None)
        else:
            file.may_become(None)

    async def _rename(self) -> None:
        (old_name, old), (new_name, new) = self._any(), self._any()
        if old is new:
            return
        renamed = self.hand.sandbox.files.rename(self._path(old_name), self._path(new_name))
        answer = await self.hand.call(f"rename {old_name} {new_name}", renamed, FileNotFound)
        if answer.is_certain and answer.error is not None:
            old.observe(None, old_name)
            return
        contents = [content for content in old.values if content is not None]
        check("what is not there cannot be renamed", bool(contents) or not answer.is_done, old_name)
        if answer.is_done:
            self._files[new_name] = Possible[bytes | None](*contents)
            old.become(None)
        elif contents:
            new.may_become(*contents)
            old.may_become(None)

    async def _copy(self) -> None:
        (old_name, old), (new_name, new) = self._any(), self._any()
        if old is new or not old.is_certain or old.certain is None:
            return
        copied = self.hand.sandbox.files.copy(self._path(old_name), self._path(new_name))
        answer = await self.hand.call(f"copy {old_name} {new_name}", copied)
        if answer.is_done:
            new.become(old.certain)
        else:
            new.may_become(old.certain, None)
            await self._settle(new_name, new)

    async def _settle(self, name: str, file: Possible[bytes | None]) -> None:
        """A copy that nobody waited for may be there in part: make the file new."""
        content = self._content()
        await self.hand.insist(f"write {name} anew", lambda: self.hand.sandbox.files.write(self._path(name), content))
        file.become(content)

    async def _list(self) -> None:
        await self._observe_names()

    async def _observe_names(self, *, is_steady: bool = False) -> None:
        listing = self.hand.sandbox.files.list(self.directory)
        answer = await self.hand.call("list", listing, FileNotFound, is_steady=is_steady)
        if not answer.is_certain:
            return
        names = {info.name for info in answer.value or ()}
        left = {name for name in names - set(_NAMES) if not (self._was_struck and name.startswith(".cove-"))}
        check("nothing else is in the directory", not left, left)
        for name, file in self._files.items():
            if (name in names) and all(content is None for content in file.values):
                raise Violation(f"{name} was removed and is listed")
            if (name not in names) and None not in file.values:
                raise Violation(f"{name} is not listed: {file!r}")

    async def _replace_inside(self) -> None:
        """A command inside and the file API see the same."""
        name, file = self._any()
        text = f"by a command {self.hand.number()}"
        command = f"mkdir -p {self.directory} && printf %s '{text}' > {self._path(name)}"
        answer = await self.hand.call(f"exec printf > {name}", self.hand.sandbox.exec(command))
        if answer.is_done:
            check(command, answer.get().ok, answer.value)
            file.become(text.encode())
        else:
            file.may_become(text.encode(), b"")

    async def _watch(self) -> None:
        name, file = self._any()
        content = self._content()
        answer = await self.hand.call(f"watch {name}", self._write_watched(name, content))
        if answer.is_done:
            file.become(content)
        else:
            file.may_become(content)

    async def _write_watched(self, name: str, content: bytes) -> None:
        files = self.hand.sandbox.files
        await files.mkdir(self.directory)
        async with aclosing(files.watch(self.directory)) as events:
            first = await anext(events)
            check("a watch says when it watches", first.kind is FileEventKind.WATCHING, first)
            await files.write(self._path(name), content)
            async with asyncio.timeout(20):
                async for event in events:
                    if event.path.endswith(name):
                        return

    async def _fill(self) -> None:
        """A full disk costs what is written, not what is there; without a file system of its own, all that runs."""
        if os.geteuid() != 0:
            self.hand.subject.strike(Fault.EVERYTHING_INSIDE_KILLED)
        path = f"{self.directory}/filling"
        command = f"mkdir -p {self.directory}; head -c {_FILLING} /dev/zero > {path}"
        answer = await self.hand.call("exec fill", self.hand.sandbox.exec(command), is_steady=True)
        if answer.is_done:
            check("a full disk is noticed", not answer.get().ok or os.geteuid() != 0, answer.value)
            name, file = self._any()
            content = self.hand.random.randbytes(2_000_000)
            written = self.hand.sandbox.files.write(self._path(name), content)
            full = await self.hand.call(f"write {name} on a full disk", written, NoSpace, is_steady=True)
            if not full.is_certain:
                file.may_become(content)
            elif full.error is None:
                file.become(content)
        await self.hand.insist("exec rm", lambda: self.hand.sandbox.exec(f"rm -f {path}"))
        if os.geteuid() != 0:
            self.hand.subject.ended()

    async def verify(self) -> None:
        """See Surface."""
        await self._observe_names(is_steady=True)
        for name, file in self._files.items():
            await self._observe(name, file, is_steady=True)

    async def empty(self) -> None:
        """See Surface."""
        removed = self.hand.sandbox.files.remove_tree(self.directory)
        answer = await self.hand.call("remove-tree", removed, FileNotFound, is_steady=True)
        for file in self._files.values():
            if answer.is_certain:
                file.become(None)
            else:
                file.may_become(None)


async def read_all(sandbox: AsyncSandbox, directory: str) -> dict[str, bytes | None]:
    """All files of a directory, in any sandbox; nothing else may be there."""
    names: set[str] = set()
    with suppress(FileNotFound):
        names = {info.name for info in await sandbox.files.list(directory) if not info.name.startswith(".cove-")}
    check("nothing else is in the directory", names <= set(_NAMES), names)
    found: dict[str, bytes | None] = dict.fromkeys(_NAMES)
    for name in sorted(names):
        found[name] = await sandbox.files.read(f"{directory}/{name}")
    return found
