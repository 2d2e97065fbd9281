"""Open a sandbox, by `await` or by `async with`: one that this program makes itself, or one of a server."""

import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from cove.model import (
    ApiKeyInfo,
    ApiKeyMade,
    BuildEvent,
    BuildSpec,
    DestroyedSandbox,
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
    SnapshotInfo,
    TransferProgress,
    VolumeInfo,
)

if TYPE_CHECKING:
    from cove.api.image import AsyncImage
    from cove.api.sandbox import AsyncSandbox
    from cove.api.snapshot import AsyncSnapshot
    from cove.api.volume import AsyncVolume


class Provider(Protocol):
    """Makes, finds and lists sandboxes."""

    async def create(self, id: str | None, spec: SandboxSpec, *, exist_ok: bool = False) -> "AsyncSandbox":
        """Create a sandbox; with `exist_ok`, find the one that has the id already."""

    async def count_room(self, spec: SandboxSpec) -> int | None:
        """Say how many such sandboxes this machine can have at once; None where the server says when it is full."""

    async def connect(self, id: str) -> "AsyncSandbox":
        """Connect to the sandbox with that id."""

    async def list(
        self, *, labels: Mapping[str, str] | None = None, status: SandboxStatus | str | None = None
    ) -> builtins.list[SandboxInfo]:
        """List the sandboxes that have these labels and this status."""

    async def list_destroyed(self) -> builtins.list[DestroyedSandbox]:
        """List the destroyed sandboxes whose journals are kept."""

    def destroyed_journal(self, key: str, *, since: str | None = None) -> AsyncGenerator[JournalEvent, None]:
        """Read the journal of a destroyed sandbox."""
        raise NotImplementedError

    async def create_volume(self, name: str, *, size: int | None = None) -> "AsyncVolume":
        """Make a volume."""

    async def get_volume(self, name: str) -> "AsyncVolume":
        """Find the volume with that name."""

    async def list_volumes(self) -> builtins.list[VolumeInfo]:
        """List all volumes."""

    async def create_key(
        self,
        name: str,
        *,
        tenant: str | None = None,
        is_admin: bool = False,
        expires_at: datetime | None = None,
        quota: Quota | None = None,
    ) -> ApiKeyMade:
        """Make an API key."""

    async def list_keys(self) -> builtins.list[ApiKeyInfo]:
        """List all API keys."""

    async def get_key(self, name: str) -> ApiKeyInfo:
        """Describe an API key."""

    async def rotate_key(self, name: str) -> ApiKeyMade:
        """Replace an API key by a new one."""

    async def delete_key(self, name: str) -> None:
        """Revoke an API key."""

    async def get_snapshot(self, id: str) -> "AsyncSnapshot":
        """Find a snapshot."""

    async def load_snapshot(
        self, source: str, progress: "Callable[[TransferProgress], object] | None" = None
    ) -> "AsyncSnapshot":
        """Load an exported snapshot."""

    async def load_archive(self, chunks: AsyncIterable[bytes]) -> "AsyncSnapshot":
        """Load a snapshot that was exported to one file."""

    async def list_snapshots(self) -> builtins.list[SnapshotInfo]:
        """List all snapshots."""

    async def load_image(
        self, path: str, *, name: str | None = None, progress: "Callable[[TransferProgress], object] | None" = None
    ) -> "AsyncImage":
        """Load an image from a path of the caller's."""

    def load_image_events(
        self, chunks: AsyncIterable[bytes], *, name: str | None = None
    ) -> AsyncGenerator[TransferProgress | ImageMade, None]:
        """Load an archive that comes in pieces, and tell how far it is."""
        raise NotImplementedError

    async def pull_image(
        self, reference: str, progress: "Callable[[TransferProgress], object] | None" = None
    ) -> "AsyncImage":
        """Pull an image from a registry."""

    def pull_image_events(self, reference: str) -> AsyncGenerator[TransferProgress | ImageMade, None]:
        """Pull an image from a registry, and tell how far it is."""
        raise NotImplementedError

    async def build_image(
        self, directory: str | None, spec: BuildSpec, progress: "Callable[[BuildEvent], object] | None" = None
    ) -> "AsyncImage":
        """Build an image from a directory."""

    def build_image_events(
        self,
        chunks: AsyncIterable[bytes],
        *,
        name: str | None = None,
        dockerfile: str = "Dockerfile",
        outside: str | None = None,
        build_args: Mapping[str, str] | None = None,
        target: str | None = None,
        preset: str | None = None,
        base: str | None = None,
        network: Network | NetworkPolicy | None = None,
        limits: Limits | None = None,
        timeout: float | None = None,
        cache: bool = True,
    ) -> AsyncGenerator[BuildEvent | ImageMade, None]:
        """Build an image from the archive of a directory, and tell of it."""
        raise NotImplementedError

    async def bootstrap_image(
        self, distribution: str, *, suite: str, include: Sequence[str], name: str
    ) -> "AsyncImage":
        """Make an image of a distribution on this machine."""

    async def get_image(self, name: str) -> "AsyncImage":
        """Find the image with that name."""

    async def list_images(self) -> builtins.list[ImageInfo]:
        """List all images."""

    async def prune_images(self, *, all: bool = False) -> builtins.list[str]:
        """Remove what has no name, and with `all` images that nothing stands on."""


def provider_for(url: str | None, api_key: str | None) -> Provider:
    """Return the server that `url` or COVE_URL names, otherwise this program.

    Both lie in layers above this one, and most of the time that importing Cove takes is theirs: each is imported by
    name when it is first used.
    """
    provider: Provider
    if chosen := url or os.environ.get("COVE_URL"):
        provider = import_module("cove.client.provider").RemoteProvider(chosen, api_key)
    else:
        provider = import_module("cove.runtime.provider").EMBEDDED
    return provider


class Destroyable(Protocol):
    """The resource that `async with` destroys or detaches."""

    async def destroy(self) -> None:
        """Destroy the resource."""

    async def detach(self) -> None:
        """Let go of it."""


T = TypeVar("T", bound=Destroyable)


class AwaitableContext(Generic[T]):
    """`await opening` gives the thing; `async with opening as thing` also destroys it at the end if it is owned
    and lets go of it otherwise."""

    def __init__(self, open: Callable[[], Awaitable[T]], *, owned: bool) -> None:
        self._open = open
        self._owned = owned
        self._opened: T | None = None

    def __await__(self) -> Generator[object, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await (self._opened.destroy() if self._owned else self._opened.detach())
