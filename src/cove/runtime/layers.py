"""The layers of a living sandbox: seal what it has written, and put others in their place, while it is frozen.

Theory of operation. What a sandbox has written is its upper. To seal it, everything inside is frozen, the mounts are
made read-only, and an overlay with a new upper takes their place; then the old upper is a layer that nobody can write
any more: the kernel refuses to make a mount read-only while somebody has a file open for writing. That takes the time
of a few mounts, whatever there is. A process that merely stands in the old mount, or reads from it, would not see what
is written later. Our own shells and executors that wait are told to enter their directories again; for any other, for
a writer, or where something is mounted over a part, the upper is copied instead, and the sandbox goes on with the one
that it has.

The record of the place is written before the mounts are changed, and the old one comes back when that fails. A
program that is killed between finds the same files whichever of the two it reads: an upper that has become a layer,
with an empty one on top, or the upper itself.

All calls here block, for a bounded time; a copy takes as long as there are bytes.
"""

import os
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.attach import Action, MountBusy, ShowLayers
from cove.core.identifier import new_identifier
from cove.core.jail import HOME, WORKSPACE, copy_mark
from cove.core.squash import MOST_LAYERS
from cove.errors import LimitExceeded, SandboxUnavailable, UserUnavailable
from cove.images.record import ImageRecord
from cove.images.store import ImageStore
from cove.images.system import make_system
from cove.layers.place import PlaceLayers
from cove.layers.record import ROOT, Stack, System
from cove.linux.disk_usage import DiskUsage, measure_disk
from cove.linux.mounts import detach_mount, map_owner, owner_mapping
from cove.linux.references import (
    Holders,
    MountPoint,
    bound_sockets,
    find_holders,
    mount_table,
    pid_inside,
    read_mounts,
)
from cove.model import SandboxSpec, SnapshotMethod
from cove.model.spec import HOST_IMAGE
from cove.runtime.attachment import Attachment
from cove.runtime.freeze import frozen
from cove.runtime.home import Place
from cove.runtime.jail import Jail
from cove.runtime.machine import Machine
from cove.runtime.slices import SliceFiles
from cove.runtime.tree_copy import TreeCopy
from cove.runtime.usage import frozen_processes_of

INSIDE: Mapping[str, str] = {"workspace": WORKSPACE, "home": HOME, "tmp": "/tmp"}
INSIDE_IMAGE: Mapping[str, str] = {ROOT: "/", **INSIDE}
# The mounts that every jail begins with.
_FIRST_MOUNTS = ("/proc", "/dev", "/run", *INSIDE.values())


@dataclass(frozen=True, slots=True)
class Moved:
    """Processes of ours whose directory is another one now: pids inside, and where they stood."""

    standing: Mapping[int, str] = field(default_factory=dict)


