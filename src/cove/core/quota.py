"""Decide whether a tenant may have one more sandbox, and what its sandboxes may reach."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from cove.core.network_policy import Allowed, Policy
from cove.errors import LimitExceeded, PermissionDenied
from cove.model.api_key import Quota
from cove.model.network import Network, NetworkLimits, NetworkPolicy, NetworkRule, parse_target
from cove.model.spec import Limits

_RANK: Final = (Network.NONE, Network.INTERNET, Network.HOST)
_OF_LIMITS: Final = ("memory", "cpus")
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


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
        network=narrowest(each.network for each in found if each.network is not None),
    )


def narrowest(networks: Iterable[Network | NetworkPolicy]) -> Network | NetworkPolicy | None:
    """Return what all of them allow to reach; None where there is none."""
    found = list(networks)
    modes = [each for each in found if isinstance(each, Network)]
    policies = [each for each in found if isinstance(each, NetworkPolicy)]
    least = min(modes, key=_RANK.index, default=None)
    if least is Network.NONE or not policies:
        return least
    return functools.reduce(_meet, policies)


def _meet(one: NetworkPolicy, other: NetworkPolicy) -> NetworkPolicy:
    """Return what both policies allow: rules of each that the other allows, without what is narrower in one."""
    shared = [*_rules_within(Policy(other), one), *_rules_within(Policy(one), other)]
    limits = NetworkLimits(
        **{
            name: min((most for each in (one, other) if (most := getattr(each.limits, name)) is not None), default=None)
            for name in NetworkLimits.__struct_fields__
        }
    )
    met = NetworkPolicy(allow=shared, deny=tuple(dict.fromkeys((*one.deny, *other.deny))), limits=limits)
    beyond = {f"{each.pattern}:{each.port}": None for most in (one, other) for each in _excesses(most, met)}
    return msgspec.structs.replace(met, deny=(*met.deny, *beyond))


def _rules_within(most: Policy, policy: NetworkPolicy) -> Iterator[NetworkRule]:
    for rule in policy.rules:
        if all(_allows(most, rule.target.pattern, port, rule) for port in rule.target.ports):
            yield rule


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
        taken_text, wanted_text, most_text = (_amount(name, each) for each in (used, wanted, most))
        raise _exceeded(f"max_{name}", f"{taken_text} are taken, {wanted_text} more are wanted, of {most_text}")


def _amount(name: str, value: float) -> str:
    return f"{value:g}" if name == "cpus" else format_size(value)


def format_size(value: float) -> str:
    """Format bytes as people say them: in the largest unit of which there is one."""
    size, unit = next(((size, unit) for size, unit in _UNITS if value >= size), (1, "bytes"))
    return f"{round(value / size, 1):g} {unit}"


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
    _check_policy(most, wanted)


def _check_policy(most: NetworkPolicy, wanted: NetworkPolicy) -> None:
    for excess in _excesses(most, wanted):
        raise PermissionDenied(f"network rule {excess.rule.host!r}: {excess.reason}")
    for name in NetworkLimits.__struct_fields__:
        bound, asked = getattr(most.limits, name), getattr(wanted.limits, name)
        if bound is not None and (asked is None or asked > bound):
            raise PermissionDenied(f"this key allows a policy with limits.{name} of at most {bound}")


@dataclass(frozen=True, slots=True)
class _Excess:
    """Something that `rule` of a policy allows beyond another policy, and the reason in words."""

    pattern: str
    port: int
    rule: NetworkRule
    reason: str


def _excesses(most: NetworkPolicy, wanted: NetworkPolicy) -> Iterator[_Excess]:
    """Find what a policy allows and the other does not.

    Names that no pattern of either policy tells apart are judged alike. So one is tried for each pattern: the name
    itself, and for a wildcard the label `*`, which no name has.
    """
    ours, theirs = Policy(most), Policy(wanted)
    for pattern in dict.fromkeys((*_patterns(wanted), *_patterns(most))):
        for port in theirs.ports_of(pattern):
            verdict = theirs.judge(pattern, port)
            rule = verdict.rule if isinstance(verdict, Allowed) else None
            if rule is not None and not _allows(ours, pattern, port, rule):
                yield _Excess(pattern, port, rule, _describe(ours, pattern, port, rule))


def _patterns(policy: NetworkPolicy) -> Iterator[str]:
    yield from (rule.target.pattern for rule in policy.rules)
    yield from (parse_target(text).pattern for text in policy.deny)


def _describe(most: Policy, pattern: str, port: int, rule: NetworkRule) -> str:
    if (denied := most.denial_of(pattern, port)) is not None:
        return f"this key denies {denied}: deny it in the policy too"
    if pattern != rule.target.pattern:
        return f"this key allows less of {pattern}: deny it, or give a rule of its own that allows no more"
    return "this key does not allow it"


def _allows(most: Policy, pattern: str, port: int, rule: NetworkRule) -> bool:
    """Return whether what that rule allows of these names is allowed by the rule that would judge them."""
    verdict = most.judge(pattern, port)
    return isinstance(verdict, Allowed) and verdict.rule is not None and _covers(verdict.rule, rule)


def _covers(most: NetworkRule, rule: NetworkRule) -> bool:
    """Return whether a rule allows all requests that another does, of the names and ports that both have."""
    is_free = not most.methods and not most.paths
    is_alike = (most.methods, most.paths) == (rule.methods, rule.paths) and most.websocket >= rule.websocket
    return (is_free or is_alike) and most.private >= rule.private
