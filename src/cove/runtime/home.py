"""The state directory on disk: directories of sandboxes, their locks and owners, and recovery after a crash.

Each sandbox has a directory named by a random key and holds a lock on it while it lives: a directory whose
lock is free belongs to a program that is gone. It is removed, unless it has a record: a server's sandbox outlives
its runtime. All calls here block; the runtime makes them in a thread.
"""

import os
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from cove.archive.remove_tree import remove_tree
from cove.core.identifier import new_identifier
from cove.core.jail import copy_mark, place_mark
from cove.core.users import RANGE_USERS
from cove.errors import SandboxUnavailable
from cove.layers.store import STACK, LayerStore
from cove.linux.cgroup import Group, Hierarchies, group_path
from cove.linux.file_lock import is_locked, make_locked, try_lock, waiting_lock
from cove.linux.forking import close_in_forked_child
from cove.linux.path_walk import admit_group, closed_directory
from cove.linux.pidfd import kill_orphans, kill_processes_of, start_time
from cove.linux.subordinate import SLICE_USERS, Slice
from cove.linux.user_map import are_mapped
from cove.local.api_keys import TENANTS
from cove.runtime.cgroups import SandboxGroups
from cove.runtime.disk import detach_disk
from cove.runtime.kept_journals import keep_journal
from cove.runtime.slices import SliceFiles
from cove.runtime.user_ids import FIRST_USER_ID, RANGES, USER_IDS, UserIds, read_note
from cove.runtime.user_ranges import UserRanges
from cove.runtime.user_slices import UserSlices

RECORD = "sandbox.json"
SOCKET = "runtime.sock"
LOCK = "lock"
USER = "user"
# Names that a state directory may have before its first use, from whoever prepares it.
_MAY_BE_THERE = frozenset(("lost+found", "python", "key", "cluster-token", "cluster-peer-key"))
_ELSEWHERE = "set COVE_HOME to a directory of your own that is empty, or that Cove has made"


@dataclass(frozen=True, slots=True)
class HostUser:
    """A user that does something for a sandbox outside; None for ourselves. `others` are further groups."""

    id: int | None
    group: int | None
    others: tuple[int, ...] = ()


class PlaceUsers(NamedTuple):
    """The users of a place, as `Place` has them."""

    user_id: int | None
    users: int = 1
    slice: Slice | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One sandbox's directory; `lock` is held open as long as it is in use.

    As root it has the host user `user_id` of its own. With `users` more than one that is root inside, and the numbers
    after it are the other users there. A plain user's can have a `slice`: root inside is then that user.
    """

    key: str
    path: Path
    lock: FileIO
    user_id: int | None
    users: int = 1
    slice: Slice | None = None

    def host_user(self, user: int, group: int) -> "HostUser":
        """Return the host user behind a user inside, who can pass the directory of the place."""
        others = () if self.user_id is None or self.users == 1 else (self.user_id,)
        return HostUser(self.host_id(user), self.host_id(group), others)

    def host_id(self, inside: int) -> int | None:
        """Return the host user, or group, behind a number inside; None where all are ourselves."""
        if self.user_id is None or self.users == 1:
            return self.user_id
        return self.user_id + inside

    def visitor(self, inside: int) -> int | None:
        """Return the host user to whom we cannot give files, only admit; None where all are ourselves, or root is."""
        return None if self.slice is None or inside == 0 else self.slice.host_user(inside)

    @property
    def workspace(self) -> Path:
        """Bound at /workspace."""
        return self.path / "workspace"

    @property
    def home(self) -> Path:
        """Bound at /home/user."""
        return self.path / "home"

    @property
    def tmp(self) -> Path:
        """Bound at /tmp."""
        return self.path / "tmp"

    @property
    def shell(self) -> Path:
        """Bound read-only for the sandbox: where its sessions' shells are spoken to."""
        return self.path / "shell"

    @property
    def logs(self) -> Path:
        """The directory for output that does not fit in memory."""
        return self.path / "logs"


