"""Decide what a client of a server may put into a network policy: only its configuration grants these."""

from collections.abc import Iterable

import msgspec

from cove.core.quota import check_network
from cove.errors import PermissionDenied
from cove.model.network import Network, NetworkPolicy, NetworkRule
from cove.model.secret import SecretSource


class NetworkGrants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Private hosts that a rule may name (`name` or `name:port`), secrets, and a name server for all lookups.

    `policies` are the server's own, by name: they may lead to private hosts that no other may name. `most` is what a
    tenant may reach at most.
    """

    private: tuple[str, ...] = ()
    secrets: dict[str, SecretSource] = {}
    resolver: str | None = None
    policies: dict[str, NetworkPolicy] = {}
    most: Network | NetworkPolicy | None = None

    def check(self, network: Network | NetworkPolicy) -> None:
        """Raise PermissionDenied for what the configuration does not grant, naming the rule."""
        check_network(self.most, network)
        is_own = self._is_own(network)
        for rule in network.rules if isinstance(network, NetworkPolicy) else ():
            if rule.private and not is_own and not self._grants_private(rule):
                raise PermissionDenied(f"network rule {rule.host!r}: this server does not allow private=True for it")
            for secret in rule.secrets:
                self.check_secret(secret.name, rule.target.name)
            if not any(rule in policy.rules for policy in self.policies.values()):
                self._check_places(rule)

    def _check_places(self, rule: NetworkRule) -> None:
        """Raise PermissionDenied for a secret in a place where a host could show it to another of its users."""
        basic = {} if rule.basic_auth is None else {"Authorization": rule.basic_auth}
        for header, secret in (*rule.inject.items(), *basic.items()):
            if not self.secrets[secret.name].may_be_header(header):
                raise PermissionDenied(_misplaced(secret.name, f"the header {header}", "headers", header))
        for field, secret in rule.query.items():
            if not self.secrets[secret.name].may_be_query(field):
                raise PermissionDenied(_misplaced(secret.name, f"the query field {field}", "query", field))

    def admit_preset(self, network: NetworkPolicy, rules: Iterable[NetworkRule]) -> list[NetworkRule]:
        """Return the rules of a preset as that policy may have them: private only where the configuration says so."""
        if self._is_own(network):
            return list(rules)
        return [rule if self._grants_private(rule) else msgspec.structs.replace(rule, private=False) for rule in rules]

    def _is_own(self, network: Network | NetworkPolicy) -> bool:
        return network in self.policies.values()

    def _grants_private(self, rule: NetworkRule) -> bool:
        target = rule.target
        return all(target.name in self.private or f"{target.name}:{port}" in self.private for port in target.ports)

    def check_secret(self, name: str, host: str) -> None:
        """Raise PermissionDenied for a secret that may not be sent to that host."""
        source = self.secrets.get(name)
        if source is None:
            raise PermissionDenied(f"this server defines no secret {name}")
        if host not in (source.hosts or ()):
            raise PermissionDenied(f"secret {name} may not be sent to {host}: its `hosts` say where")


def _misplaced(name: str, place: str, setting: str, entry: str) -> str:
    return (
        f"secret {name} may not be put into {place}: the configuration of this server grants that by "
        f'[network.secrets.{name}] {setting} = ["{entry}"]'
    )