class SandboxLayers:
    """The layers of one sandbox, for one caller at a time."""

    def __init__(self, machine: Machine, place: Place) -> None:
        self._machine = machine
        self.store = machine.home.layers
        self._copying = TreeCopy(copy_mark(place.key), place.user_id)
        self._mappings = ExitStack()
        self._mapped: dict[tuple[int, int], int] = {}
        copies = machine.snapshots is SnapshotMethod.COPY
        self.place = PlaceLayers(place.path, place.user_id, self.store, users=place.users, copies=copies)
        self.place.check = self._copying.check
        self.files = None if place.slice is None else SliceFiles(place.slice)
        if self.files is not None:
            self.place.give, self.place.remove = self.files.give, self._remove
        self.image: ImageRecord | None = None  # one that has no name yet

    @property
    def method(self) -> SnapshotMethod:
        """Return how this sandbox's files are kept: what lies on a disk of its own can only be copied from there."""
        is_copied = self.place.on_disk_image or self.files is not None
        return SnapshotMethod.COPY if is_copied else self._machine.snapshots

    def _remove(self, path: str) -> None:
        """Remove a tree; what belongs to users of a slice, as root among them."""
        try:
            remove_tree(path)
        except PermissionError:
            if self.files is None:
                raise
            self.files.remove(path)

    def measure(self, paths: list[str]) -> DiskUsage:
        """Measure what the sandbox's files take. Blocks."""
        usage = measure_disk(paths)
        if usage.is_partial and self.files is not None:
            with suppress(SandboxUnavailable):  # what cannot be measured ends the sandbox
                return self.files.measure(paths)
        return usage

    def prepare(self, spec: SandboxSpec, *, on_disk_image: bool) -> None:
        """Find out what the sandbox stands on before its jail is started; a new one on a snapshot or an image."""
        self.place.recover(on_disk_image=on_disk_image)
        if self.place.stack is not None:
            self.place.renew_work()
        elif spec.snapshot is not None:
            with self.store.holding():
                snapshot = self.store.find(spec.snapshot)
                system = None if snapshot.system is None else self._with_sudo(snapshot.system, spec)
                self.place.begin(snapshot.layers, snapshot.id, system)
        elif spec.image != HOST_IMAGE:
            with self.store.holding():
                image = self.image or ImageStore(self._machine.home.path, self.store).find(spec.image)
                system = self._with_sudo(make_system(image, self.store, spec.user), spec)
                self.place.begin(image.layers, system=system)

    def _with_sudo(self, system: System, spec: SandboxSpec) -> System:
        if spec.sudo and self.place.users == 1 and system.user_id != 0:
            raise UserUnavailable(
                f"{system.user} cannot have sudo here: Cove cannot map further users. Run Cove as root, or create the "
                "sandbox with user='root'"
            )
        return msgspec.structs.replace(system, sudo=spec.sudo)

    @property
    def are_shown(self) -> bool:
        """Return whether there is more to see than the upper."""
        return self.place.stack is not None and bool(self.place.stack.layers)

    @contextmanager
    def shown(self) -> Iterator[list[Action]]:
        """Hold the action that shows the layers in a jail that is being started."""
        stack = self.place.stack
        assert stack is not None
        with self._sources(stack) as (layers, upper):
            yield [ShowLayers(layers, upper, self.inside, () if stack.system is None else _FIRST_MOUNTS)]

    @property
    def inside(self) -> Mapping[str, str]:
        """Return the parts of this sandbox's layers, and where they are inside."""
        return INSIDE if self.place.system is None else INSIDE_IMAGE

    def seal(self, jail: Jail, ours: Collection[int], snapshot: str | None = None) -> tuple[tuple[str, ...], Moved]:
        """Make layers of everything up to now; returns all of them. `ours` are pids inside that may be moved.

        The sandbox then stands on that `snapshot`, unless its files were copied.
        """
        with self._attaching(self.method is not SnapshotMethod.COPY) as attachment:
            stack = self.place.convert()
            if attachment is None:
                with frozen(jail.groups, jail.pid):
                    return self._copy(jail, stack), Moved()
            new = self._sealed(stack, snapshot)
            with self._showing(attachment, jail, new) as show, frozen(jail.groups, jail.pid):
                held = _Held.find(jail, self.inside)
                can_seal = held.has_all(self.inside) and not held.strangers(ours)
                moved = show(held, sealed=True) if can_seal else None
                if moved is None:
                    self._discard(new)
                    return self._copy(jail, stack), Moved()
            self.place.seal()
        return new.layers, moved

    def _sealed(self, stack: Stack, snapshot: str | None) -> Stack:
        """Return the stack with what is its upper now as the last of its layers."""
        below = stack.shorten((*stack.layers, stack.upper))
        if len(below) > MOST_LAYERS:
            raise LimitExceeded(
                f"the sandbox stands on {MOST_LAYERS} layers, which cannot be merged: restore a snapshot"
            )
        return msgspec.structs.replace(
            stack,
            layers=below,
            base=stack.shorten(stack.base),
            upper=self.place.make_upper(below, stack.system),
            snapshot=snapshot or stack.snapshot,
        )

    def replace(self, jail: Jail, new: Stack, ours: Collection[int]) -> Moved:
        """Let the sandbox stand on other layers, or the same, with nothing on top: what it has written is gone.

        Processes that hold the old files end, but for those of `ours` that only stand there. The caller drops the old
        upper.
        """
        with self._attaching() as attachment:
            assert attachment is not None
            stack = self.place.convert()
            new = msgspec.structs.replace(new, upper=self.place.make_upper(new.layers, new.system))
            with self._showing(attachment, jail, new) as show, frozen(jail.groups, jail.pid):
                held = _Held.find(jail, self.inside)
                for pid in held.strangers(ours):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)  # frozen: no other can have its pid
                moved = show(held, sealed=False)
                assert moved is not None  # only a mount that is to be sealed can be busy
        if self.place.on_disk_image:
            self.place.drop(stack.upper)  # it takes of what the sandbox may have
        return moved

    @contextmanager
    def _attaching(self, is_needed: bool = True) -> Iterator[Attachment | None]:
        """Begin with what takes most of the time: the start of who changes mounts in the jail."""
        if not is_needed:
            yield None
            return
        attachment = Attachment(self._machine, self.place.user_id, [ShowLayers((), "", self.inside)])
        try:
            attachment.prepare()
            yield attachment
        finally:
            attachment.close()

    @contextmanager
    def _showing(self, attachment: Attachment, jail: Jail, new: Stack) -> Iterator["_Show"]:
        """Have all ready to show the new stack in a frozen jail. The old one stays, and holds again, if that fails."""

        def show(held: "_Held", *, sealed: bool) -> Moved | None:
            attachment.actions = [ShowLayers(layers, upper, held.parts, held.below, sealed=sealed)]
            before = mount_table(jail.agent_pid)
            with self.place.trying(new) as go_back:
                try:
                    attachment.perform(jail.target)
                except MountBusy:
                    go_back()
                    return None
                except SandboxUnavailable:
                    if mount_table(jail.agent_pid) != before:
                        jail.kill_agent()  # the helper died in the middle: another jail starts on what the record says
                    raise
            return Moved({pid_inside(pid): path for pid, path in held.holders.standing.items()})

        try:
            with self._sources(new) as (layers, upper):
                attachment.wait_ready()
                yield show
        except BaseException:
            self._discard(new)
            raise

    def _discard(self, new: Stack) -> None:
        """Remove the upper of a stack that was not taken."""
        if self.place.stack is None or self.place.stack.upper != new.upper:
            self.place.remove(str(self.place.upper_path(new.upper)))

    def _copy(self, jail: Jail, stack: Stack) -> tuple[str, ...]:
        """Copy the upper of a frozen sandbox into a new layer."""
        id = new_identifier()
        source, target = self.place.upper_path(stack.upper) / "data", self._new_copy(id)
        try:
            self._copying.run(jail, str(source), str(target / "data"))
            if self.files is not None:
                self.files.record(str(target / "data"))
            self.store.adopt(target, self.place.describe(id, stack.layers[-1] if stack.layers else None))
        except BaseException:
            self._remove(str(target))
            raise
        return stack.shorten((*stack.layers, id))

    def _new_copy(self, id: str) -> Path:
        """Make the directory of a new layer; one that has files of others for a while lies with the sandbox's own."""
        if self.files is None:
            return self.store.building()
        target = self.place.upper_path(id)
        target.mkdir(mode=0o700)
        return target

    def end_copy(self) -> None:
        """End a copy that is being made, and wait for that: the sandbox is destroyed, and nobody needs it."""
        self._copying.end()

    @contextmanager
    def _sources(self, stack: Stack) -> Iterator[tuple[list[str | int], str | int]]:
        """Hold layers and upper as something to mount: paths, or for root detached mounts with the right owner."""
        paths = [str(self.data(id)) for id in stack.layers]
        upper = str(self.place.upper_path(stack.upper))
        user = self.place.user_id
        if user is None:
            yield [*paths], upper
            return
        with ExitStack() as closing:
            owners = [self._owner(id, user) for id in stack.layers]
            mapped = {owner: self._map(owner, user) for owner in owners if owner[0] != user}
            layers = [_detach(path, mapped.get(owner), closing) for path, owner in zip(paths, owners, strict=True)]
            yield [*layers], _detach(upper, None, closing)

    def _map(self, owner: tuple[int, int], user: int) -> int:
        """Return the user namespace that maps an owner to our user: made once, and kept until `close`."""
        if owner not in self._mapped:
            self._mapped[owner] = self._mappings.enter_context(owner_mapping(owner[0], user, owner[1]))
        return self._mapped[owner]

    def close(self) -> None:
        """Let go of what is kept while the sandbox runs. It can be used again."""
        self._mapped.clear()
        self._mappings.close()

    def data(self, id: str) -> Path:
        """Return where the files of a layer are: one that was an upper until now is still there."""
        own = self.place.upper_path(id) / "data"
        return own if own.exists() else self.store.data(id)

    def _owner(self, id: str, user: int) -> tuple[int, int]:
        """Return the first owner of a layer's files, and of how many each has a number of its own here."""
        if not self.store.has(id):
            return user, self.place.users
        layer = self.store.read(id)
        return layer.owner, min(layer.users, self.place.users)


