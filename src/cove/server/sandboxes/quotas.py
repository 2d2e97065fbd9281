"""Hold each tenant to its quota, whichever process makes a sandbox. Blocks.

`tenants/NAME/running/KEY` says what a sandbox that runs may take. It counts while the lock of its place is held, so
what a process that was killed leaves counts for nothing. Who adds one holds the tenant's lock.
"""

from pathlib import Path

import msgspec

from cove.core.quota import check_network, check_sandboxes, check_snapshots, check_sum, strictest
from cove.layers.store import LayerStore
from cove.linux.file_lock import waiting_lock
from cove.local.api_keys import TENANTS, ApiKeys
from cove.local.state import replace_file
from cove.model import Limits, Quota, SandboxSpec
from cove.runtime.home import Home
from cove.runtime.volumes import Volumes
from cove.server.sandboxes.directory import Directory

_RUNNING = "running"
_LOCK = "lock"


def quota_of(home: Path, tenant: str) -> Quota:
    """Return the quota of a tenant; that of the server itself has no bounds."""
    if not tenant:
        return Quota()
    return strictest(record.quota for record in ApiKeys(home).read() if record.tenant == tenant)


def check_spec_quota(home: Path, tenant: str, spec: SandboxSpec) -> None:
    """Refuse what no sandbox of a tenant may be. Raises PermissionDenied."""
    check_network(quota_of(home, tenant).network, spec.network)


def enter(directory: Directory, key: str, limits: Limits) -> None:
    """Count a sandbox, whose place is held, among those of its tenant that run. Raises LimitExceeded."""
    quota = quota_of(directory.home, directory.tenant)
    if quota == Quota():
        return
    place = _place(directory)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with waiting_lock(place.parent / _LOCK):
        check_sandboxes(quota, _running(directory, place, but=key), limits)
        if quota.max_disk is not None:
            check_sum(quota, "disk", _disks(directory, but=key), limits.disk)
        replace_file(place / key, msgspec.json.encode(limits))


def leave(directory: Directory, key: str) -> None:
    """Count a sandbox no more: it is stopped, though its process holds the place for a moment longer."""
    (_place(directory) / key).unlink(missing_ok=True)


def check_volume_quota(directory: Directory, size: int | None) -> None:
    """Refuse a volume that is more than the tenant may have. Raises LimitExceeded."""
    check_sum(quota_of(directory.home, directory.tenant), "disk", _disks(directory), size)


def check_snapshot_quota(home: Path, tenant: str) -> None:
    """Refuse one more snapshot where there are as many as there may be. Raises LimitExceeded."""
    quota = quota_of(home, tenant)
    if quota.max_snapshots is not None:
        check_snapshots(quota, len(LayerStore(home, tenant).list()))


def _place(directory: Directory) -> Path:
    return directory.home / TENANTS / directory.tenant / _RUNNING


def _running(directory: Directory, place: Path, *, but: str) -> list[Limits]:
    found = []
    for path in place.glob("[!.]*"):
        if path.name == but:
            continue
        if directory.is_held(path.name):
            found.append(msgspec.json.decode(path.read_bytes(), type=Limits))
        else:
            path.unlink(missing_ok=True)
    return found


def _disks(directory: Directory, *, but: str = "") -> list[int | None]:
    """Return what sandboxes, running or not, and volumes may take of the disk."""
    sandboxes = [record.spec.limits.disk for record in directory.list() if record.key != but]
    return [*sandboxes, *(info.size for info in Volumes(Home(directory.home, directory.tenant)).list())]
