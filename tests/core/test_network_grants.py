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
    GRANTS.check(NetworkPolicy(allow=[NetworkRule("api.example", inject={"A": Secret("TOKEN")})]))
    with pytest.raises(PermissionDenied, match=r"may not be sent to b\.example"):
        GRANTS.check(NetworkPolicy(allow=[NetworkRule("b.example", inject={"A": Secret("TOKEN")})]))
    with pytest.raises(PermissionDenied, match="no secret OTHER"):
        GRANTS.check(NetworkPolicy(allow=[NetworkRule("api.example", inject={"A": Secret("OTHER")})]))


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
