"""Hold each tenant to its quota, whichever process makes a sandbox. Blocks.

`tenants/NAME/running/KEY` says what a sandbox that runs may take. It counts while the lock of its place is held, so
what a process that was killed leaves counts for nothing. Who adds one holds the tenant's lock.

In a cluster `elsewhere/NODE` says what the tenant has on another node, as it was heard last. A gateway reserves what a
sandbox may take before it is made: `pending/NAME` counts while that gateway holds its lock, and becomes `running/KEY`.
`snapshots/NAME` is one that is being made, while its maker holds the lock.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from cove.core.identifier import new_identifier
from cove.core.network_grants import NetworkGrants
from cove.core.quota import Use, check_network, check_snapshots, check_sum, check_use, strictest
from cove.layers.store import LayerStore
from cove.linux.file_lock import is_locked, make_locked, waiting_lock
from cove.local.api_keys import TENANTS, ApiKeys
from cove.local.state import replace_file
from cove.model import Limits, Quota, SandboxSpec
from cove.runtime.home import Home
from cove.runtime.volumes import Volumes
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.network_grants import read_grants

_RUNNING = "running"
_PENDING = "pending"
_ELSEWHERE = "elsewhere"
_SNAPSHOTS = "snapshots"
_LOCK = "lock"

T = TypeVar("T")


def quota_of(home: Path, tenant: str) -> Quota:
    """Return the quota of a tenant; that of the server itself has no bounds."""
    if not tenant:
        return Quota()
    return strictest(record.quota for record in ApiKeys(home).read() if record.tenant == tenant)


def check_spec_quota(home: Path, tenant: str, spec: SandboxSpec) -> None:
    """Refuse what no sandbox of a tenant may be. Raises PermissionDenied."""
    check_network(quota_of(home, tenant).network, spec.network)


def network_grants_of(home: Path, tenant: str) -> NetworkGrants:
    """Return what the configuration grants, for a tenant: within its quota."""
    return msgspec.structs.replace(read_grants(home), most=quota_of(home, tenant).network)


def enter(directory: Directory, key: str, limits: Limits, reserved: str = "") -> None:
    """Count a sandbox, whose place is held, among those of its tenant that run; it may have been `reserved`.

    Raises LimitExceeded.
    """
    quota = quota_of(directory.home, directory.tenant)
    if quota == Quota():
        return
    with _locked(directory) as place:
        pending = place / _PENDING / reserved
        if not reserved or not is_locked(pending):
            check_use(quota, [_use(directory, quota, but=key), *_elsewhere(place).values()], limits)
        replace_file(place / _RUNNING / key, msgspec.json.encode(limits))
        if reserved:
            pending.unlink(missing_ok=True)


@contextmanager
def reserved(directory: Directory, quota: Quota, limits: Limits, key: str) -> Iterator[str]:
    """Count a sandbox that is about to run, or one that is there by its `key`; gives the name of what is reserved.

    Raises LimitExceeded where this node alone has too much.
    """
    with _locked(directory) as place:
        check_use(quota, [_use(directory, quota, but=key)], limits)
        path = place / _PENDING / f"{time.monotonic_ns():020d}-{new_identifier()}"
        file = make_locked(path)
        file.write(msgspec.json.encode(limits))
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)
        file.close()


def use_of(directory: Directory) -> Use:
    """Return what a tenant has here, for other nodes."""
    quota = quota_of(directory.home, directory.tenant)
    with _locked(directory):
        found = _use(directory, quota)
    if quota.max_snapshots is None:
        return found
    return msgspec.structs.replace(found, snapshots=len(LayerStore(directory.home, directory.tenant).list()))


def check_reserved(
    directory: Directory, quota: Quota, limits: Limits, key: str, name: str, elsewhere: Iterable[Use]
) -> None:
    """Check what was reserved by that name beside what was here before it, and what is elsewhere.

    Raises LimitExceeded. What was reserved here later counts this one, so this one need not count it.
    """
    with _locked(directory):
        here = _use(directory, quota, but=key, before=name)
    check_use(quota, [here, *elsewhere], limits)


def note_elsewhere(directory: Directory, uses: dict[str, Use], members: Iterable[str]) -> dict[str, Use]:
    """Remember what other nodes said, and return what is known of all: of silent ones, what they said last."""
    with _locked(directory) as place:
        for node, use in uses.items():
            replace_file(place / _ELSEWHERE / node, msgspec.json.encode(use))
        known = _elsewhere(place)
        for node in known.keys() - set(members):
            (place / _ELSEWHERE / node).unlink(missing_ok=True)
    return {node: use for node, use in known.items() if node in members}


def leave(directory: Directory, key: str) -> None:
    """Count a sandbox no more: it is stopped, though its process holds the place for a moment longer."""
    (directory.home / TENANTS / directory.tenant / _RUNNING / key).unlink(missing_ok=True)


def make_within_quota(directory: Directory, size: int | None, make: Callable[[], T]) -> T:
    """Make a volume of that size, unless it is more than the tenant may have. Raises LimitExceeded."""
    quota = quota_of(directory.home, directory.tenant)
    if quota.max_disk is None:
        return make()
    with _locked(directory) as place:
        use = _use(directory, quota)
        taken = [use.disk, *(limits.disk for limits in use.pending), *(use.disk for use in _elsewhere(place).values())]
        check_sum(quota, "disk", taken, size)
        return make()


def reserve_snapshot(home: Path, tenant: str) -> Callable[[], None]:
    """Count a snapshot that is about to be made, until what is returned is called. Raises LimitExceeded."""
    quota = quota_of(home, tenant)
    if quota.max_snapshots is None:
        return lambda: None
    with _locked(Directory(home, tenant)) as place:
        coming = _counted(place / _SNAPSHOTS, is_locked, lambda _: True)
        others = sum(use.snapshots for use in _elsewhere(place).values())
        check_snapshots(quota, len(LayerStore(home, tenant).list()) + len(coming) + others)
        path = place / _SNAPSHOTS / new_identifier()
        file = make_locked(path)
        file.write(msgspec.json.encode(Limits()))

    def release() -> None:
        path.unlink(missing_ok=True)
        file.close()

    return release


@contextmanager
def _locked(directory: Directory) -> Iterator[Path]:
    """Hold the lock of a tenant, and give the directory of what it has."""
    place = directory.home / TENANTS / directory.tenant
    for name in (_RUNNING, _PENDING, _ELSEWHERE, _SNAPSHOTS):
        (place / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    with waiting_lock(place / _LOCK):
        yield place


def _use(directory: Directory, quota: Quota, *, but: str = "", before: str = "") -> Use:
    place = directory.home / TENANTS / directory.tenant
    running = _counted(place / _RUNNING, lambda path: directory.is_held(path.name), lambda name: name != but)
    pending = _counted(place / _PENDING, is_locked, lambda name: not before or name < before)
    return Use(
        running=tuple(running.values()),
        pending=tuple(pending.values()),
        disk=0 if quota.max_disk is None else _disk(directory, running, but=but),
    )


def _counted(place: Path, is_there: Callable[[Path], bool], counts: Callable[[str], bool]) -> dict[str, Limits]:
    """Return what counts, by its name, and remove what somebody who was killed has left."""
    found = {}
    for path in place.glob("[!.]*"):
        if not is_there(path):
            path.unlink(missing_ok=True)
        elif counts(path.name):
            found[path.name] = msgspec.json.decode(path.read_bytes(), type=Limits)
    return found


def _elsewhere(place: Path) -> dict[str, Use]:
    paths = (place / _ELSEWHERE).glob("[!.]*")
    return {path.name: msgspec.json.decode(path.read_bytes(), type=Use) for path in paths}


def _disk(directory: Directory, running: dict[str, Limits], *, but: str = "") -> int:
    """Return what sandboxes, running or not, and volumes may take of the disk; one that starts has no record yet."""
    sandboxes = {key: limits.disk for key, limits in running.items()}
    sandboxes |= {record.key: record.spec.limits.disk for record in directory.list() if record.key != but}
    volumes = [info.size for info in Volumes(Home(directory.home, directory.tenant)).list()]
    return sum(each or 0 for each in (*sandboxes.values(), *volumes))
