"""Give account of a sandbox: what it is, what it uses, and what was done in it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime

import msgspec

from cove.errors import PermissionDenied
from cove.local.threads import in_thread
from cove.model import JournalEvent, JournalKind, SandboxInfo, TreeKill, Usage
from cove.runtime.gate import gated_call
from cove.runtime.isolation import backend_of
from cove.runtime.jail import Jail
from cove.runtime.journal import Journal
from cove.runtime.layers import SandboxLayers
from cove.runtime.sandbox_mounts import Mounts
from cove.runtime.sandbox_settings import SandboxSettings
from cove.runtime.surfaces import Surfaces
from cove.runtime.usage import measure_usage
from cove.runtime.users import Users


class SandboxAccounts(SandboxSettings):
    """Reads what its parts say of themselves."""

    mounts: Mounts
    created_at: datetime
    layers: SandboxLayers
    users: Users
    journaling: Journal
    _jail: Jail
    _surfaces: Surfaces

    async def info(self) -> SandboxInfo:
        groups = self._jail.groups
        warnings = groups.warnings()
        warnings += backend_of(self._spec.isolation).warnings
        warnings += self.network.warnings(self._spec.network)
        warnings += self.mounts.warnings
        return SandboxInfo(
            id=self.id,
            status=self.life.status,
            created_at=self.created_at,
            spec=self._spec,
            isolation=self._spec.isolation,
            tree_kill=TreeKill.SUBREAPER if groups.tree is None else TreeKill.CGROUP,
            limits_enforced=groups.enforced,
            warnings=tuple(warnings),
            snapshots=self.layers.method,
            ends_at=self.ends_at,
            users=self.users.kind,
        )

    @gated_call
    async def usage(self) -> Usage:
        self._check_running()
        directories = self.layers.place.directories
        jail, measure = self._jail, self.layers.measure
        usage = await in_thread(measure_usage, jail.groups, jail.pid, directories, measure)
        usage = msgspec.structs.replace(usage, disk_bytes=(usage.disk_bytes or 0) + self._surfaces.processes.log_bytes)
        return await self.network.add_usage(usage)

    def note_created(self) -> None:
        """Begin its journal."""
        self.journaling.record(JournalKind.CREATED, subject=self.id, target=self._spec.snapshot or self._spec.image)

    async def token(self, operations: Sequence[str], *, expires: float = 3600.0, path: str | None = None) -> str:
        raise PermissionDenied("this sandbox is in your program: tokens are for sandboxes of a server")

    async def signed_url(self, path: str, *, write: bool = False, expires: float = 3600.0) -> str:
        return await self.token(["files"], expires=expires, path=path)

    async def journal(self, *, since: str | None = None, follow: bool = False) -> AsyncGenerator[JournalEvent, None]:
        async with aclosing(self.journaling.read(since, follow)) as events:
            async for event in events:
                yield event
