"""Interface of a snapshot: the files of a sandbox at one moment."""

import builtins
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime
from os import PathLike

from cove.api.named import Named
from cove.api.provider import provider_for
from cove.model import ExportInfo, SnapshotInfo, TransferProgress


class AsyncSnapshot(Named, ABC):
    """A snapshot, made by `sandbox.snapshot()`. It stays until it is deleted, also when the sandbox is gone.

    `name` and `labels` are what it was given; `parent` is the id of the snapshot that its sandbox stood on,
    `owner` the tenant it belongs to.
    """

    id: str
    name: str | None
    labels: Mapping[str, str]
    created_at: datetime
    parent: str | None
    size: int | None
    owner: str | None

    def __init__(self, info: SnapshotInfo) -> None:
        self.id, self.name, self.labels = info.id, info.name, info.labels
        self.created_at, self.parent, self.size = info.created_at, info.parent, info.size
        self.owner = info.owner

    @classmethod
    async def get(cls, id: str, *, url: str | None = None, api_key: str | None = None) -> "AsyncSnapshot":
        """The snapshot with that id; raises SnapshotNotFound."""
        return await provider_for(url, api_key).get_snapshot(id)

    @classmethod
    async def list(
        cls, *, labels: Mapping[str, str] | None = None, url: str | None = None, api_key: str | None = None
    ) -> "builtins.list[SnapshotInfo]":
        """All snapshots that have these labels, oldest first."""
        found = await provider_for(url, api_key).list_snapshots()
        return [each for each in found if (labels or {}).items() <= each.labels.items()]

    @classmethod
    async def load(
        cls,
        source: str | PathLike[str],
        *,
        progress: "Callable[[TransferProgress], object] | None" = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "AsyncSnapshot":
        """Load what `export` has written, from a path of yours or `s3://…`; verified by digest, or ValidationFailed."""
        return await provider_for(url, api_key).load_snapshot(os.fspath(source), progress)

    @abstractmethod
    async def export(
        self,
        target: str | PathLike[str],
        *,
        progress: "Callable[[TransferProgress], object] | None" = None,
    ) -> ExportInfo:
        """Write it as compressed layers named by digest; layers that are there already are not written again.

        The target is a path of yours, a directory if it is one or ends with `/`, otherwise one file; or
        `s3://BUCKET/PREFIX`, with the credentials of your environment.
        """

    @abstractmethod
    def read_archive(self) -> AsyncGenerator[bytes, None]:
        """Read what `export` writes to one file, in pieces."""

    @abstractmethod
    async def digest(self) -> str:
        """Return the digest of its files, computed when it is first asked for. Equal digests mean equal content."""

    @abstractmethod
    async def info(self) -> SnapshotInfo:
        """Describe the snapshot, and count what the files take that it added."""

    @abstractmethod
    async def delete(self) -> None:
        """Remove it. What sandboxes and other snapshots stand on stays until the last of them is gone."""
