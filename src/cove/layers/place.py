"""Layers of one sandbox on disk: its upper, and what that stands on.

A new sandbox has its directories at its place, plain. `convert` makes an upper of them, which changes nothing for who
is inside: a bind mount follows a directory that is renamed. From then on `layers.json` says what is what, and is
written before anything is moved: `recover` finishes what a killed program had begun. All calls here block.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.etc import SYNTHETIC_ETC
from cove.core.identifier import new_identifier
from cove.layers.merging import NewOwners, merge_layers
from cove.layers.record import PARTS, ROOT, Layer, Stack, System
from cove.layers.store import STACK, LayerStore, is_of_image, read_stack
from cove.linux.path_walk import admit_group
from cove.local.state import replace_file

_DISK = "disk"
# Directories of a root that are mount points: real ones in every upper, whatever an image has there.
_ROOT_DIRECTORIES = {
    "": 0o755,
    "etc": 0o755,
    "proc": 0o555,
    "dev": 0o755,
    "run": 0o755,
    "tmp": 0o1777,
    "workspace": 0o755,
    "home": 0o755,
    "home/user": 0o755,
}


# Files of /etc that tell about the network of this one sandbox.
ROOT_FILES = ("hosts", "hostname", "resolv.conf")


# An upper, its layers, bottom first, their parts, and the system they have.
Give = Callable[[Path, Sequence[Path], Sequence[str], System], None]


@dataclass(slots=True)
class PlaceLayers:
    """The stack of the sandbox at a place that its caller has locked; None while its directories are plain.

    Where it `copies`, layers cannot be shown: its upper has all files, and its stack no layers. `check` raises when
    nobody waits for such a copy any more. Where owners on disk are only recorded, `give` gives files of layers to whom
    they belong, in a new upper, and `remove` removes what is others'.
    """

    place: Path
    user_id: int | None
    store: LayerStore
    stack: Stack | None = None
    on_disk_image: bool = False
    users: int = 1
    copies: bool = False
    check: Callable[[], None] = lambda: None
    give: "Give | None" = None
    remove: Callable[[str], None] = remove_tree
    _given: frozenset[str] = frozenset()

    def recover(self, *, on_disk_image: bool = False) -> None:
        """Read the stack, finish what was begun, and undo a transaction whose program is gone.

        From a disk image, a file system of the sandbox's own, nothing can be renamed to where layers are.
        """
        self.on_disk_image = on_disk_image
        self.stack = read_stack(self.place)
        if self.stack is None:
            return
        self._move_parts(self.stack.upper)
        self._adopt_layers()
        for id in self.stack.layers:
            self.store.tidy(id)
        if self.stack.undo is not None:
            self._empty_upper(self.stack.upper)
            self.commit(self.stand_on(msgspec.structs.replace(self.stack, undo=None), self.stack.undo))
        elif self._is_copied(self.stack) and self.stack.layers:
            upper = self._fill_upper(self.stack.layers, self.stack.upper)
            self.commit(msgspec.structs.replace(self.stack, layers=(), upper=upper))
        self.drop_others()

    def _empty_upper(self, id: str) -> None:
        """Remove what a transaction that is undone has written: what it took of a full disk, its end may need."""
        for entry in os.scandir(self.upper_path(id) / "data"):
            self.remove(entry.path)

    def stand_on(self, stack: Stack, layers: Sequence[str]) -> Stack:
        """Return the stack on these layers with a new upper: nothing on top of them, or a copy of all they have."""
        if self._is_copied(stack):
            return msgspec.structs.replace(stack, layers=(), upper=self._fill_upper(layers))
        upper = self.make_upper(layers, stack.system)
        return msgspec.structs.replace(stack, layers=tuple(layers), upper=upper)

    def _is_copied(self, stack: Stack) -> bool:
        """A root can only be shown."""
        return self.copies and stack.system is None

    def begin(self, layers: Sequence[str], snapshot: str | None = None, system: System | None = None) -> None:
        """Let a new sandbox stand on these layers. The caller holds them."""
        self.commit(self.stand_on(Stack(upper="", base=tuple(layers), snapshot=snapshot, system=system), layers))

    def convert(self) -> Stack:
        """Make an upper of plain directories. Idempotent."""
        if self.stack is None:
            upper = self._new_upper()
            self.commit(Stack(upper=upper))
            self._move_parts(upper)
        assert self.stack is not None
        return self.stack

    @property
    def directories(self) -> tuple[Path, ...]:
        """Return the directories that the sandbox writes to."""
        top = self.place if self.stack is None else self.upper_path(self.stack.upper) / "data"
        return tuple(top / part for part in (*PARTS, *self._roots(self.system)))

    def count_own_files(self) -> int:
        """Count what lies at the top of the directories that the sandbox writes to, but for what was put there."""
        *parts, last = self.directories
        if self.system is None:
            return sum(len(os.listdir(path)) for path in (*parts, last))
        furnished = {*_ROOT_DIRECTORIES, *(f"etc/{name}" for name in ROOT_FILES)}
        found = self._top_names(last)
        return sum(len(os.listdir(path)) for path in parts) + len(found - furnished - self._given)

    @property
    def system(self) -> System | None:
        """Return the system of the image that the sandbox stands on; None on the host's."""
        return None if self.stack is None else self.stack.system

    @staticmethod
    def _roots(system: System | None) -> tuple[str, ...]:
        return () if system is None else (ROOT,)

    def upper_path(self, id: str) -> Path:
        """Return the directory of an upper: `data` and `work`."""
        return self._uppers / id

    @property
    def _uppers(self) -> Path:
        return (self.place / _DISK if self.on_disk_image else self.place) / "uppers"

    def make_upper(self, layers: Sequence[str], system: System | None) -> str:
        """Make an empty upper whose directories look as those of the layers do: their modes are the upper's."""
        id = self._new_upper()
        try:
            self._furnish_upper(self.upper_path(id) / "data", layers, system)
            if system is not None and self.give is not None:
                self._give_files(self.give, id, layers, system)
        except BaseException:
            self.remove(str(self.upper_path(id)))
            raise
        return id

    def _give_files(self, give: Give, id: str, layers: Sequence[str], system: System) -> None:
        """Give files to whom they belong, by an overlay: the next one needs a work directory of its own."""
        path = self.upper_path(id)
        give(path, [self.store.data(each) for each in layers], (*PARTS, ROOT), system)
        self._given = self._top_names(path / "data" / ROOT)
        self._renew(path / "work")

    @staticmethod
    def _top_names(root: Path) -> frozenset[str]:
        return frozenset((*os.listdir(root), *(f"etc/{name}" for name in os.listdir(root / "etc"))))

    def _furnish_upper(self, data: Path, layers: Sequence[str], system: System | None) -> None:
        tops = self._tops(layers)
        for part in PARTS:
            path = f"{data}/{part}"
            self._make(path)
            like = next((found for top in tops if (found := _look(f"{top}/{part}")) is not None), None)
            if like is not None:
                os.chmod(path, stat.S_IMODE(like.st_mode))
                os.utime(path, ns=(like.st_atime_ns, like.st_mtime_ns))
        if system is not None:
            self._furnish_root(data / ROOT, is_new=is_of_image(layers[-1]))
            self._give_parts(data, system)

    def _give_parts(self, data: Path, system: System) -> None:
        """Let the user of the sandbox have its own directories, where it is not the only one; all may enter them."""
        if self.users > 1:
            for path in (data / "workspace", data / "home", data / ROOT / "workspace", data / ROOT / "home" / "user"):
                if self.user_id is not None:
                    os.chown(path, self.user_id + system.user_id, self.user_id + system.group_id)
                path.chmod(path.stat().st_mode | 0o055)

    def _fill_upper(self, layers: Sequence[str], top: str | None = None) -> str:
        """Make an upper with a copy of all files that these layers, bottom first, show, below another upper."""
        id = self._new_upper()
        data = self.upper_path(id) / "data"
        sources = [self.store.data(each) for each in layers]
        sources += [] if top is None else [self.upper_path(top) / "data"]
        try:
            if sources:
                owners = self.owners(layers, has_top=top is not None)
                merge_layers(sources, data, is_bottom=True, owners=owners, check=self.check)
            for part in PARTS:
                if not (data / part).is_dir():
                    self._make(data / part)
        except BaseException:
            remove_tree(str(self.upper_path(id)))
            raise
        return id

    def _furnish_root(self, root: Path, *, is_new: bool) -> None:
        """Make the mount points; on an image that nobody has written to, also the files of this machine's network."""
        for name, mode in _ROOT_DIRECTORIES.items():
            path = f"{root}/{name}"
            self._make(path)
            os.chmod(path, mode)
        if is_new:
            (root.parent / "tmp").chmod(_ROOT_DIRECTORIES["tmp"])
        for name in ROOT_FILES if is_new else ():
            self._write(root / "etc" / name, SYNTHETIC_ETC[name].encode())

    def _tops(self, layers: Sequence[str]) -> list[str]:
        """Return where the files of layers are, top first: the topmost may still be the upper that it was."""
        own = [f"{self.upper_path(layers[-1])}/data"] if layers else []
        return [*own, *(str(self.store.data(id)) for id in reversed(layers))]

    def _new_upper(self) -> str:
        self._uppers.mkdir(mode=0o700, exist_ok=True)
        admit_group(self._uppers, self.user_id)
        id = new_identifier()
        path = self.upper_path(id)
        try:
            for each in (path, path / "data", path / "work"):
                self._make(each)
        except BaseException:
            remove_tree(str(path))
            raise
        return id

    def _make(self, path: Path | str) -> None:
        os.mkdir(path, 0o700)
        if self.user_id is not None:
            os.chown(path, self.user_id, self.user_id)

    def _write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o644)
        if self.user_id is not None:
            os.chown(path, self.user_id, self.user_id)

    def renew_work(self) -> None:
        """Give the upper a new work directory: a volatile overlay refuses one that was used before."""
        assert self.stack is not None
        self._renew(self.upper_path(self.stack.upper) / "work")

    def _renew(self, work: Path) -> None:
        self.remove(str(work))
        self._make(work)

    def commit(self, stack: Stack) -> None:
        """Write down what the sandbox stands on from here on."""
        replace_file(self.place / STACK, msgspec.json.encode(stack))
        self.stack = stack

    @contextmanager
    def trying(self, stack: Stack) -> Iterator[Callable[[], None]]:
        """Stand on another stack; gives a function that goes back, which a full disk does not keep from that."""
        before, old = self.stack, self.place / f".{STACK}.before"
        assert before is not None
        replace_file(old, msgspec.json.encode(before))

        def go_back() -> None:
            if old.exists():
                old.rename(self.place / STACK)
            self.stack = before

        try:
            self.commit(stack)
            yield go_back
        except BaseException:
            go_back()
            raise
        finally:
            old.unlink(missing_ok=True)

    def seal(self) -> None:
        """Take uppers that have become layers into the store."""
        self._adopt_layers()

    def drop(self, upper: str) -> None:
        """Remove an upper that the sandbox does not stand on any more."""
        self.remove(str(self.upper_path(upper)))

    def drop_others(self) -> None:
        """Remove uppers that nothing needs: of a swap that failed, or that was undone."""
        assert self.stack is not None
        for entry in os.scandir(self._uppers) if self._uppers.exists() else ():
            if entry.name != self.stack.upper and entry.name not in self.stack.layers:
                self.remove(entry.path)

    def _adopt_layers(self) -> None:
        assert self.stack is not None
        for at, id in enumerate(self.stack.layers):
            path = self.place / "uppers" / id
            if path.exists():
                parent = self.stack.layers[at - 1] if at else None
                self.store.adopt(path, self.describe(id, parent))

    def owners(self, layers: Sequence[str], *, has_top: bool = False) -> NewOwners | None:
        """Return whose files a merge of these layers, and an upper, has; None where all are the caller's own."""
        if self.user_id is None:
            return None
        before = [self.store.read(id).owner for id in layers] + [self.user_id] * has_top
        return NewOwners(self.user_id, self.users, before)

    def describe(self, id: str, parent: str | None) -> Layer:
        """Describe a layer of this sandbox's files."""
        owner, users = (os.geteuid(), 1) if self.user_id is None else (self.user_id, self.users)
        return Layer(id=id, owner=owner, users=users, created_at=datetime.now(UTC), parent=parent)

    def _move_parts(self, upper: str) -> None:
        data = self.upper_path(upper) / "data"
        top = self.place / _DISK if self.on_disk_image else self.place
        for part in PARTS:
            if not (data / part).exists() and (top / part).is_dir():
                _move(top / part, data / part)


def _look(path: str) -> os.stat_result | None:
    """Return the facts of a directory; None where there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat.S_ISDIR(found.st_mode) else None


def _move(source: Path, target: Path) -> None:
    """Move a directory also where its owner may not write to it: then its entry `..` could not be changed."""
    mode = stat.S_IMODE(source.stat().st_mode)
    if not mode & stat.S_IWUSR:
        source.chmod(mode | stat.S_IWUSR)
    source.rename(target)
    target.chmod(mode)
