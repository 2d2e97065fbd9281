"""Operations that the gateway answers itself: those of the server, and those of sandboxes that need not run."""

import asyncio
import builtins
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from cove.core.identifier import check_sandbox_id
from cove.core.journal import Actor
from cove.core.sandbox_token import Grant, check_expiry, check_operations, make_token
from cove.errors import FileTooLarge, SandboxNotFound, SandboxUnavailable, ValidationFailed
from cove.images.build_order import sandbox_of
from cove.images.context_archive import MOST_CONTEXT_ENTRIES
from cove.images.layer_stream import MOST_BYTES
from cove.images.registry_guard import RegistryGuard
from cove.images.store import ImageStore
from cove.layers.store import LayerStore
from cove.local.api_keys import ApiKeys
from cove.local.threads import finished, in_thread
from cove.model import (
    ApiKeyInfo,
    ApiKeyMade,
    BuildEvent,
    BuildSpec,
    DestroyedSandbox,
    IdleAction,
    ImageInfo,
    ImageMade,
    JournalEvent,
    Limits,
    Network,
    NetworkPolicy,
    Quota,
    SandboxInfo,
    SandboxSpec,
    SandboxStatus,
    Selection,
    SnapshotInfo,
    SpecFields,
    TransferProgress,
    VolumeInfo,
    make_spec,
)
from cove.model.mount import check_volume_name
from cove.model.spec import check_spec
from cove.runtime.home import Home
from cove.runtime.image import list_images, load_file, prune_images, pull_image, received
from cove.runtime.image_events import tell_progress
from cove.runtime.journal import ACTOR, read_kept
from cove.runtime.kept_journals import find_kept, list_kept, note_destroyer
from cove.runtime.life import nothing_to
from cove.runtime.sandbox_life import ends_at
from cove.runtime.snapshot_transfer import load_archive
from cove.runtime.volumes import Volumes
from cove.server.gateway.auth import load_token_secret
from cove.server.gateway.documents import Documents
from cove.server.gateway.journal import read_journal
from cove.server.gateway.metrics import collect_metrics
from cove.server.gateway.thing_answers import ImageAnswers, VolumeAnswers, open_images_of
from cove.server.gateway.token_scope import KINDS
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.image_build import build_events, context_too_large, most_context_bytes
from cove.server.sandboxes.image_jobs import check_image_job, image_job
from cove.server.sandboxes.moves import check_gone
from cove.server.sandboxes.quotas import check_spec_quota, make_within_quota, reserve_snapshot
from cove.server.sandboxes.reservation import rewrite
from cove.server.sandboxes.starter import Starter

T = TypeVar("T")


class _BuildFields(TypedDict):
    """The options of a build as they come."""

    name: str | None
    dockerfile: str
    build_args: Mapping[str, str] | None
    target: str | None
    preset: str | None
    base: str | None
    network: Network | NetworkPolicy | None
    limits: Limits | None
    timeout: float | None
    cache: bool


