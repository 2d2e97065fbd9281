"""API keys of a server: whose they are, how long they hold, and how much their tenant may have."""

import re
from datetime import datetime

import msgspec

from cove.errors import ValidationFailed
from cove.model.network import Network, NetworkPolicy, check_network

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The most that a tenant may have at once; None is no bound but the server's.

    Memory and disk are in bytes, and count what the limits of its sandboxes allow them. `network` is the most that a
    sandbox may reach, `rate` the requests a second.
    """

    max_sandboxes: int | None = None
    max_memory: int | None = None
    max_cpus: float | None = None
    max_disk: int | None = None
    max_snapshots: int | None = None
    network: Network | NetworkPolicy | None = None
    rate: float | None = None


class ApiKeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one key. What a tenant's keys make belongs to the tenant; an admin's key reaches everything."""

    name: str
    tenant: str
    created_at: datetime
    is_admin: bool = False
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    quota: Quota = Quota()


class ApiKeyMade(msgspec.Struct, frozen=True, kw_only=True):
    """A new key: its text is told this once, and kept nowhere."""

    key: str
    info: ApiKeyInfo


def check_key_name(name: object) -> str:
    """Return the name of a key or of a tenant, or raise ValidationFailed."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValidationFailed(f"{name!r} is no name of a key: use 1-63 of a-z, 0-9 and inner hyphens")
    return name


def check_quota(quota: object) -> Quota:
    """Return a quota; ValidationFailed for what is none, or has a bound that nothing could keep."""
    try:
        quota = msgspec.convert(msgspec.to_builtins(quota), Quota)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValidationFailed(f"the quota is not valid: {error}") from None
    if isinstance(quota.network, NetworkPolicy):
        check_network(quota.network)
    for field in ("max_sandboxes", "max_memory", "max_cpus", "max_disk", "max_snapshots", "rate"):
        value = getattr(quota, field)
        if value is not None and not 0 <= value < float("inf"):
            raise ValidationFailed(f"{field} must not be negative")
    if quota.rate == 0:
        raise ValidationFailed("rate must be more than 0: remove the key to refuse all")
    return quota
