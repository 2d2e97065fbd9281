"""Mounts of one sandbox: attached before anything runs inside, or beside what runs; recorded, taken away, ended.

Theory of operation. What a mount shows is a detached tree: cloned from the host, from a volume, or from the jail of an
rclone. Once a tree is there, no path outside is looked at again. The helper (cove.attach) opens the target inside
without following a link, makes what is missing, and moves the tree there by descriptor. The spec has all mounts: it is
what a restart, and the record of a server, begin with.

What can go wrong: the target leads over a link, or is swapped meanwhile (the mount is refused, or stands elsewhere in
the same sandbox); rclone dies (I/O errors inside, a warning outside); the call is cancelled (the mount goes again).
Layers are put in the place of others just then, which would hide it: the mounts of a jail, and what is recorded of
them, are changed in the turn of the sandbox's life. What takes longer, as an rclone, comes before or after that.
"""

import asyncio
import builtins
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import msgspec

from cove import api
from cove.attach import AttachTree, Unmount
from cove.core.mount import attached, bound, check_addition, check_removal, check_target, with_target
from cove.core.users import map_volume
from cove.errors import CoveError, MountNotFound, SandboxUnavailable, UserUnavailable, ValidationFailed
from cove.linux.path_walk import find
from cove.linux.references import mount_table
from cove.local.threads import in_thread
from cove.model import AnyMount, BucketMount, Isolation, Limits, Mount, SandboxSpec, VolumeMount
from cove.model.mount import check_mount
from cove.runtime.bucket import Bucket
from cove.runtime.bucket_credentials import BucketCredentials
from cove.runtime.disk_watch import DiskWatch, Watched
from cove.runtime.gate import Gate, OpenGate, gated
from cove.runtime.home import Place
from cove.runtime.jail import Jail
from cove.runtime.machine import Machine
from cove.runtime.mount_admission import Grants
from cove.runtime.mount_roots import Root, is_directory, is_missing, root_at, root_of
from cove.runtime.mount_trees import clone_host, clone_volume, make_id_map
from cove.runtime.mounts import open_mounts
from cove.runtime.tracing import traced
from cove.runtime.volumes import UsedVolume, Volumes
from cove.tasks import Tasks, end, owned, settled, shared

_EXIT_SECONDS = 5.0


@dataclass(slots=True)
class _Mounted:
    """A mount that stands. `root` says which it is."""

    root: Root
    was_made: bool = False
    bucket: Bucket | None = None
    watch: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class Host:
    """The sandbox as its mounts see it. `change` puts other mounts into its spec, and keeps that.

    `user` gives the numbers of its user and group inside, whose the files of a volume are.
    """

    machine: Machine
    place: Place
    spec: Callable[[], SandboxSpec]
    change: Callable[[Sequence[AnyMount]], Awaitable[None]]
    check_running: Callable[[], None]
    read_grants: Callable[[], Grants] = Grants
    user: Callable[[], tuple[int, int]] = lambda: (0, 0)


