"""Network settings of E2B's protocol as policies of Cove's."""

from collections.abc import Sequence
from typing import Final

import msgspec

from cove.errors import ValidationFailed
from cove.model import Network, NetworkPolicy
from cove.model.network import check_network

_ALL: Final = ("0.0.0.0/0", "::/0", "*")


class NetworkWish(msgspec.Struct, rename="camel", kw_only=True):
    """The network that a client asks for; `allow_internet_access` stands beside it when a sandbox is made."""

    allow_out: list[str] | None = None
    deny_out: list[str] | None = None
    rules: dict[str, object] | None = None
    allow_public_traffic: bool | None = None
    egress_proxy: object = None
    allow_internet_access: bool | None = msgspec.field(default=None, name="allow_internet_access")


def choose_network(
    configured: Network | NetworkPolicy, wish: NetworkWish | None, allows_internet: bool | None
) -> Network | NetworkPolicy:
    """Return the policy that holds: `configured` is what the server has for clients that say nothing.

    Names that are allowed go before what is denied, as they do there. Raises ValidationFailed for what has no policy.
    """
    wish = wish or NetworkWish()
    if wish.rules or wish.egress_proxy is not None:
        raise ValidationFailed("network.rules and network.egressProxy are not had here: a server's policy has `inject`")
    if allows_internet is None:
        allows_internet = wish.allow_internet_access
    denied = [each for each in wish.deny_out or () if each not in _ALL]
    denies_all = allows_internet is False or len(denied) < len(wish.deny_out or ())
    allowed = [each for each in wish.allow_out or () if each not in _ALL]
    allows_all = len(allowed) < len(wish.allow_out or ())
    if allowed and not allows_all:
        return _checked(NetworkPolicy(allow=allowed, deny=denied))
    if denies_all and not allows_all:
        return Network.NONE
    return _without(configured, denied)


def _without(configured: Network | NetworkPolicy, denied: Sequence[str]) -> Network | NetworkPolicy:
    if not denied or configured is Network.NONE:
        return configured
    if isinstance(configured, Network):
        raise ValidationFailed("network.denyOut of single hosts needs network.allowOut: say which hosts are allowed")
    return _checked(msgspec.structs.replace(configured, deny=[*configured.deny, *denied]))


def _checked(policy: NetworkPolicy) -> NetworkPolicy:
    check_network(policy)
    return policy
