"""The embedded provider: sandboxes of this program, without a daemon or a port; they end with the program."""

import asyncio
import atexit
import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from cove.api import AsyncImage, AsyncSandbox, AsyncSnapshot
from cove.api.provider import Provider
from cove.attach import Nursery
from cove.core.identifier import check_sandbox_id, new_identifier
from cove.core.network_grants import NetworkGrants
from cove.errors import SandboxAlreadyExists, SandboxNotFound
from cove.images.record import ImageRecord
from cove.images.store import ImageStore, open_images
from cove.local.api_keys import ApiKeys
from cove.local.bootstrap import bootstrapped
from cove.local.state import default_home
from cove.local.threads import finished, in_thread, kept_or_undone, start_in_thread
from cove.model import (
    ApiKeyInfo,
    ApiKeyMade,
    BuildEvent,
    BuildSpec,
    DestroyedSandbox,
    ImageInfo,
    JournalEvent,
    Quota,
    SandboxInfo,
    SandboxSpec,
    SandboxStatus,
    Selection,
    SnapshotInfo,
    TransferProgress,
    VolumeInfo,
)
from cove.runtime.allocation import allocate
from cove.runtime.build import Report, build_image
from cove.runtime.home import Home
from cove.runtime.image import Image, describe, list_images, load_image, prune_images, pull_image
from cove.runtime.journal import read_kept
from cove.runtime.kept_journals import list_kept
from cove.runtime.machine import Machine, count_room, examine_machine
from cove.runtime.mounts import resolve_mounts
from cove.runtime.sandbox import Sandbox
from cove.runtime.sandbox_lifecycle import Seal
from cove.runtime.snapshot import Snapshot
from cove.runtime.snapshot_transfer import load_archive, load_snapshot
from cove.runtime.tracing import traced
from cove.runtime.volume import Volume
from cove.runtime.volumes import Volumes
from cove.tasks import owned, settled, shared