@traced("mounts", api.Mounts)
@gated()
@dataclass(slots=True, repr=False)
class Mounts(api.Mounts):
    """Those of one sandbox. `turn` is that of its life; `_lock` is held while one is added or removed, for longer."""

    sandbox: Host
    turn: AbstractAsyncContextManager[None]
    _mounted: dict[str, _Mounted] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _jail: Jail | None = None
    _watched: Watched | None = None
    _watches: Tasks = field(default_factory=Tasks)
    _id_map: int | None = None
    gate: Gate = field(default_factory=OpenGate)

    async def open(self, jail: Jail, watched: Watched) -> None:
        """Attach what bubblewrap does not bind, before anything runs inside."""
        mounts = self.sandbox.spec().mounts
        self._jail, self._watched = jail, watched
        if not mounts or self.sandbox.spec().isolation is Isolation.NONE:
            return
        try:
            for each in bound(mounts):
                self._mounted[each.target] = _Mounted(await in_thread(root_at, jail.target, each.target))
            for mount in attached(mounts):
                async with self._cloned(mount) as (mounted, tree):
                    await self._attach(mount, mounted, tree)
        except BaseException:
            await self.close()
            raise

    async def add(self, mount: AnyMount) -> None:
        await self.add_with(mount, None)

    async def add_with(self, mount: AnyMount, credentials: str | None) -> None:
        """Add a mount; of a bucket, with credentials that are kept for it alone."""
        self._check()
        checked = with_target(_checked(mount))
        adding = owned(self._add(checked, credentials))
        try:
            await shared(adding)
        except asyncio.CancelledError:
            await settled(self._undo(adding, checked.target))
            raise

    async def _undo(self, adding: "asyncio.Task[None]", target: str) -> None:
        await asyncio.wait([adding])
        if not adding.cancelled() and adding.exception() is None:
            with suppress(CoveError):  # it is gone, or the sandbox is
                await self.remove(target)

    async def _add(self, mount: AnyMount, credentials: str | None) -> None:
        async with self._lock:
            self._check()
            present = self.sandbox.spec().mounts
            check_addition(mount, present)
            self._check_owners(mount)
            home, has_credentials = str(self.sandbox.machine.home.path), credentials is not None
            grants = await in_thread(self.sandbox.read_grants)
            admitted = await in_thread(grants.admit, mount, home, has_credentials=has_credentials)
            try:
                await in_thread(self._keys.keep, mount.target, credentials)
                jail = self._living
                async with self._cloned(admitted) as (mounted, tree), self.turn:
                    self._check_is(jail)
                    await self._attach(admitted, mounted, tree)
                    await self._record_added(admitted, present)
            except BaseException:
                with suppress(OSError):  # a full disk: they are not read again without a mount
                    await in_thread(self._keys.keep, mount.target, None)
                raise

    def _check_owners(self, mount: AnyMount) -> None:
        """Refuse what users inside could leave files in that nobody outside could remove."""
        if self.sandbox.place.slice is not None and not mount.read_only:
            raise UserUnavailable(
                f"{mount.target} cannot be written in a sandbox that has subordinate users of yours: mount it "
                "read-only, or create the sandbox with the mount, which then has one user"
            )

    async def _record_added(self, mount: AnyMount, present: Sequence[AnyMount]) -> None:
        """Put it into the spec; one that cannot be recorded, as on a full disk, goes again."""
        try:
            await self.sandbox.change((*present, mount))
        except BaseException:
            mounted = self._mounted.pop(mount.target)
            with suppress(CoveError):  # it goes with the sandbox
                await self._living.attach([Unmount(mount.target, mounted.root, mounted.was_made)])
            raise

    async def list(self) -> builtins.list[AnyMount]:
        self.sandbox.check_running()
        return list(self.sandbox.spec().mounts)

    async def remove(self, target: str) -> None:
        self._check()
        await settled(self._remove(check_target(target)))

    async def _remove(self, target: str) -> None:
        async with self._lock:
            self._check()
            present = self.sandbox.spec().mounts
            mount = _find(present, target)
            check_removal(mount, present)
            async with self.turn:
                self._check()
                mounted = self._mounted[target]
                await self._perform(Unmount(target, mounted.root, mounted.was_made))
                del self._mounted[target]
                await self.sandbox.change([other for other in present if other is not mount])
            await self._end(mount, mounted)
            await in_thread(self._keys.keep, target, None)

    async def sync(self, target: str) -> None:
        self._check()
        async with self._lock:
            self._check()
            mount = _find(self.sandbox.spec().mounts, check_target(target))
            bucket = self._mounted[mount.target].bucket
            if bucket is None:
                raise ValidationFailed(f"{mount.target} is no bucket: what is written to it is there at once")
            await bucket.sync()

    @property
    def warnings(self) -> builtins.list[str]:
        """Return what is not as it should be."""
        found = []
        for target, mounted in self._mounted.items():
            if mounted.bucket is not None and mounted.bucket.copied_because is not None:
                found.append(
                    f"the bucket at {target} is copied, not mounted: {mounted.bucket.copied_because}. What is written "
                    "reaches it with mounts.sync, when it is removed, and when the sandbox stops"
                )
            if mounted.bucket is not None and mounted.bucket.failure is not None:
                found.append(
                    f"the bucket at {target} gives I/O errors: {mounted.bucket.failure}. Remove it and add it again"
                )
        return found

    async def end_buckets(self) -> None:
        """The jail was killed: send what was written to buckets. While it ends it may still wait for them."""
        buckets = [mounted.bucket for mounted in self._mounted.values() if mounted.bucket is not None]
        if buckets and self._jail is not None:
            await asyncio.wait([self._jail.exited], timeout=_EXIT_SECONDS)
        for bucket in buckets:
            await bucket.close()

    async def close(self) -> None:
        """The jail is gone: end all, and let go of volumes. Idempotent."""
        mounts = {mount.target: mount for mount in self.sandbox.spec().mounts}
        mounted, self._mounted = self._mounted, {}
        self._jail = None
        for target, each in mounted.items():
            await self._end(mounts[target], each, is_stopping=True)
        await self._watches.aclose()
        self._watches = Tasks()
        if self._id_map is not None:
            os.close(self._id_map)
            self._id_map = None

    def abandon(self) -> None:
        """End all without an event loop. Blocks."""
        for mounted in self._mounted.values():
            if mounted.bucket is not None:
                mounted.bucket.abandon()
        self._volumes.release_all(self.sandbox.place.key)

    def release_others(self) -> None:
        """Let go of volumes and credentials whose mounts are not in the spec. Blocks.

        Whoever added one was killed before that was recorded, or the sandbox is as it was created.
        """
        self._keys.keep_only({mount.target for mount in self.sandbox.spec().mounts})
        used = {mount.volume for mount in self.sandbox.spec().mounts if isinstance(mount, VolumeMount)}
        self._volumes.release_all(self.sandbox.place.key, but=used)

    def forget(self) -> None:
        """The sandbox is destroyed: no volume is used by it. Blocks."""
        self._volumes.release_all(self.sandbox.place.key)

    @asynccontextmanager
    async def _cloned(self, mount: AnyMount) -> AsyncGenerator[tuple[_Mounted, int], None]:
        """Have its tree, to be mounted. When the body fails, nothing is left of it."""
        mounted = _Mounted((0, 0, 0))
        try:
            tree = await self._clone(mount, mounted)
            try:
                yield mounted, tree
            finally:
                os.close(tree)
        except BaseException:
            await settled(self._end(mount, mounted))
            raise

    async def _attach(self, mount: AnyMount, mounted: _Mounted, tree: int) -> None:
        """Mount a tree in the jail. The caller has the turn."""
        mounted.root = await in_thread(root_of, tree)
        mounted.was_made = await in_thread(is_missing, self._living.target, mount.target)
        shows_directory = not isinstance(mount, Mount) or await in_thread(is_directory, tree)
        await self._perform(AttachTree(tree, mount.target, shows_directory))
        self._mounted[mount.target] = mounted

    async def _perform(self, action: AttachTree | Unmount) -> None:
        """Change the mounts of the jail. The caller has the turn.

        A helper that dies may have done it before: the mounts tell, which nothing inside can change.
        """
        jail = self._living
        before = await in_thread(mount_table, jail.agent_pid)
        try:
            await jail.attach([action])
        except SandboxUnavailable:
            now = await in_thread(mount_table, jail.agent_pid)
            if now is None or now == before:
                raise

    async def _clone(self, mount: AnyMount, mounted: _Mounted) -> int:
        match mount:
            case Mount():
                return await self._clone_host(mount)
            case VolumeMount():
                return await self._clone_volume(mount, mounted)
            case BucketMount():
                return await self._open_bucket(mount, mounted)

    async def _clone_host(self, mount: Mount) -> int:
        machine = self.sandbox.machine
        opening = open_mounts((mount,), str(machine.home.path))
        opened = await in_thread(opening.__enter__)
        try:
            return await clone_host(machine, self._living.target, opened.sources[0], read_only=mount.read_only)
        finally:
            await in_thread(opening.__exit__, None, None, None)

    async def _clone_directory(self, path: str, read_only: bool) -> int:
        """Clone a directory of ours, in the place."""
        found = await in_thread(find, path)
        try:
            return await clone_host(self.sandbox.machine, self._living.target, found, read_only=read_only)
        finally:
            found.close()

    async def _clone_volume(self, mount: VolumeMount, mounted: _Mounted) -> int:
        volume = await in_thread(self._volumes.use, mount.volume, self.sandbox.place.key)
        id_map = await self._map_ids(volume)
        machine, target = self.sandbox.machine, self._living.target
        tree = await clone_volume(machine, target, volume, id_map, read_only=mount.read_only)
        if volume.measured is not None and self._watched is not None:
            watched = replace(self._watched, pids=tuple, log_bytes=int)  # what has no name is on no volume for sure
            watch = DiskWatch(lambda: (volume.data,), Limits(disk=volume.measured), watched, volume.name)
            mounted.watch = self._watches.start(watch.run())
        return tree

    async def _map_ids(self, volume: UsedVolume) -> int | None:
        place = self.sandbox.place
        if volume.owner is None or place.user_id is None:
            return None
        if self._id_map is None:
            own = (map_volume(volume.owner, place.user_id, place.users, each) for each in self.sandbox.user())
            making = in_thread(make_id_map, self.sandbox.machine, *own)
            self._id_map = await settled(making, discard=os.close)
        return self._id_map

    async def _open_bucket(self, mount: BucketMount, mounted: _Mounted) -> int:
        credentials, hosts = await in_thread(self._prepare_bucket, mount)
        most_bytes = self.sandbox.spec().limits.disk
        mounted.bucket = Bucket(
            self.sandbox.machine,
            self.sandbox.place,
            self.sandbox.place.host_user(*self.sandbox.user()),
            mount,
            credentials,
            hosts,
            most_bytes,
            self._clone_directory,
        )
        return await mounted.bucket.open()

    def _prepare_bucket(self, mount: BucketMount) -> tuple[str | None, str | None]:
        """Read its credentials and judge its endpoint. Blocks."""
        return self.sandbox.read_grants().prepare_bucket(mount, self._keys.find(mount.target))

    async def _end(self, mount: AnyMount, mounted: _Mounted, *, is_stopping: bool = False) -> None:
        if mounted.watch is not None:
            await end(mounted.watch)
        if mounted.bucket is not None:
            await mounted.bucket.close()
        if isinstance(mount, VolumeMount):
            key, name = self.sandbox.place.key, mount.volume
            others = [other for other in self.sandbox.spec().mounts if other is not mount]
            if is_stopping:
                await in_thread(self._volumes.rest, name, key)
            elif not any(isinstance(other, VolumeMount) and other.volume == name for other in others):
                await in_thread(self._volumes.release, name, key)

    @property
    def _volumes(self) -> Volumes:
        return Volumes(self.sandbox.machine.home)

    @property
    def _keys(self) -> BucketCredentials:
        return BucketCredentials(self.sandbox.place.path)

    @property
    def _living(self) -> Jail:
        if self._jail is None:
            raise SandboxUnavailable("the sandbox has ended: nothing was mounted in it")
        return self._jail

    def _check_is(self, jail: Jail) -> None:
        """Refuse to mount in another jail than that for which a tree was made: its volume is watched for that one."""
        self._check()
        if self._living is not jail:
            raise SandboxUnavailable("the sandbox was restarted meanwhile: nothing was mounted, try again")

    def _check(self) -> None:
        self.sandbox.check_running()
        if self.sandbox.spec().isolation is Isolation.NONE:
            raise ValidationFailed("mounts need isolation: with isolation='none' the sandbox has the host's own files")


def _checked(mount: AnyMount) -> AnyMount:
    if not isinstance(mount, Mount | VolumeMount | BucketMount):
        raise ValidationFailed(f"a mount is a Mount, VolumeMount or BucketMount, not {type(mount).__name__}")
    for text in msgspec.to_builtins(mount).values():
        if isinstance(text, str) and "\0" in text:
            raise ValidationFailed(f"mount: {text!r} has a NUL, which no path or name can have")
    check_mount(mount)
    return mount


def _find(mounts: Sequence[AnyMount], target: str) -> AnyMount:
    for mount in mounts:
        if mount.target == target:
            return mount
    raise MountNotFound(f"nothing is mounted at {target}")