class Home:
    """The state directory of this user; with a `tenant`, only what belongs to the tenant is seen."""

    def __init__(self, path: Path, tenant: str = "") -> None:
        self.path = path
        self.sandboxes = path / "sandboxes"
        self.empty = path / "empty"
        self.layers = LayerStore(path, tenant)
        self._users = UserIds(path / "users")
        self._ranges = UserRanges(self._users, self.sandboxes.name)
        self._slices = UserSlices(self.sandboxes)
        self._is_root = os.geteuid() == 0

    @property
    def tenant(self) -> str:
        """The tenant whose things are seen."""
        return self.layers.tenant

    @property
    def own(self) -> Path:
        """The directory for what nobody else sees: the tenant's, or all of it."""
        return self.path / TENANTS / self.tenant if self.tenant else self.path

    def belong_to(self, tenant: str) -> None:
        """Show what belongs to that tenant from here on."""
        self.layers.tenant = tenant

    def open(self) -> None:
        """Make the directories; as root they must be passable for the sandboxes' users."""
        try:
            self._make_directories()
        except OSError as error:
            raise SandboxUnavailable(
                f"cannot keep state in {self.path}: {error.strerror}. Set COVE_HOME to a directory you can write."
            ) from error

    def _make_directories(self) -> None:
        mode = 0o711 if self._is_root else 0o700
        self._claim(mode)
        # `sandboxes` comes first: by it the directory is known.
        for path in (
            self.sandboxes,
            self.empty,
            *(self.path / name for name in ("agent", "attach", "executor", "etc")),
        ):
            with suppress(FileExistsError):
                path.mkdir(mode=mode)
                path.chmod(mode)
        self.empty.chmod(0o555)
        self.layers.open()
        users = self.path / "users"
        users.mkdir(mode=0o700, exist_ok=True)
        users.chmod(0o700)
        closed = closed_directory(str(self.path)) if self._is_root else None
        if closed is not None:
            raise SandboxUnavailable(
                f"other users cannot enter {closed}: sandboxes run as users of their own and must reach {self.path}. "
                f"`chmod o+x {closed}`, or set COVE_HOME to a directory all of whose parents have that mode."
            )

    def _claim(self, mode: int) -> None:
        """Make it, or take an empty one. A directory in which others keep something is refused, and not touched."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.path.stat().st_uid != os.geteuid():
            raise SandboxUnavailable(f"{self.path} belongs to another user: {_ELSEWHERE}")
        there = set(os.listdir(self.path)) - _MAY_BE_THERE
        if there and (self.sandboxes.name not in there or self.path == self.path.parent):
            raise SandboxUnavailable(f"{self.path} holds what is not Cove's: {_ELSEWHERE}")
        if not there:
            self.path.chmod(mode)

    def allocate(self, *, many_users: bool = False, key: str | None = None) -> Place:
        """A new place with its own lock and, as root, its own user, or a range of users; with that key, or any."""
        path = self.sandboxes / (key or new_identifier())
        try:
            place = self._make_place(path)
            try:
                _sign(place.lock)
                place = self._with_users(place, many_users=many_users)
                self._furnish(place)
            except BaseException:
                self.release(place)
                raise
        except OSError as error:
            raise SandboxUnavailable(f"cannot prepare {path}: {error.strerror}") from error
        return place

    def _make_place(self, path: Path) -> Place:
        with self._changing_places():
            path.mkdir(mode=0o700)
            try:
                return Place(path.name, path, make_locked(path / LOCK), None)
            except BaseException:
                remove_tree(str(path))
                raise

    def _with_users(self, place: Place, *, many_users: bool) -> Place:
        """Reserve the users of a new place."""
        if self._is_root and not are_mapped(FIRST_USER_ID, RANGES * USER_IDS):
            raise SandboxUnavailable(
                f"root here is that of a user namespace without users from {FIRST_USER_ID} on, of which each sandbox "
                "has one: run Cove as another user of this container, or map those users into it"
            )
        if many_users and not self._is_root:
            slice = self._slices.allocate(place.key)
            return place if slice is None else replace(place, users=SLICE_USERS, slice=slice)
        if many_users:
            return replace(place, user_id=self._ranges.allocate(place.key), users=RANGE_USERS)
        return replace(place, user_id=self._users.allocate(place.key)) if self._is_root else place

    def take(self, key: str, hierarchies: Hierarchies) -> Place | None:
        """A place that was kept, as its files were left and with nothing else in it; None while another has it."""
        place = self._lock(key, hierarchies)
        if place is not None:
            self._hold_users(place)
            _sign(place.lock)
            self.refurnish(place)
        return place

    def _hold_users(self, place: Place) -> None:
        """Be sure that nobody else was given the users of a place that was kept."""
        if place.users > 1:
            try:
                if place.slice is not None:
                    self._slices.hold(place.key, place.slice)
                else:
                    assert place.user_id is not None
                    self._ranges.hold(place.key, place.user_id)
            except BaseException:
                place.lock.close()
                raise

    def remove(self, key: str, hierarchies: Hierarchies) -> None:
        """Remove a place that was kept; one that another has is left to that one."""
        place = self._lock(key, hierarchies)
        if place is not None:
            place.lock.truncate(0)  # whoever ends the holder of this lock must not end a program that only removes
            self.release(place)

    def _lock(self, key: str, hierarchies: Hierarchies) -> Place | None:
        path = self.sandboxes / key
        with self._changing_places():
            lock = try_lock(path / LOCK)
        if lock is None:
            return None
        _end_groups(hierarchies, key)
        (path / SOCKET).unlink(missing_ok=True)
        return self._kept(key, path, lock)

    def _kept(self, key: str, path: Path, lock: FileIO) -> Place:
        """Describe a place that another program has made."""
        return Place(key, path, lock, *self.users_of(key))

    def users_of(self, key: str) -> PlaceUsers:
        """Return the users of a place that another program has made: its note says how many it has."""
        path = self.sandboxes / key / USER
        note = read_note(path)
        if note and not self._is_root:
            return PlaceUsers(None, SLICE_USERS, Slice(*map(int, note.split())))
        first, _, users = note.partition(" ")
        if users:
            return PlaceUsers(int(first), int(users))
        return PlaceUsers(self._users.find(key, path) if self._is_root else None)

    def keep(self, place: Place) -> None:
        """Let go of the place; its files stay for whoever takes it again."""
        place.lock.close()

    def _furnish(self, place: Place) -> None:
        for directory in (place.workspace, place.home, place.tmp):
            directory.mkdir(mode=0o700)
            if place.user_id is not None:
                os.chown(directory, place.user_id, place.user_id)
        if place.user_id is not None:
            users = "" if place.users == 1 else f" {place.users}"
            (place.path / USER).write_text(f"{place.user_id}{users}")
        elif place.slice is not None:
            (place.path / USER).write_text(f"{place.slice.number} {place.slice.users} {place.slice.groups}")
        self._furnish_runtime(place)

    def _furnish_runtime(self, place: Place) -> None:
        place.logs.mkdir(mode=0o700)
        place.shell.mkdir(mode=0o700)
        for directory in (place.shell, place.path):
            admit_group(directory, place.user_id)
        if place.users > 1:
            place.shell.chmod(0o711)  # for all users of the sandbox: nobody else passes the directory above it

    def refurnish(self, place: Place) -> None:
        """Remove what belonged to sessions and processes that have ended with their jail."""
        remove_tree(str(place.logs))
        remove_tree(str(place.shell))
        self._furnish_runtime(place)

    def release(self, place: Place) -> None:
        """Remove the place with all that is in it; its user can be used again afterwards."""
        keep_journal(self.path, place.path, place.path / RECORD)
        (place.path / RECORD).unlink(missing_ok=True)
        stands_on_layers = (place.path / STACK).exists()
        detach_disk(place.path)
        try:
            self._remove_files(place)
        except OSError:  # files that change meanwhile: somebody on the host has become the sandbox's user
            if place.slice is not None:
                SliceFiles(place.slice).remove(*(entry.path for entry in os.scandir(place.path) if entry.is_dir()))
            elif place.user_id is not None:
                kill_processes_of(place.user_id, place.users)
            else:
                raise
            self._remove_files(place)
        self._release_users(place)
        place.lock.close()
        if stands_on_layers:
            self.layers.collect()

    def _release_users(self, place: Place) -> None:
        if place.slice is not None:
            self._slices.release(place.key, place.slice)
        elif place.users > 1:
            assert place.user_id is not None
            self._ranges.release(place.user_id, place.key)
        elif place.user_id is not None:
            self._users.release(place.user_id)

    def _remove_files(self, place: Place) -> None:
        for entry in place.path.iterdir() if place.path.exists() else ():
            if entry.is_dir() and not entry.is_symlink():
                remove_tree(str(entry))
        with self._changing_places():
            remove_tree(str(place.path))

    def collect(self, hierarchies: Hierarchies) -> int:
        """Remove what programs that are gone left behind; returns how many places that were."""
        collected = 0
        for path in self.sandboxes.iterdir():
            if (path / RECORD).exists():
                self._tidy(path, hierarchies)
                continue
            with self._changing_places():
                lock = try_lock(path / LOCK)
            if lock is not None:
                _end_groups(hierarchies, path.name)
                groups = [Group(group_path(tree, path.name)) for tree in hierarchies.all]
                if sum(group.remove() for group in groups) < len(groups):
                    lock.close()  # its last processes are just ending: the next program collects it
                    continue
                self.release(self._kept(path.name, path, lock))
                collected += 1
        with self._changing_places():
            for path in self.sandboxes.iterdir():
                if not (path / LOCK).exists():
                    detach_disk(path)
                    remove_tree(str(path))  # its program was killed while it made or removed it
        self.layers.collect()
        if self._is_root:
            self._users.take_back(lambda key: (self.sandboxes / key).exists())
        return collected

    def _tidy(self, path: Path, hierarchies: Hierarchies) -> None:
        """End what a killed runtime left running; the files are still wanted."""
        with self._changing_places():
            lock = try_lock(path / LOCK)
            if lock is not None:
                _end_groups(hierarchies, path.name)
                (path / SOCKET).unlink(missing_ok=True)
                lock.close()

    def volume_owner(self) -> int | None:
        """Return the host user that owns what is in volumes on disk; None where that is ourselves."""
        return self._users.of_volumes() if self._is_root else None

    def is_used(self, key: str) -> bool:
        """Return whether a place is somebody's: its program lives, or its sandbox outlives programs."""
        return (self.sandboxes / key / RECORD).exists() or self.is_running(key)

    def is_running(self, key: str) -> bool:
        """Return whether a program holds the place."""
        return is_locked(self.sandboxes / key / LOCK)

    def _changing_places(self) -> AbstractContextManager[int]:
        """Held while a place exists without its lock: a place without one is otherwise left over."""
        return waiting_lock(self.path / "places.lock")


def _sign(lock: FileIO) -> None:
    """Say in the lock who holds it, so that a holder that does not answer can be ended."""
    lock.truncate(0)
    os.pwrite(lock.fileno(), b"%d %d" % (os.getpid(), start_time(os.getpid())), 0)
    close_in_forked_child(lock)


def _end_groups(hierarchies: Hierarchies, key: str) -> None:
    trees = [Group(group_path(tree, key)) for tree in hierarchies.all]
    SandboxGroups(trees[0] if hierarchies.unified is not None else None, trees).remove()
    # A bwrap that lost its parent before the agent entered its groups, and whoever copied the files.
    kill_orphans(place_mark(key), copy_mark(key))
