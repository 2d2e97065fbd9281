import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.network_policy import Allowed, Policy, Refused, judge_address, network_warnings
from cove.errors import ValidationFailed
from cove.model.network import (
    Network,
    NetworkLimits,
    NetworkPolicy,
    NetworkRule,
    Secret,
    check_network,
    normalize_name,
    parse_target,
)

pytestmark = pytest.mark.pure


def policy(*allow: str | NetworkRule, deny: tuple[str, ...] = ()) -> Policy:
    made = NetworkPolicy(allow=allow, deny=deny)
    check_network(made)
    return Policy(made)


def is_allowed(made: Policy, name: str, port: int) -> bool:
    return isinstance(made.judge(name, port), Allowed)


def test_a_name_is_allowed_on_the_ports_of_the_web_unless_it_says_others() -> None:
    made = policy("files.example", "db.example:5432")
    assert [is_allowed(made, "files.example", port) for port in (80, 443, 22)] == [True, True, False]
    assert [is_allowed(made, "db.example", port) for port in (80, 443, 5432)] == [False, False, True]
    assert made.ports == (80, 443, 5432)


def test_a_string_where_a_list_belongs_is_refused() -> None:
    with pytest.raises(ValidationFailed, match=r"`allow` of a NetworkPolicy is a list: write \['a.example'\]"):
        NetworkPolicy(allow="a.example")
    with pytest.raises(ValidationFailed, match="`methods` of a NetworkRule is a list"):
        NetworkRule("a.example", methods="GET")


def test_a_wildcard_is_for_every_name_below_and_not_for_the_name_itself() -> None:
    made = policy("*.cdn.example")
    assert is_allowed(made, "a.cdn.example", 443)
    assert is_allowed(made, "a.b.cdn.example", 443)
    assert not is_allowed(made, "cdn.example", 443)
    assert not is_allowed(made, "evilcdn.example", 443)
    assert not is_allowed(made, "a.cdn.example.evil", 443)


def test_deny_goes_before_allow() -> None:
    made = policy("*.example", deny=("bad.example", "ssh.example:80"))
    assert not is_allowed(made, "bad.example", 443)
    assert isinstance(made.judge_name("bad.example"), Refused)
    assert not is_allowed(made, "ssh.example", 80)
    assert is_allowed(made, "ssh.example", 443)
    assert isinstance(made.judge_name("ssh.example"), Allowed)


def test_an_exact_rule_goes_before_a_wildcard() -> None:
    exact = NetworkRule("api.example", methods=["GET"])
    verdict = policy("*.example", exact).judge("api.example", 443)
    assert isinstance(verdict, Allowed)
    assert verdict.rule == exact


def test_a_name_resolves_by_its_exact_rule_before_a_wildcard() -> None:
    assert policy("*.example", "api.example").judge_name("api.example") == Allowed(NetworkRule("api.example"))
    assert Policy(Network.INTERNET).judge_name("api.example") == Allowed(None)


def test_a_rule_alone_allows_no_websockets_and_no_private_address() -> None:
    rule = NetworkRule("api.example")
    assert (rule.websocket, rule.private, rule.is_intercepted) == (False, False, False)


def test_only_a_rule_that_says_so_leads_to_private_addresses() -> None:
    assert Allowed(NetworkRule("a.example", private=True)).is_private
    assert not Allowed(NetworkRule("a.example")).is_private
    assert not Allowed(None).is_private


def test_a_rule_with_secrets_is_for_tls_only() -> None:
    rule = NetworkRule("api.example", inject={"Authorization": Secret("TOKEN", format="Bearer {}")})
    check_network(NetworkPolicy(allow=[rule]))
    assert rule.target.ports == (443,)


def test_a_refusal_names_the_rule_that_would_allow_it() -> None:
    made = policy("files.example")
    assert made.judge("files.example", 8080) == Refused(
        "port 8080 of files.example is not allowed", "files.example:8080"
    )
    assert made.judge("other.example", 443) == Refused("other.example is not allowed", "other.example:443")
    refused = made.judge_name("other.example")
    assert refused == Refused("other.example is not allowed", "other.example")
    assert isinstance(refused, Refused)
    assert refused.rule is not None
    assert isinstance(policy(refused.rule).judge_name("other.example"), Allowed)


def test_internet_is_every_name_on_three_ports() -> None:
    made = Policy(Network.INTERNET)
    assert [is_allowed(made, "any.example", port) for port in (22, 80, 443, 25, 8080)] == [True] * 3 + [False] * 2
    anything = Policy(Network.INTERNET, any_port=True)
    assert [is_allowed(anything, "any.example", port) for port in (25, 8080)] == [False, True]


def test_none_allows_nothing() -> None:
    made = Policy(Network.NONE)
    assert made.ports == ()
    assert isinstance(made.judge_name("a.example"), Refused)
    assert not is_allowed(made, "a.example", 443)


