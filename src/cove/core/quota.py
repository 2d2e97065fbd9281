"""Decide whether a tenant may have one more sandbox, and what its sandboxes may reach."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cove.errors import LimitExceeded, PermissionDenied
from cove.model.api_key import Quota
from cove.model.network import Network, NetworkPolicy, NetworkRule
from cove.model.spec import Limits

_RANK: Final = (Network.NONE, Network.INTERNET, Network.HOST)
_OF_LIMITS: Final = ("memory", "cpus")


class Use(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The use that a tenant makes of one node: sandboxes that run or are about to, disk and snapshots."""

    running: tuple[Limits, ...] = ()
    pending: tuple[Limits, ...] = ()
    disk: int = 0
    snapshots: int = 0

    def settled(self) -> "Use":
        """Return it without what is only about to run."""
        return msgspec.structs.replace(self, pending=())


def check_use(quota: Quota, uses: Sequence[Use], wanted: Limits) -> None:
    """Raise LimitExceeded where one more sandbox with these limits, beside all uses, is too much."""
    pending = [limits for use in uses for limits in use.pending]
    check_sandboxes(quota, [*(limits for use in uses for limits in use.running), *pending], wanted)
    check_sum(quota, "disk", [*(use.disk for use in uses), *(limits.disk for limits in pending)], wanted.disk)


def strictest(quotas: Iterable[Quota]) -> Quota:
    """Return what all of them allow: each key of a tenant may bound it."""
    found = list(quotas)
    return Quota(
        **{
            name: min((value for each in found if (value := getattr(each, name)) is not None), default=None)
            for name in ("max_sandboxes", "max_memory", "max_cpus", "max_disk", "max_snapshots", "rate")
        },
        network=next((each.network for each in found if each.network is not None), None),
    )


def check_sandboxes(quota: Quota, running: Sequence[Limits], wanted: Limits) -> None:
    """Raise LimitExceeded where one more sandbox with these limits, beside those that run, is too much."""
    if quota.max_sandboxes is not None and len(running) >= quota.max_sandboxes:
        raise _exceeded("max_sandboxes", f"{len(running)} sandboxes run")
    for name in _OF_LIMITS:
        check_sum(quota, name, [getattr(each, name) for each in running], getattr(wanted, name))


def check_sum(quota: Quota, name: str, taken: Iterable[float | None], wanted: float | None) -> None:
    """Raise LimitExceeded where what is wanted of something, beside what is taken, is more than the quota has."""
    most = getattr(quota, f"max_{name}")
    if most is None:
        return
    if wanted is None:
        raise _exceeded(f"max_{name}", f"a sandbox without limits.{name} could take more")
    used = sum(each or 0 for each in taken)
    if used + wanted > most:
        raise _exceeded(f"max_{name}", f"{used:g} are taken, {wanted:g} more are wanted, of {most:g}")


def check_snapshots(quota: Quota, count: int) -> None:
    """Raise LimitExceeded where there are as many snapshots as there may be."""
    if quota.max_snapshots is not None and count >= quota.max_snapshots:
        raise _exceeded("max_snapshots", f"there are {count} snapshots")


def _exceeded(name: str, why: str) -> LimitExceeded:
    return LimitExceeded(f"the quota {name} of this key is used up: {why}", limit=name)


def check_network(most: Network | NetworkPolicy | None, wanted: Network | NetworkPolicy) -> None:
    """Raise PermissionDenied where a network is more than the quota allows to reach."""
    if most is None or wanted is Network.NONE:
        return
    if isinstance(most, Network):
        rank = _RANK.index(Network.INTERNET if isinstance(wanted, NetworkPolicy) else wanted)
        if rank <= _RANK.index(most):
            return
        raise PermissionDenied(f"this key allows at most network={str(most)!r}")
    if not isinstance(wanted, NetworkPolicy):
        raise PermissionDenied("this key allows some names only: give a policy with these")
    for rule in wanted.rules:
        if not any(_covers(each, rule) for each in most.rules):
            raise PermissionDenied(f"network rule {rule.host!r}: this key does not allow it")


def _covers(most: NetworkRule, rule: NetworkRule) -> bool:
    ours, theirs = most.target, rule.target
    is_below = ours.is_wildcard and theirs.name.endswith(f".{ours.name}")
    is_same = ours.name == theirs.name and ours.is_wildcard == theirs.is_wildcard
    is_free = not most.methods and not most.paths
    is_alike = is_free or (most.methods, most.paths) == (rule.methods, rule.paths)
    return (is_below or is_same) and set(theirs.ports) <= set(ours.ports) and is_alike and most.private >= rule.private
