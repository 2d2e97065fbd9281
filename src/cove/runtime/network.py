"""The network of one sandbox, across the jails that it has: its policy, its log, and the trust that a policy needs.

A change is whole or not at all: one at a time, carried to its end also when the caller is cancelled, and taken back
when a part of it fails after connections have been judged by it already.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from cove.attach import BindFile, NetworkSetup
from cove.core.network_grants import NetworkGrants
from cove.core.network_log import NetworkLog
from cove.core.network_policy import Policy, network_warnings
from cove.core.quota import check_network
from cove.core.trust import BUNDLE, OTHER_BUNDLES, TRUST_VARIABLES
from cove.local.threads import in_thread
from cove.model import Network, NetworkEvent, NetworkPolicy, NetworkRule, Usage
from cove.runtime.egress import Egress
from cove.runtime.egress_process import EgressFiles, read_totals
from cove.runtime.home import Home, Place
from cove.runtime.jail import Jail
from cove.runtime.journal import Journal
from cove.runtime.package_hosts import PRESET, expand_presets, package_rules
from cove.runtime.trust import BUNDLE_FILE, KEY_FILE, placeholders, write_bundle
from cove.runtime.usage import TOTALS_FILE, with_totals
from cove.tasks import settled

AnyNetwork = Network | NetworkPolicy
NO_NF_TABLES = "the kernel has no nf_tables"
_ONLY_PORTS = (
    f"{NO_NF_TABLES}: the network has the ports of the policy, 22, 80 and 443 with `internet`, and no "
    "server inside can have one of them; `cove doctor` says how to get it"
)
_NOT_LISTED = "a private address, which the configuration of the server does not have in [network] private: refused"
_WITHOUT_EGRESS = (Network.NONE, Network.HOST)


class SandboxNetwork:
    """Made with the sandbox; `open` gives it a jail. `read_grants` says what a server's configuration grants."""

    _jail: Jail
    egress: Egress

    def __init__(self, place: Place, home: Home, journal: Journal) -> None:
        self._place = place
        self._home = home
        self._log = NetworkLog()
        self._journal = journal
        self._presets: list[NetworkRule] = []
        self._withheld: list[str] = []
        self._turn = asyncio.Lock()
        self.read_grants: Callable[[], NetworkGrants | None] = lambda: None

    async def attachments(self, network: AnyNetwork) -> list[NetworkSetup]:
        """Return what to attach to a jail before anything runs inside, so that this policy holds from the start."""
        if network in _WITHOUT_EGRESS:
            return []
        policy = Policy(await self._expand(network))
        return [NetworkSetup(ports=policy.ports, addresses=policy.addresses, any_port=True)]

    def open(self, jail: Jail) -> Egress:
        """Take over a started jail; no policy holds yet."""
        self._jail = jail
        path = self._place.path
        files = EgressFiles(path / KEY_FILE, path / TOTALS_FILE, self._home, self._place.user_id)
        self.egress = Egress(partial(_open_sockets, jail), files, self._log, self._journal)
        return self.egress

    async def begin(self, network: AnyNetwork, env: Mapping[str, str]) -> Mapping[str, str]:
        """Let the policy hold that the jail was attached for, or none; returns the variables that it brings."""
        if network in _WITHOUT_EGRESS:
            return {}
        try:
            brought = await self._apply(network, env, self._jail.sockets)
        except BaseException:
            await self.egress.close()
            raise
        self._jail.sockets = []  # they are the egress's
        return brought

    async def change(
        self,
        network: AnyNetwork,
        env: Callable[[], Mapping[str, str]],
        keep: Callable[[Mapping[str, str]], Awaitable[None]],
    ) -> None:
        """Let another policy hold; `keep` gets the variables that it brings when it does. Raises what prevents it."""

        async def change() -> None:
            async with self._turn:
                before, grants = self.egress.network, self.egress.grants
                try:
                    await keep(await self._apply(network, env()))
                except BaseException:
                    if self.egress.network != before:
                        await self._take_back(before, grants)
                    raise

        await settled(change())

    async def _take_back(self, network: AnyNetwork, grants: NetworkGrants | None) -> None:
        """Let the policy hold that held before, or none."""
        try:
            await self.egress.set_network(network, grants)
        except BaseException:
            await self.egress.set_network(Network.NONE)
            raise

    async def _apply(
        self, network: AnyNetwork, env: Mapping[str, str], sockets: Sequence[socket.socket] = ()
    ) -> dict[str, str]:
        grants = await in_thread(self.read_grants)
        if grants is not None:
            grants.check(network)
        expanded = await self._expand(network)
        if grants is not None:
            expanded = self._admit_presets(network, expanded, grants)
        certificate = await self.egress.set_network(expanded, grants, sockets)
        brought = placeholders(network, env)
        if certificate is not None:
            bundle = self._place.path / BUNDLE_FILE
            await in_thread(write_bundle, bundle, certificate)
            others = [BindFile(str(bundle), target, if_there=True) for target in OTHER_BUNDLES]
            await self._jail.attach([BindFile(str(bundle), BUNDLE), *others])
            brought |= TRUST_VARIABLES
        return brought

    async def _expand(self, network: AnyNetwork) -> AnyNetwork:
        """Replace presets in a policy, the same way as long as this sandbox runs."""
        if not isinstance(network, NetworkPolicy) or PRESET not in network.allow:
            return network
        self._presets = self._presets or await in_thread(package_rules, self._home.path)
        return expand_presets(network, self._presets)

    def _admit_presets(self, network: AnyNetwork, expanded: AnyNetwork, grants: NetworkGrants) -> AnyNetwork:
        """Hold the rules of a preset to what is granted, as if the policy named them. Raises PermissionDenied."""
        self._withheld = []
        if not isinstance(network, NetworkPolicy) or expanded == network:
            return expanded
        admitted = grants.admit_preset(network, self._presets)
        self._withheld = [rule.host for rule, kept in zip(self._presets, admitted, strict=True) if rule != kept]
        expanded = expand_presets(network, admitted)
        if isinstance(grants.most, NetworkPolicy):
            check_network(expand_presets(grants.most, self._presets), expanded)
        return expanded

    def warnings(self, network: AnyNetwork) -> list[str]:
        """Return what an author of the policy may not have meant, and what does not work."""
        told = network_warnings(network)
        if self.egress.is_open and not self.egress.has_every_port:
            told.append(_ONLY_PORTS)
        if self._withheld:
            told.append(f"{PRESET}: {', '.join(self._withheld)}: {_NOT_LISTED}")
        return [*told, *([] if self.egress.failure is None else [self.egress.failure])]

    async def add_usage(self, usage: Usage) -> Usage:
        """Return the usage with what policies have let pass and refused, if there was one."""
        return with_totals(usage, await in_thread(read_totals, self._place.path / TOTALS_FILE))

    async def events(self, since: str | None, follow: bool) -> AsyncGenerator[NetworkEvent, None]:
        """Read the log from that cursor on."""
        async with aclosing(self.egress.events(since, follow)) as events:
            async for event in events:
                yield event


async def _open_sockets(
    jail: Jail, ports: Sequence[int], addresses: Sequence[str], needs_names: bool
) -> list[socket.socket]:
    """Listen inside a running sandbox: on every port or on these, and for the name server, if that is wanted."""
    setup = NetworkSetup(ports=ports, addresses=addresses, dns=needs_names, any_port=bool(ports))
    return await jail.attach([setup])