@dataclass(frozen=True, slots=True)
class ServerAnswers:
    """The operations of the server; the methods are those of `api.provider.Provider`, and pages."""

    directory: Directory
    starter: Starter
    documents: Documents

    async def create(self, id: str | None, spec: SandboxSpec, *, exist_ok: bool) -> SandboxInfo:
        """Make a sandbox, and answer by its facts."""
        check_spec(spec)
        record = await self.starter.create(id, spec, exist_ok=exist_ok)
        # Nothing is awaited from here on: whoever were cancelled would leave a sandbox that nobody has heard of.
        return record.info(record.status, self.directory.node())

    async def list(
        self, *, labels: Mapping[str, str] | None, status: SandboxStatus | str | None
    ) -> builtins.list[SandboxInfo]:
        """List the sandboxes that have these labels and this status."""
        return await in_thread(self._list, Selection.of(labels, status))

    def _list(self, wanted: Selection) -> builtins.list[SandboxInfo]:
        infos = [self.directory.info(record) for record in self.directory.list()]
        return [info for info in infos if wanted.has(info)]

    async def list_destroyed(self) -> builtins.list[DestroyedSandbox]:
        """List the destroyed sandboxes whose journals are kept."""
        return await in_thread(list_kept, self.directory.home)

    async def check_journal(self, key: str) -> None:
        """Raise SandboxNotFound for a journal that is not kept."""
        await in_thread(find_kept, self.directory.home, key)

    def destroyed_journal(self, key: str, *, since: str | None) -> AsyncGenerator[JournalEvent, None]:
        """Read the journal of a destroyed sandbox."""
        return read_kept(self.directory.home, key, since)

    async def create_volume(self, name: str, *, size: int | None) -> VolumeInfo:
        """Make a volume, and answer by its facts."""
        admitted = self.starter.configuration.admit_size(size)
        make = partial(self._volumes.create, name, admitted)
        return await in_thread(make_within_quota, self.directory, admitted, make)

    async def list_volumes(self) -> builtins.list[VolumeInfo]:
        """List all volumes."""
        return await in_thread(self._volumes.list)

    def volume(self, name: str) -> VolumeAnswers:
        """One volume, whether it is there or not."""
        return VolumeAnswers(self._volumes, check_volume_name(name))

    @property
    def _volumes(self) -> Volumes:
        return Volumes(Home(self.directory.home, self.directory.tenant))

    async def create_key(
        self, name: str, *, tenant: str | None, is_admin: bool, expires_at: datetime | None, quota: Quota | None
    ) -> ApiKeyMade:
        """Make a key."""
        make = partial(self._keys.create, name, tenant=tenant, is_admin=is_admin)
        return await in_thread(partial(make, expires_at=expires_at, quota=quota))

    async def list_keys(self) -> builtins.list[ApiKeyInfo]:
        """List all keys."""
        return await in_thread(self._keys.list)

    async def get_key(self, name: str) -> ApiKeyInfo:
        """Describe a key."""
        return await in_thread(self._keys.info, name)

    async def rotate_key(self, name: str) -> ApiKeyMade:
        """Replace a key."""
        return await in_thread(self._keys.rotate, name)

    async def delete_key(self, name: str) -> None:
        """Revoke a key."""
        await in_thread(self._keys.delete, name)

    @property
    def _keys(self) -> ApiKeys:
        return ApiKeys(self.directory.home)

    async def load_archive(self, chunks: AsyncIterable[bytes]) -> SnapshotInfo:
        """Load an export that comes in pieces."""
        store = self.layers
        store.admit = partial(reserve_snapshot, self.directory.home, self.directory.tenant)
        return (await load_archive(store, chunks)).info(None)

    async def list_snapshots(self) -> builtins.list[SnapshotInfo]:
        """List all snapshots."""
        return await in_thread(self.layers.describe_all)

    async def get_snapshot(self, id: str) -> SnapshotInfo:
        """Describe a snapshot."""
        return await in_thread(lambda: self.layers.describe(self.layers.find(id)))

    async def load_image_events(
        self, chunks: AsyncIterable[bytes], *, name: str | None
    ) -> AsyncGenerator[TransferProgress | ImageMade, None]:
        """Load an archive of an image."""
        store = await self._images()
        refusal = FileTooLarge(f"an archive has at most {MOST_BYTES >> 30} GiB")
        await in_thread(check_image_job, store, self.starter.configuration.max_image_jobs)
        async with received(store, chunks, MOST_BYTES, refusal) as file:
            making = tell_progress(lambda tell: load_file(store, file, name, tell))
            async with aclosing(self._as_job(store, making)) as events:
                async for event in events:
                    yield event

    async def pull_image_events(self, reference: str) -> AsyncGenerator[TransferProgress | ImageMade, None]:
        """Pull an image from a registry that the configuration allows."""
        configuration, store = self.starter.configuration, await self._images()
        guard = RegistryGuard(configuration.allow_registries, configuration.network.private)
        making = tell_progress(lambda tell: pull_image(store, reference, tell, guard.connect))
        async with aclosing(self._as_job(store, making)) as events:
            async for event in events:
                yield event

    async def build_image_events(
        self, chunks: AsyncIterable[bytes], *, outside: str | None, **fields: Unpack[_BuildFields]
    ) -> AsyncGenerator[BuildEvent | ImageMade, None]:
        """Build an image from what a client sends, with what the configuration allows a sandbox."""
        spec = await in_thread(self._admit_build, fields)
        store, most = await self._images(), most_context_bytes(spec)
        await in_thread(check_image_job, store, self.starter.configuration.max_image_jobs)
        async with received(store, chunks, most + MOST_CONTEXT_ENTRIES * 1024, context_too_large(most)) as file:
            making = build_events(self.directory.zygote, store, file, spec, outside)
            async with aclosing(self._as_job(store, making)) as events:
                async for event in events:
                    yield event

    async def _as_job(self, store: ImageStore, making: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Work on an image in one of the places that the configuration has for it.

        What a client sends is here by then: nobody holds a place by sending slowly.
        """
        async with aclosing(making) as events:
            with ExitStack() as held:
                await finished(held.enter_context, image_job(store, self.starter.configuration.max_image_jobs))
                async for event in events:
                    yield event

    def _admit_build(self, fields: _BuildFields) -> BuildSpec:
        spec = BuildSpec(**{name: value for name, value in fields.items() if value is not None})  # type: ignore[arg-type]  # by the names of the other
        admitted = self.starter.configuration.admit(sandbox_of(spec))
        check_spec_quota(self.directory.home, self.directory.tenant, admitted)
        return replace(spec, network=admitted.network, limits=admitted.limits)

    async def list_images(self) -> builtins.list[ImageInfo]:
        """List all images."""
        return await list_images(await self._images())

    async def prune_images(self, *, all: bool) -> builtins.list[str]:
        """Remove what has no name, and with `all` images that nothing stands on."""
        return await asyncio.to_thread(prune_images, await self._images(), all=all)

    def image(self, name: str) -> ImageAnswers:
        """One image, whether it is there or not."""
        return ImageAnswers(self.directory, self.starter.configuration.max_image_jobs, name)

    async def _images(self) -> ImageStore:
        return await open_images_of(self.directory)

    @property
    def layers(self) -> LayerStore:
        """The snapshots of this state directory."""
        return LayerStore(self.directory.home, self.directory.tenant)

    async def health(self) -> bytes:
        """Say that the server answers."""
        return b'{"ok":true}'

    async def metrics(self) -> bytes:
        """Count what monitoring wants to know."""
        hierarchies = await self.starter.hierarchies()
        return await in_thread(collect_metrics, self.directory, hierarchies)

    async def openapi_json(self) -> bytes:
        """Describe the API."""
        return self.documents.json

    async def openapi_html(self) -> bytes:
        """Describe the API as a page."""
        return self.documents.html


@dataclass(frozen=True, slots=True)
class SandboxAnswers:
    """The operations of one sandbox, whether it runs or not; the methods are those of `api.AsyncSandbox`."""

    directory: Directory
    starter: Starter
    id: str

    async def find(self) -> tuple[Record, SandboxInfo]:
        """Look the sandbox up; raises SandboxNotFound."""
        found = await in_thread(self._look, check_sandbox_id(self.id))
        if found is None:
            await in_thread(check_gone, self.directory, self.id)
            raise SandboxNotFound(f"there is no sandbox {self.id}", id=self.id)
        return found

    def _look(self, id: str) -> tuple[Record, SandboxInfo] | None:
        record = self.directory.find(id)
        return None if record is None else (record, self.directory.info(record))

    async def info(self) -> SandboxInfo:
        """Tell what its record says."""
        _, info = await self.find()
        return info

    async def destroy(self) -> None:
        """End it and remove all it has."""
        await in_thread(self._note_destroyer, check_sandbox_id(self.id), ACTOR.get())
        await self.starter.destroy(self.id)

    def _note_destroyer(self, id: str, actor: Actor) -> None:
        with suppress(SandboxUnavailable):  # a record that is spoilt has no journal to speak of
            record = self.directory.find(id)
            if record is not None:
                note_destroyer(self.directory.place(record.key), actor)

    async def token(self, operations: Sequence[str], *, expires: float, path: str | None) -> str:
        """Make a token for it."""
        record, _ = await self.find()
        grant = Grant(
            id=record.id,
            tenant=record.tenant,
            operations=check_operations(operations, tuple(KINDS.values())),
            expires=time.time() + check_expiry(expires),
            path=path,
        )
        return make_token(await in_thread(load_token_secret, self.directory.home), record.key, grant)

    async def journal(self, *, since: str | None, follow: bool) -> AsyncGenerator[JournalEvent, None]:
        """Read its journal from its files."""
        record, info = await self.find()
        async with aclosing(read_journal(self.directory, record, info.status, since, follow)) as events:
            async for event in events:
                yield event

    async def start(self) -> None:
        """Start one that does not run."""
        record, _ = await self.find()
        await self.starter.start(record)

    async def restart(self) -> None:
        """Start one that does not run."""
        await self.start()

    async def stop(self) -> None:
        """Let one that does not run stay so until `start`."""
        await self._rewrite(lambda record: replace(record, status=SandboxStatus.STOPPED, wakes=False))

    async def move(self, node: str | None) -> None:
        """Give it to another node of the cluster."""
        record, _ = await self.find()
        if self.starter.mover is None:
            raise ValidationFailed("this server is no node of a cluster: there is nowhere to move a sandbox")
        await self.starter.mover.move(record.id, record.tenant, node)

    async def pause(self, *, wake: bool) -> None:
        """Refuse: nothing runs that could be paused."""
        await self._refuse("pause")

    async def resume(self) -> None:
        """Refuse: nothing is there that could go on."""
        await self._refuse("resume")

    async def _refuse(self, what: str) -> None:
        _, info = await self.find()
        raise nothing_to(what, info.id, info.status, "its runtime has ended")

    async def set_lifetime(self, seconds: float | None) -> None:
        """Let it end so long from now."""
        end = ends_at(datetime.now(UTC), seconds)
        await self._set({"lifetime": seconds}, end)

    async def set_idle_timeout(self, seconds: float | None, *, action: IdleAction) -> None:
        """Change what holds when it runs again."""
        await self._set({"idle_timeout": seconds, "idle_action": action, "keep_alive": False})

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        """Replace its labels."""
        await self._set({"labels": labels})

    async def _set(self, fields: SpecFields, end: datetime | None = None) -> None:
        def change(record: Record) -> Record:
            spec = make_spec(record.spec, fields)
            ends = end if "lifetime" in fields else record.ends_at
            return replace(record, spec=spec, origin=record.created_spec, ends_at=ends)

        await self._rewrite(change)

    async def _rewrite(self, change: Callable[[Record], Record]) -> None:
        id = check_sandbox_id(self.id)
        await self.find()
        await in_thread(rewrite, self.directory, id, change)
