import re

import msgspec
import pytest

from cove.core.egress_protocol import Configured, decode_from_egress, encode
from cove.core.network_grants import NetworkGrants
from cove.core.network_policy import network_warnings
from cove.errors import PermissionDenied
from cove.model.network import Network, NetworkPolicy, NetworkRule, Secret
from cove.model.secret import SecretSource

pytestmark = pytest.mark.pure

GRANTS = NetworkGrants(
    private=("db.example", "api.example:443"), secrets={"TOKEN": SecretSource(env="T", hosts=("api.example",))}
)


def test_public_names_and_modes_need_no_grant() -> None:
    GRANTS.check(Network.INTERNET)
    GRANTS.check(NetworkPolicy(allow=["a.example", "*.b.example"]))


@pytest.mark.parametrize("host", ["db.example:5432", "db.example", "api.example:443"])
def test_a_private_host_is_granted_by_name_or_by_name_and_port(host: str) -> None:
    GRANTS.check(NetworkPolicy(allow=[NetworkRule(host, private=True)]))


@pytest.mark.parametrize("host", ["other.example", "api.example", "api.example:80", "10.0.0.1"])
def test_any_other_private_host_is_refused(host: str) -> None:
    with pytest.raises(PermissionDenied, match="private=True"):
        GRANTS.check(NetworkPolicy(allow=[NetworkRule(host, private=True)]))


def test_a_secret_goes_to_its_hosts_only() -> None:
    GRANTS.check(NetworkPolicy(allow=[NetworkRule("api.example", inject={"Authorization": Secret("TOKEN")})]))
    with pytest.raises(PermissionDenied, match=r"may not be sent to b\.example"):
        GRANTS.check(NetworkPolicy(allow=[NetworkRule("b.example", inject={"Authorization": Secret("TOKEN")})]))
    with pytest.raises(PermissionDenied, match="no secret OTHER"):
        GRANTS.check(NetworkPolicy(allow=[NetworkRule("api.example", inject={"Authorization": Secret("OTHER")})]))


def test_wildcards_are_warned_about() -> None:
    assert network_warnings(Network.INTERNET) == []
    assert network_warnings(NetworkPolicy(allow=["a.example"])) == []
    assert "*.b.example" in network_warnings(NetworkPolicy(allow=["a.example", "*.b.example"]))[0]


@pytest.mark.parametrize("host", ["localhost:8000", "api.localhost", "127.0.0.1:8000", "127.8.8.8"])
def test_a_rule_for_loopback_is_warned_of(host: str) -> None:
    (warning,) = network_warnings(NetworkPolicy(allow=["a.example", "10.0.0.1", NetworkRule(host, private=True)]))
    assert f"inside, {host.partition(':')[0]} is the sandbox itself" in warning


def test_messages_of_the_egress_process_are_read_back() -> None:
    assert decode_from_egress(encode(Configured(certificate="x"))) == Configured(certificate="x")


def test_a_policy_of_the_servers_own_may_lead_to_private_hosts_but_send_no_undefined_secret() -> None:
    own = NetworkPolicy(allow=[NetworkRule("db.example:5432", private=True)])
    other = NetworkPolicy(allow=[NetworkRule("db.example:5433", private=True)])
    grants = NetworkGrants(policies={"agents": own})
    grants.check(own)
    with pytest.raises(PermissionDenied, match="5433"):
        grants.check(other)
    secret = NetworkPolicy(allow=[NetworkRule("api.example", inject={"X-Key": Secret("NONE")})])
    with pytest.raises(PermissionDenied, match="NONE"):
        NetworkGrants(policies={"agents": secret}).check(secret)


def test_a_preset_leads_to_a_private_host_only_where_that_is_granted() -> None:
    rules = [NetworkRule("db.example", private=True), NetworkRule("mirror.example", private=True), NetworkRule("a.b")]
    asked, own = NetworkPolicy(allow=["packages"]), NetworkPolicy(allow=["packages", "c.example"])
    grants = msgspec.structs.replace(GRANTS, policies={"agents": own})
    admitted = grants.admit_preset(asked, rules)
    assert [(rule.host, rule.private) for rule in admitted] == [
        ("db.example", True),
        ("mirror.example", False),
        ("a.b", False),
    ]
    assert grants.admit_preset(own, rules) == rules


def keyed(header: str = "", query: str = "", basic_auth: bool = False) -> NetworkPolicy:
    secret = Secret("TOKEN")
    inject, fields = {header: secret} if header else {}, {query: secret} if query else {}
    rule = NetworkRule("api.example", inject=inject, query=fields, basic_auth=secret if basic_auth else None)
    return NetworkPolicy(allow=[rule])


def granting(headers: tuple[str, ...] | None = None, query: tuple[str, ...] | None = None) -> NetworkGrants:
    source = SecretSource(env="T", hosts=("api.example",), headers=headers, query=query)
    return NetworkGrants(secrets={"TOKEN": source})


@pytest.mark.parametrize(
    ("grants", "network"),
    [
        (granting(), keyed("authorization")),
        (granting(), keyed("X-API-Key")),
        (granting(), keyed("Private-Token")),
        (granting(), keyed(basic_auth=True)),
        (granting(headers=("X-Key",)), keyed("x-key")),
        (granting(headers=("AUTHORIZATION",)), keyed(basic_auth=True)),
        (granting(query=("key",)), keyed(query="key")),
        (granting(headers=("X-Key",), query=("key",)), keyed("X-Key", query="key")),
    ],
)
def test_a_secret_may_be_put_where_its_definition_or_custom_says(grants: NetworkGrants, network: NetworkPolicy) -> None:
    grants.check(network)


@pytest.mark.parametrize(
    ("grants", "network", "setting"),
    [
        (granting(), keyed("X-Metadata"), 'headers = ["X-Metadata"]'),
        (granting(), keyed(query="text"), 'query = ["text"]'),
        (granting(), keyed("Authorization", query="text"), 'query = ["text"]'),
        (granting(headers=("X-Key",)), keyed("Authorization"), 'headers = ["Authorization"]'),
        (granting(headers=("X-Key",)), keyed(basic_auth=True), 'headers = ["Authorization"]'),
        (granting(headers=("X-Key",)), keyed(query="key"), 'query = ["key"]'),
        (granting(query=("key",)), keyed("Authorization"), 'headers = ["Authorization"]'),
        (granting(query=("key",)), keyed(query="KEY"), 'query = ["KEY"]'),
    ],
)
def test_a_secret_is_put_nowhere_else(grants: NetworkGrants, network: NetworkPolicy, setting: str) -> None:
    with pytest.raises(PermissionDenied, match=re.escape(f"[network.secrets.TOKEN] {setting}")):
        grants.check(network)


def test_a_rule_of_the_servers_own_puts_a_secret_where_it_likes() -> None:
    own = keyed("X-Metadata", query="text")
    grants = msgspec.structs.replace(granting(), policies={"agents": own})
    grants.check(own)
    grants.check(msgspec.structs.replace(own, deny=["b.example"]))
    with pytest.raises(PermissionDenied, match="the header X-Metadata"):
        grants.check(keyed("X-Metadata"))


def test_credentials_of_a_bucket_are_bound_to_their_hosts_alone() -> None:
    granting().check_secret("TOKEN", "api.example")
    granting(headers=(), query=()).check_secret("TOKEN", "api.example")
