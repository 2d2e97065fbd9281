"""Judge names, ports, addresses and requests by a network policy."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from cove.model.network import INTERNET_PORTS, Network, NetworkPolicy, NetworkRule, Target, parse_target

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_SMTP = 25
# Texts that servers decode or drop before they look for a path: with a rule on paths, nobody could judge it.
_AMBIGUOUS = re.compile(r"//|/\.{1,2}(/|$|;)|\\|%2e|%2f|%5c|%00|%25|;", re.IGNORECASE)

# Headers by which frameworks take another method or path than those of the request line.
_METHOD_OVERRIDES = frozenset(("x-http-method-override", "x-http-method", "x-method-override"))
_PATH_OVERRIDES = frozenset(("x-original-url", "x-rewrite-url"))


@dataclass(frozen=True, slots=True)
class Allowed:
    """It may be reached, by this rule; without one, because every public name may.

    What is replayed is answered from a cassette: nothing is looked up or connected to for it.
    """

    rule: NetworkRule | None
    is_replayed: bool = False

    @property
    def text(self) -> str:
        """The rule as the log names it."""
        return "internet" if self.rule is None else self.rule.host

    @property
    def is_private(self) -> bool:
        """Return whether it may lead to a private address."""
        return self.rule is not None and self.rule.private


@dataclass(frozen=True, slots=True)
class Refused:
    """It may not be reached; `rule` would allow it, if any would."""

    reason: str
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Failed(Refused):
    """It is allowed, and could not be reached or sent: no rule is to blame."""


Verdict = Allowed | Refused


@dataclass(slots=True)
class _Names:
    """Rules by the name they are for: looking one up costs as much as the name has labels."""

    exact: dict[str, list[tuple[Target, NetworkRule]]] = field(default_factory=dict)
    wildcards: dict[str, list[tuple[Target, NetworkRule]]] = field(default_factory=dict)

    def add(self, target: Target, rule: NetworkRule) -> None:
        kind = self.wildcards if target.is_wildcard else self.exact
        kind.setdefault(target.name, []).append((target, rule))

    def find(self, name: str) -> list[tuple[Target, NetworkRule]]:
        """Those for this name, exact ones first, then from the longest wildcard to the shortest."""
        found = list(self.exact.get(name, ()))
        rest = name
        while "." in rest:
            rest = rest.partition(".")[2]
            found += self.wildcards.get(rest, ())
        return found


class Policy:
    """A policy made ready for many questions. Deny goes before allow, exact names before wildcards."""

    def __init__(self, network: Network | NetworkPolicy, *, any_port: bool = False) -> None:
        self.is_internet = network is Network.INTERNET
        self._any_port = any_port and self.is_internet
        policy = network if isinstance(network, NetworkPolicy) else NetworkPolicy()
        self.limits = policy.limits
        self.record, self.replay = policy.record, policy.replay
        self._allow, self._deny = _Names(), _Names()
        ports = set[int](INTERNET_PORTS if self.is_internet else ())
        addresses = set[str]()
        for rule in policy.rules:
            target = rule.target
            if self.replay is not None and target.is_address:
                continue  # no cassette answers for it
            self._allow.add(target, rule)
            ports |= set(target.ports)
            if target.is_address:
                addresses.add(target.name)
        for text in policy.deny:
            self._deny.add(parse_target(text), NetworkRule(text))
        self.ports = tuple(sorted(ports))
        self.addresses = tuple(sorted(addresses))

    def judge_name(self, name: str) -> Verdict:
        """Decide whether the name resolves: whether any port of it may be reached."""
        if any(not target.ports for target, _ in self._deny.find(name)):
            return Refused(f"{name} is denied")
        if found := self._allow.find(name):
            return Allowed(found[0][1], self.replay is not None)
        if self.is_internet:
            return Allowed(None)
        return Refused(f"{name} is not allowed", name)

    def judge(self, name: str, port: int) -> Verdict:
        """Decide whether a connection to that name and port is allowed, and by which rule."""
        if self.denial_of(name, port) is not None:
            return Refused(f"{name}:{port} is denied")
        found = self._allow.find(name)
        for target, rule in found:
            if port in target.ports:
                return Allowed(rule, self.replay is not None)
        if self.is_internet and port in self.ports:
            return Allowed(None)
        if self._any_port and port != _SMTP:
            return Allowed(None)
        if found or self.is_internet:
            return Refused(f"port {port} of {name} is not allowed", f"{name}:{port}")
        return Refused(f"{name} is not allowed", f"{name}:{port}")

    def denial_of(self, name: str, port: int) -> str | None:
        """Return the entry of `deny` that this name and port fall under, if one does."""
        found = self._deny.find(name)
        return next((rule.host for target, rule in found if not target.ports or port in target.ports), None)

    def ports_of(self, name: str) -> tuple[int, ...]:
        """Return the ports that rules have for this name, sorted."""
        return tuple(sorted({port for target, _ in self._allow.find(name) for port in target.ports}))

    def intercepts(self, allowed: Allowed) -> bool:
        """Return whether the single requests of such a connection are judged, recorded or replayed."""
        if self.record is not None or self.replay is not None:
            return allowed.rule is None or not allowed.rule.target.is_address
        return allowed.rule is not None and allowed.rule.is_intercepted

    @property
    def intercepted_names(self) -> tuple[str, ...]:
        """Patterns whose TLS ends at the host, sorted."""
        rules = [rule for rules in self._all_rules() for _, rule in rules if self.intercepts(Allowed(rule))]
        return tuple(sorted({rule.target.pattern for rule in rules}))

    def _all_rules(self) -> Iterable[list[tuple[Target, NetworkRule]]]:
        yield from self._allow.exact.values()
        yield from self._allow.wildcards.values()


def network_warnings(network: Network | NetworkPolicy) -> list[str]:
    """Return warnings of what a policy allows and its author may not have meant."""
    targets = [rule.target for rule in network.rules] if isinstance(network, NetworkPolicy) else []
    told = []
    if wildcards := [target.pattern for target in targets if target.is_wildcard]:
        told.append(f"whoever can have a name below {', '.join(wildcards)} can be reached: name hosts where you can")
    if own := [target.pattern for target in targets if _is_loopback(target)]:
        told.append(f"inside, {', '.join(own)} is the sandbox itself: reach this machine by another name of it")
    return told


def _is_loopback(target: Target) -> bool:
    """Return whether programs inside take it for their own machine, and never ask for it."""
    if target.is_address:
        return ipaddress.IPv4Address(target.name).is_loopback
    return target.name == "localhost" or target.name.endswith(".localhost")


def judge_address(address: Address, *, private: bool) -> str | None:
    """Return why this address of an allowed name is not connected to, or None. `private` is what its rule says.

    Link-local addresses (the metadata services of clouds), multicast and what a tunnel or translator would lead to
    are refused always.
    """
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return judge_address(address.ipv4_mapped, private=private)
    if not address.is_loopback and _is_in(address, _NEVER):
        return f"{address} is a link-local, multicast or translated address"
    if private or _is_public(address):
        return None
    return f"{address} is a private address"


def _is_public(address: Address) -> bool:
    return address.is_global and not _is_in(address, _NOT_PUBLIC) and (address.version == 4 or address in _UNICAST)


def _is_in(address: Address, networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


# Whatever a rule says: no name of the internet leads here by right.
_NEVER = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/32", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "198.18.0.0/15"),
        *("::/128", "fe80::/10", "ff00::/8"),
        # IPv4-compatible, NAT64 (well-known and local), 6to4 and Teredo: a way round every check of the outer address.
        *("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"),
    )
)
# Of the special registries, what Python's `is_global` counts as public: RFC 6890, RFC 7526.
_NOT_PUBLIC = tuple(ipaddress.ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24"))
_UNICAST = ipaddress.ip_network("2000::/3")


def judge_request(rule: NetworkRule, host: str, method: str, path: str) -> Refused | None:
    """Return why the request is refused, or None. `path` has no query."""
    if rule.methods and method not in rule.methods:
        return Refused(f"{method} {host} is not allowed", f"{rule.host} with methods={method!r}")
    if not rule.paths:
        return None
    if _AMBIGUOUS.search(path):
        return Refused(f"the path of {method} {host}{path} can be understood in two ways")
    if not any(_fits(path, pattern) for pattern in rule.paths):
        return Refused(f"{method} {host}{path} is not allowed", f"{rule.host} with paths={path!r}")
    return None


def judge_headers(rule: NetworkRule, host: str, names: Iterable[str]) -> Refused | None:
    """Return why a request with these headers is refused, or None: one that says another method or path than it has.

    Servers that make variables of headers take `_` for `-`.
    """
    overrides = (_METHOD_OVERRIDES if rule.methods else frozenset()) | (_PATH_OVERRIDES if rule.paths else frozenset())
    for name in names:
        if name.lower().replace("_", "-") in overrides:
            return Refused(
                f"{host}: the header {name} can stand for another method or path than the one that is allowed"
            )
    return None


def _fits(path: str, pattern: str) -> bool:
    """`*` is anything, slashes too. Each part takes the first place that there is, so that no path takes long."""
    first, *others = pattern.split("*")
    if not others:
        return path == pattern
    *middle, last = others
    at, end = len(first), len(path) - len(last)
    if not path.startswith(first) or not path.endswith(last):
        return False
    for part in middle:
        if (found := path.find(part, at, end)) < 0:
            return False
        at = found + len(part)
    return at <= end