def test_an_address_can_be_a_rule() -> None:
    made = policy(NetworkRule("10.0.0.5:5432", private=True))
    assert made.addresses == ("10.0.0.5",)
    assert is_allowed(made, "10.0.0.5", 5432)


def test_names_with_rules_on_requests_are_intercepted() -> None:
    made = policy("a.example", NetworkRule("b.example", methods=["GET"]), NetworkRule("*.c.example", paths=["/x"]))
    assert made.intercepted_names == ("*.c.example", "b.example")
    recorded = Policy(NetworkPolicy(allow=["a.example"], record="tape"))
    assert recorded.intercepted_names == ("a.example",)


def test_a_policy_that_replays_allows_names_and_no_address() -> None:
    allow: list[str | NetworkRule] = ["a.example", "*.b.example", NetworkRule("10.0.0.5:5432", private=True)]
    with pytest.raises(ValidationFailed, match=r"reaches nothing: it cannot allow the address 10\.0\.0\.5"):
        check_network(NetworkPolicy(allow=allow, replay="tape"))
    check_network(NetworkPolicy(allow=allow, record="tape"))
    check_network(NetworkPolicy(allow=allow[:2], replay="tape"))
    made = Policy(NetworkPolicy(allow=allow, replay="tape"))
    assert made.addresses == ()
    assert isinstance(made.judge("10.0.0.5", 5432), Refused)
    for name in ("a.example", "x.b.example"):
        for verdict in (made.judge_name(name), made.judge(name, 443)):
            assert isinstance(verdict, Allowed)
            assert verdict.is_replayed
    assert policy("a.example").judge("a.example", 443) == Allowed(NetworkRule("a.example"))


@pytest.mark.parametrize("tape", [NetworkPolicy(record="tape"), NetworkPolicy(replay="tape")])
def test_with_a_cassette_every_name_is_intercepted_and_no_address(tape: NetworkPolicy) -> None:
    made = Policy(tape)
    assert made.intercepts(Allowed(NetworkRule("a.example")))
    assert made.intercepts(Allowed(None))
    assert not made.intercepts(Allowed(NetworkRule("10.0.0.5")))
    assert not Policy(Network.INTERNET).intercepts(Allowed(None))