def _detach(path: str, namespace: int | None, closing: ExitStack) -> int:
    mount = detach_mount(path)
    closing.callback(os.close, mount)
    if namespace is not None:
        map_owner(mount, namespace, read_only=True)
    return mount


class _Show(Protocol):
    """Show the new stack; None, and nothing has changed, when a mount that is to be sealed is busy."""

    def __call__(self, held: "_Held", *, sealed: bool) -> Moved | None: ...


@dataclass(frozen=True, slots=True)
class _Held:
    """The mounts of a frozen jail that are to be changed, and who holds them.

    `parts` are those that show the sandbox's own files: over another one something else is mounted, which stays.
    `below` are other mounts below them.
    """

    parts: Mapping[str, str]
    below: Sequence[str]
    holders: Holders

    @classmethod
    def find(cls, jail: Jail, inside: Mapping[str, str]) -> "_Held":
        mounts = read_mounts(jail.agent_pid)
        parts = {name: path for name, path in inside.items() if _is_ours(path, mounts)}
        places = [path for path in parts.values() if path != "/"]
        under = [each for each in mounts if any(each.path.startswith(f"{path}/") for path in places)]
        ids = {each.id for each in (*under, *(each for each in mounts if each.path in parts.values()))}
        root = next((each.id for each in mounts if each.path == "/"), -1) if ROOT in parts else -1
        sockets = bound_sockets(jail.agent_pid, parts.values())
        pids = frozen_processes_of(jail.groups, jail.pid)
        holders = find_holders(pids, ids, agent=jail.agent_pid, sockets=sockets, root=root)
        below = _outermost([each.path for each in under])
        if ROOT in parts:
            below += _outermost([each.path for each in mounts if each.path != "/"])
        return cls(parts, below, holders)

    def has_all(self, inside: Mapping[str, str]) -> bool:
        """Return whether all parts can be sealed: one that something is mounted over can be written when that goes."""
        return len(self.parts) == len(inside)

    def strangers(self, ours: Collection[int]) -> list[int]:
        """Return who holds the files, but for those of ours that only stand there."""
        standing = [pid for pid in self.holders.standing if pid_inside(pid) not in ours]
        return [*self.holders.holding, *standing]


def _is_ours(path: str, mounts: Sequence[MountPoint]) -> bool:
    """Return whether nothing is mounted over it, or over a directory above it."""
    above = [each for each in mounts if each.path not in ("/", path) and path.startswith(f"{each.path}/")]
    return not above and sum(each.path == path for each in mounts) == 1


def _outermost(paths: Sequence[str]) -> list[str]:
    """Leave out what is mounted below another: it comes along."""
    return [path for path in dict.fromkeys(paths) if not any(path.startswith(f"{other}/") for other in paths)]
