"""Operations that the gateway answers itself: those of the server, and those of sandboxes that need not run."""

import builtins
from dataclasses import dataclass

from cove.core.identifier import check_sandbox_id
from cove.errors import SandboxNotFound
from cove.local.threads import in_thread
from cove.model import SandboxInfo, SandboxSpec, VolumeInfo
from cove.model.mount import check_volume_name
from cove.model.spec import check_spec
from cove.runtime.home import Home
from cove.runtime.volumes import Volumes
from cove.server.gateway.documents import Documents
from cove.server.gateway.metrics import collect_metrics
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.starter import Starter


@dataclass(frozen=True, slots=True)
class VolumeAnswers:
    """The operations of one volume; the methods are those of `api.AsyncVolume`."""

    volumes: Volumes
    name: str

    async def info(self) -> VolumeInfo:
        """Describe it."""
        return await in_thread(self.volumes.get, self.name)

    async def delete(self) -> None:
        """Remove it with all that is in it."""
        await in_thread(self.volumes.delete, self.name)


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
        return record.info(record.status)

    async def list(self) -> builtins.list[SandboxInfo]:
        """List all sandboxes."""
        return await in_thread(self._list)

    def _list(self) -> builtins.list[SandboxInfo]:
        return [self.directory.info(record) for record in self.directory.list()]

    async def create_volume(self, name: str, *, size: int | None) -> VolumeInfo:
        """Make a volume, and answer by its facts."""
        return await in_thread(self._volumes.create, name, self.starter.configuration.admit_size(size))

    async def list_volumes(self) -> builtins.list[VolumeInfo]:
        """List all volumes."""
        return await in_thread(self._volumes.list)

    def volume(self, name: str) -> VolumeAnswers:
        """One volume, whether it is there or not."""
        return VolumeAnswers(self._volumes, check_volume_name(name))

    @property
    def _volumes(self) -> Volumes:
        return Volumes(Home(self.directory.home))

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
        await self.starter.destroy(check_sandbox_id(self.id))

    async def restart(self) -> None:
        """Start one that does not run."""
        record, _ = await self.find()
        await self.starter.start(record)