@traced("server", Provider)
class EmbeddedProvider:
    """Makes sandboxes in the caller's own event loop. An id is taken before the first await."""

    def __init__(self, machine: Machine | None = None) -> None:
        self._sandboxes: dict[str, Sandbox | None] = {}
        self._machine = machine
        self._pid = os.getpid()
        self.read_grants: Callable[[], NetworkGrants | None] = lambda: None  # what a server's configuration grants

    async def create(self, id: str | None, spec: SandboxSpec, *, exist_ok: bool = False) -> AsyncSandbox:
        """A new sandbox; a cancelled creation leaves nothing."""
        self._forget_after_fork()
        id = new_identifier() if id is None else check_sandbox_id(id)
        if exist_ok and self._sandboxes.get(id) is not None:
            return await self.connect(id)
        if id in self._sandboxes:
            raise SandboxAlreadyExists(f"sandbox {id} exists already: choose another id, or exist_ok=True", id=id)
        return await self._create(id, spec)

    async def _create(self, id: str, spec: SandboxSpec, machine: Machine | None = None) -> AsyncSandbox:
        self._sandboxes[id] = None
        opening = owned(self._open(id, spec, machine))
        try:
            return await shared(opening)
        except asyncio.CancelledError:
            await settled(_undo(opening))
            raise

    async def _make_copies(self, seal: Seal, count: int) -> builtins.list[AsyncSandbox]:
        """All of them, or none. One interpreter, for the helpers of many, starts while the files are sealed."""
        async with _helped(await self._examine(), count) as machine:
            spec = await seal()
            return await make_all([partial(self._create, new_identifier(), spec, machine) for _ in range(count)])

    async def count_room(self, spec: SandboxSpec) -> int:
        """Judge by the cores and the memory of this machine."""
        return await in_thread(count_room, spec.limits.memory)

    async def connect(self, id: str) -> AsyncSandbox:
        """A sandbox of this program that lives in this event loop."""
        self._forget_after_fork()
        sandbox = self._sandboxes.get(check_sandbox_id(id))
        if sandbox is None or sandbox.loop is not asyncio.get_running_loop():
            raise SandboxNotFound(f"there is no sandbox {id} in this program: url= or COVE_URL names a server", id=id)
        return sandbox

    async def list(
        self, *, labels: Mapping[str, str] | None = None, status: SandboxStatus | str | None = None
    ) -> builtins.list[SandboxInfo]:
        """The sandboxes of this program."""
        self._forget_after_fork()
        wanted = Selection.of(labels, status)
        infos = [await sandbox.info() for sandbox in list(self._sandboxes.values()) if sandbox is not None]
        return [info for info in infos if wanted.has(info)]

    async def list_destroyed(self) -> builtins.list[DestroyedSandbox]:
        """The sandboxes of servers on this state directory."""
        return await in_thread(list_kept, (await self._examine()).home.path)

    async def destroyed_journal(self, key: str, *, since: str | None = None) -> AsyncGenerator[JournalEvent, None]:
        """A journal that is kept in this state directory."""
        async with aclosing(read_kept((await self._examine()).home.path, key, since)) as events:
            async for event in events:
                yield event

    async def create_volume(self, name: str, *, size: int | None = None) -> Volume:
        """A new volume; a cancelled creation leaves nothing."""
        volumes = await self._volumes()
        volume = Volume(volumes, name)
        making = owned(in_thread(volumes.create, name, size))
        try:
            await shared(making)
        except asyncio.CancelledError:
            await settled(_unmake(making, volume))
            raise
        return volume

    async def get_volume(self, name: str) -> Volume:
        """A volume of this user's state directory."""
        volume = Volume(await self._volumes(), name)
        await volume.info()
        return volume

    async def list_volumes(self) -> builtins.list[VolumeInfo]:
        """All volumes of this user's state directory."""
        return await in_thread((await self._volumes()).list)

    async def create_key(
        self,
        name: str,
        *,
        tenant: str | None = None,
        is_admin: bool = False,
        expires_at: datetime | None = None,
        quota: Quota | None = None,
    ) -> ApiKeyMade:
        """A new key of the server that has this user's state directory."""
        make = partial((await self._keys()).create, name, tenant=tenant, is_admin=is_admin)
        return await in_thread(partial(make, expires_at=expires_at, quota=quota))

    async def list_keys(self) -> builtins.list[ApiKeyInfo]:
        """All keys in this user's state directory."""
        return await in_thread((await self._keys()).list)

    async def get_key(self, name: str) -> ApiKeyInfo:
        """One of them."""
        return await in_thread((await self._keys()).info, name)

    async def rotate_key(self, name: str) -> ApiKeyMade:
        """Replace one of them."""
        return await in_thread((await self._keys()).rotate, name)

    async def delete_key(self, name: str) -> None:
        """Revoke one of them."""
        await in_thread((await self._keys()).delete, name)

    async def _keys(self) -> ApiKeys:
        home = Home(default_home())
        await in_thread(home.open)
        return ApiKeys(home.path)

    async def _volumes(self) -> Volumes:
        return Volumes((await self._examine()).home)

    async def get_snapshot(self, id: str) -> AsyncSnapshot:
        """A snapshot in this program's state directory."""
        store = (await self._examine()).home.layers
        return Snapshot(store, (await in_thread(store.find, id)).info(None))

    async def load_snapshot(
        self, source: str, progress: Callable[[TransferProgress], object] | None = None
    ) -> AsyncSnapshot:
        """Load an export from a path or URL."""
        store = (await self._examine()).home.layers
        return Snapshot(store, (await load_snapshot(store, source, progress)).info(None))

    async def load_archive(self, chunks: AsyncIterable[bytes]) -> AsyncSnapshot:
        """Load an export that comes in pieces."""
        store = (await self._examine()).home.layers
        return Snapshot(store, (await load_archive(store, chunks)).info(None))

    async def list_snapshots(self) -> builtins.list[SnapshotInfo]:
        """All snapshots in this program's state directory."""
        return await in_thread((await self._examine()).home.layers.describe_all)

    async def load_image(
        self, path: str, *, name: str | None = None, progress: Callable[[TransferProgress], object] | None = None
    ) -> AsyncImage:
        """An image from an archive or a directory."""
        return await load_image(await self._images(), path, name, progress)

    async def pull_image(
        self, reference: str, progress: Callable[[TransferProgress], object] | None = None
    ) -> AsyncImage:
        """An image from a registry."""
        store = await self._images()
        return Image(store, await pull_image(store, reference, progress))

    async def build_image(
        self, directory: str | None, spec: BuildSpec, progress: Callable[[BuildEvent], object] | None = None
    ) -> AsyncImage:
        """An image from a directory with a Dockerfile."""

        async def report(event: BuildEvent) -> None:
            if progress is not None:
                progress(event)

        return Image(await self._images(), await self.build(directory, spec, report))

    async def build(self, directory: str | None, spec: BuildSpec, report: Report) -> ImageInfo:
        """Build an image, and wait for who hears of it."""
        store = await self._images()
        return describe(await build_image(store, store.layers, directory, spec, self._start_on, report))

    async def _start_on(self, spec: SandboxSpec, image: ImageRecord) -> Sandbox:
        """A sandbox on an image that has no name, for its caller alone; a cancelled start leaves nothing."""
        opening = owned(self._start(new_identifier(), spec, image))
        try:
            return await shared(opening)
        except asyncio.CancelledError:
            await settled(_undo(opening))
            raise

    async def bootstrap_image(self, distribution: str, *, suite: str, include: Sequence[str], name: str) -> AsyncImage:
        """Make an image of a distribution on this machine."""
        return await bootstrapped(distribution, suite, include, partial(self.load_image, name=name))

    async def get_image(self, name: str) -> AsyncImage:
        """An image in this program's state directory."""
        store = await self._images()
        return Image(store, describe(await in_thread(store.find, name)))

    async def prune_images(self, *, all: bool = False) -> builtins.list[str]:
        """Remove what has no name, and with `all` images that nothing stands on."""
        return await in_thread(prune_images, await self._images(), all=all)

    async def list_images(self) -> builtins.list[ImageInfo]:
        """All images in this program's state directory."""
        return await list_images(await self._images())

    async def _images(self) -> ImageStore:
        home = (await self._examine()).home
        return await in_thread(open_images, home.path, home.layers)

    def abandon(self) -> None:
        """The program ends normally: remove what its sandboxes have on disk. Their processes end with it."""
        self._forget_after_fork()
        for sandbox in list(self._sandboxes.values()):
            if sandbox is not None:
                sandbox.abandon()

    async def _open(self, id: str, spec: SandboxSpec, machine: Machine | None) -> Sandbox:
        try:
            sandbox = await self._start(id, spec, machine=machine)
        except BaseException:
            self._forget(id)
            raise
        self._sandboxes[id] = sandbox
        sandbox.on_end = partial(self._forget, id)
        sandbox.on_fork = self._make_copies
        sandbox.rest_when_idle()
        return sandbox

    async def _start(
        self, id: str, spec: SandboxSpec, image: ImageRecord | None = None, machine: Machine | None = None
    ) -> Sandbox:
        machine = machine or await self._examine()
        if spec.mounts:
            spec = await in_thread(resolve_mounts, spec, str(machine.home.path))
        place = await in_thread(partial(allocate, machine, spec, is_build=image is not None))
        try:
            sandbox = Sandbox(id, spec, machine, place)
            sandbox.network.read_grants = self.read_grants
            sandbox.layers.image = image
            sandbox.note_created()
            await sandbox.open_first()
        except BaseException:
            await in_thread(machine.home.release, place)
            raise
        return sandbox

    def _forget(self, id: str) -> None:
        self._sandboxes.pop(id, None)

    async def _examine(self) -> Machine:
        if self._machine is None:
            machine = await in_thread(examine_machine)
            await in_thread(machine.home.collect, machine.hierarchies)
            await in_thread(Volumes(machine.home).collect)
            self._machine = machine
        return self._machine

    def _forget_after_fork(self) -> None:
        """A forked child has no sandboxes: their sockets were closed in it."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]  # a fresh start is exactly what is meant


@asynccontextmanager
async def _helped(machine: Machine, count: int) -> AsyncGenerator[Machine, None]:
    """Give the machine with a nursery for so many jails that start at once; one needs none."""
    if count == 1:
        yield machine
        return
    nursery = await kept_or_undone(start_in_thread(Nursery, machine.attach_command), Nursery.close)
    try:
        yield replace(machine, nursery=nursery)
    finally:
        await finished(nursery.close)


async def make_all(makes: Sequence[Callable[[], Awaitable[AsyncSandbox]]]) -> builtins.list[AsyncSandbox]:
    """Make them at once; when one cannot be made, or the caller is cancelled, those that were are destroyed."""
    making = [owned(_made(make)) for make in makes]
    try:
        await asyncio.wait(making)
        return [each.result() for each in making]
    except BaseException:
        await settled(_destroy_all(making))
        raise


async def _made(make: Callable[[], Awaitable[AsyncSandbox]]) -> AsyncSandbox:
    return await make()


async def _destroy_all(making: "Sequence[asyncio.Task[AsyncSandbox]]") -> None:
    await asyncio.wait(making)
    for each in making:
        if not each.cancelled() and each.exception() is None:
            await each.result().destroy()


async def _undo(opening: "asyncio.Task[Sandbox]") -> None:
    """Destroy what a cancelled creation still makes. A second cancel does not stop this."""
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().destroy()


async def _unmake(making: "asyncio.Task[VolumeInfo]", volume: Volume) -> None:
    await asyncio.wait([making])
    if not making.cancelled() and making.exception() is None:
        await volume.delete()


# The one of this program: made by the import, which happens once whatever its threads do.
EMBEDDED: Final = EmbeddedProvider()
atexit.register(EMBEDDED.abandon)