def test_a_wildcard_is_warned_of() -> None:
    (warning,) = network_warnings(NetworkPolicy(allow=["a.example", "*.b.example", "*.c.example:22"]))
    assert "*.b.example, *.c.example can" in warning
    assert network_warnings(NetworkPolicy(allow=["a.example"])) == []
    assert network_warnings(Network.INTERNET) == []


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("https://a.example", "no URL"),
        ("a.example/path", "no URL"),
        ("::1", "IPv6"),
        ("a.example:0", "not a port"),
        ("a.example:65536", "not a port"),
        ("a.example:http", "not a port"),
        ("*", "first label"),
        ("a.*.example", "first label"),
        ("*example", "first label"),
        ("", "not a host name"),
        ("a..example", "not a host name"),
        ("-a.example", "not a host name"),
        ("a b", "not a host name"),
        ("1.2.3", "not an IPv4 address"),
        ("256.1.1.1", "not an IPv4 address"),
        ("a" * 64 + ".example", "not a host name"),
        ("a.example:53", "name server"),
        (NetworkRule("a.example:443", ports=[443]), "not in both"),
        (NetworkRule("a.example", ports=[0]), "not a port"),
        (NetworkRule("a.example", ports=[65536]), "not a port"),
        (NetworkRule("*.example", private=True), "exact name"),
        (NetworkRule("*.example", inject={"A": Secret("S")}), "exact name"),
        (NetworkRule("a.example", ports=[80], inject={"A": Secret("S")}), "over TLS only"),
        (NetworkRule("a.example", inject={"Host": Secret("S")}), "cannot be injected"),
        (NetworkRule("a.example", inject={"A B": Secret("S")}), "cannot be injected"),
        (NetworkRule("a.example", query={"key": Secret("no name")}), "name of a secret"),
        (NetworkRule("a.example", basic_auth=Secret("S", format="x")), "once"),
        (NetworkRule("a.example", basic_auth=Secret("S", format="{}{}")), "once"),
        (NetworkRule("a.example", basic_auth=Secret("S", format="{}\r\n")), "once"),
        (NetworkRule("a.example", methods=["get"]), "not a method"),
        (NetworkRule("a.example", paths=["v1"]), "begins with"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_by_name(rule: str | NetworkRule, said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        check_network(NetworkPolicy(allow=[rule]))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (NetworkPolicy(record="a", replay="a"), "not both"),
        (NetworkPolicy(record="../a"), "name of a cassette"),
        (NetworkPolicy(deny=["*"]), "first label"),
        (NetworkPolicy(limits=NetworkLimits(total_bytes=0)), "at least 1"),
        (NetworkPolicy(allow=["a.example"] * 1001), "more than 1000 rules"),
        (NetworkPolicy(allow=["a.example"] * 500, deny=["b.example"] * 501), "more than 1000 rules"),
        (NetworkPolicy(allow=[f"a.example:{port}" for port in range(1000, 1065)]), "more than 64"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(made: NetworkPolicy, said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        check_network(made)


@pytest.mark.parametrize(
    "made",
    [
        NetworkPolicy(allow=["a.example"] * 500, deny=["b.example"] * 500),
        NetworkPolicy(allow=[f"a.example:{port}" for port in range(1000, 1064)]),
        NetworkPolicy(limits=NetworkLimits(total_bytes=1, connections=1, requests_per_minute=1)),
        NetworkPolicy(allow=[NetworkRule("a.example", ports=[1, 65535])]),
    ],
)
def test_a_policy_at_its_bounds_is_accepted(made: NetworkPolicy) -> None:
    check_network(made)


@pytest.mark.parametrize(
    "port", ["", "0", "65536", "000443", "0000165535", "1" + "0" * 5000, "²", "٣", " 1", "+1", "1\n"]
)
def test_what_follows_the_colon_is_a_port(port: str) -> None:
    assert [parse_target(f"a.example:{number}").ports for number in (1, 65535)] == [(1,), (65535,)]
    with pytest.raises(ValidationFailed, match="not a port"):
        parse_target(f"a.example:{port}")


def test_a_name_has_253_characters_at_most() -> None:
    longest = ".".join(["a" * 49] * 5) + ".bcd"
    assert len(normalize_name(longest)) == 253
    assert normalize_name("a") == "a"
    for name in ("", ".", longest + "e", "a" * 64):
        with pytest.raises(ValueError, match="not a host name"):
            normalize_name(name)


def test_a_mode_needs_no_check() -> None:
    check_network(Network.INTERNET)


def test_names_are_compared_without_case_final_dot_or_script() -> None:
    assert normalize_name("Files.EXAMPLE.") == "files.example"
    assert normalize_name("bücher.example") == "xn--bcher-kva.example"
    assert parse_target("*.Files.Example:8080").pattern == "*.files.example"


@given(st.text(max_size=80))
def test_a_target_is_parsed_or_refused(text: str) -> None:
    try:
        target = parse_target(text)
    except (ValidationFailed, UnicodeError):
        return
    assert target.name == normalize_name(target.name)


REFUSED_ALWAYS = (
    *("169.254.169.254", "224.0.0.1", "0.0.0.0", "255.255.255.255", "198.18.0.1", "fe80::1", "ff02::1", "::"),
    *("64:ff9b::a00:1", "64:ff9b:1::1", "2002:a00:1::", "2001:0:1::1", "::10.0.0.1", "::ffff:169.254.169.254"),
)
PRIVATE = (
    *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "192.0.0.8", "192.0.2.1", "192.88.99.1"),
    *("240.0.0.1", "0.1.2.3", "::1", "fc00::1", "fec0::1", "2001:db8::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1"),
)
PUBLIC = ("1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:1.1.1.1")


@pytest.mark.parametrize("text", REFUSED_ALWAYS)
def test_no_rule_leads_to_the_link_or_through_a_translator(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert judge_address(address, private=False) is not None
    assert judge_address(address, private=True) is not None


@pytest.mark.parametrize("text", PRIVATE)
def test_a_private_address_needs_a_rule_that_says_so(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert judge_address(address, private=False) is not None
    assert judge_address(address, private=True) is None


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_may_be_reached(text: str) -> None:
    assert judge_address(ipaddress.ip_address(text), private=False) is None


def test_the_log_names_the_rule_that_allowed_a_connection() -> None:
    rule = policy("*.example").judge("a.example", 443)
    assert isinstance(rule, Allowed)
    assert rule.text == "*.example"
    everything = Policy(Network.INTERNET).judge("a.example", 443)
    assert isinstance(everything, Allowed)
    assert everything.text == "internet"


def test_with_the_internet_every_name_resolves() -> None:
    assert isinstance(Policy(Network.INTERNET).judge_name("a.example"), Allowed)
    assert isinstance(Policy(NetworkPolicy()).judge_name("a.example"), Refused)


def test_secrets_may_be_injected_into_several_headers() -> None:
    inject = {"authorization": Secret("ONE", format="Bearer {}"), "x-key": Secret("TWO")}
    check_network(NetworkPolicy(allow=(NetworkRule("api.example:443", inject=inject),)))


def test_a_path_of_a_rule_begins_with_a_slash() -> None:
    check_network(NetworkPolicy(allow=(NetworkRule("api.example", paths=["/v1/*"]),)))
    with pytest.raises(ValidationFailed, match="begins with `/`"):
        check_network(NetworkPolicy(allow=(NetworkRule("api.example", paths=["/v1/*", "v2"]),)))


def test_requests_to_a_bare_address_cannot_be_judged() -> None:
    with pytest.raises(ValidationFailed, match="needs a name, not an address"):
        check_network(NetworkPolicy(allow=(NetworkRule("192.0.2.1", methods=["GET"]),)))
