"""Keys as texts, and quotas as decisions."""

import re
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cove.core.api_key import digest_of, handle_of, is_key, new_key
from cove.core.network_policy import Allowed, Policy, judge_request
from cove.core.quota import Use, check_network, check_sandboxes, check_snapshots, check_sum, check_use, strictest
from cove.errors import LimitExceeded, PermissionDenied, ValidationFailed
from cove.model import Limits, Network, NetworkLimits, NetworkPolicy, NetworkRule, Quota
from cove.model.api_key import check_key_name, check_quota

pytestmark = pytest.mark.pure

HANDLE = "abcdefgh2345"
NAMES = NetworkPolicy(allow=["a.example", "*.b.example", NetworkRule("c.example", methods=["GET"]), "d.example:5432"])
DENIED = NetworkPolicy(
    allow=["*.b.example", "b.example", "c.example", "*.d.example"],
    deny=["s.b.example", "*.t.b.example", "c.example:80"],
)
PUBLIC_PART = NetworkRule("admin.corp.example", methods=["GET"], paths=["/public/*"])
NARROWED = NetworkPolicy(allow=["*.corp.example", PUBLIC_PART, NetworkRule("*.t.corp.example", methods=["GET"])])
BOUNDED = NetworkPolicy(allow=["a.example"], limits=NetworkLimits(connections=3))


def test_a_key_is_found_by_its_handle_and_known_by_its_digest() -> None:
    key = new_key(HANDLE)
    assert handle_of(key) == HANDLE
    assert key != new_key(HANDLE)
    assert is_key(key, digest_of(key))
    assert not is_key(key[:-1] + ("a" if key[-1] != "a" else "b"), digest_of(key))


@given(st.text())
def test_what_is_no_key_has_no_handle(text: str) -> None:
    assert handle_of(text) is None
    assert not is_key(text, digest_of(new_key(HANDLE)))


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 64, "../a", "a/b", None, 3])
def test_what_is_no_name_of_a_key(name: object) -> None:
    with pytest.raises(ValidationFailed):
        check_key_name(name)


def test_names_of_keys() -> None:
    assert [check_key_name(name) for name in ("a", "team-7", "a" * 63)] == ["a", "team-7", "a" * 63]


def test_quotas_that_nothing_could_keep() -> None:
    assert check_quota(Quota(max_sandboxes=0, rate=0.5)) == Quota(max_sandboxes=0, rate=0.5)
    assert check_quota({"network": "none"}) == Quota(network=Network.NONE)
    assert check_quota(Quota(network=NAMES)) == Quota(network=NAMES)
    for quota in (
        {"max_sandboxes": "many"},
        {"other": 1},
        object(),
        Quota(max_memory=-1),
        Quota(rate=0),
        Quota(max_cpus=float("inf")),
        Quota(rate=float("nan")),
    ):
        with pytest.raises(ValidationFailed):
            check_quota(quota)


def test_the_strictest_of_several_quotas_holds() -> None:
    found = strictest([Quota(max_sandboxes=3, network=Network.NONE), Quota(max_sandboxes=2, max_cpus=1.5), Quota()])
    assert found == Quota(max_sandboxes=2, max_cpus=1.5, network=Network.NONE)
    assert strictest([]) == Quota()


def test_the_narrowest_of_several_networks_holds_in_whatever_order() -> None:
    names = NetworkPolicy(allow=["a.example", "*.b.example"], deny=["x.b.example"], limits=NetworkLimits(connections=9))
    others = NetworkPolicy(allow=["c.example", "y.b.example"], limits=NetworkLimits(connections=5, total_bytes=7))
    both: list[Network | NetworkPolicy] = [names, others]
    for networks in permutations([Network.INTERNET, *both]):
        found = strictest([Quota(network=each) for each in networks]).network
        assert isinstance(found, NetworkPolicy)
        assert [rule.host for rule in found.rules] == ["y.b.example"]
        assert (found.deny, found.limits) == (("x.b.example",), NetworkLimits(connections=5, total_bytes=7))
    for networks in permutations([Network.NONE, Network.INTERNET, *both]):
        assert strictest([Quota(network=each) for each in networks]).network is Network.NONE
    for modes in permutations((Network.HOST, Network.INTERNET)):
        assert strictest([Quota(network=each) for each in modes]).network is Network.INTERNET


def test_sandboxes_beyond_a_quota() -> None:
    one = Limits(memory=10, cpus=1)
    check_sandboxes(Quota(), [one] * 9, Limits())
    check_sandboxes(Quota(max_sandboxes=2, max_memory=20, max_cpus=2), [one], one)
    for quota in (Quota(max_sandboxes=1), Quota(max_memory=19), Quota(max_cpus=1.5)):
        with pytest.raises(LimitExceeded) as caught:
            check_sandboxes(quota, [one], one)
        assert str(caught.value.details["limit"]) in str(caught.value)


def test_who_is_over_a_quota_reads_amounts_as_people_say_them() -> None:
    with pytest.raises(LimitExceeded, match=r": 512 MiB are taken, 3 GiB more are wanted, of 1\.5 GiB$"):
        check_sandboxes(Quota(max_memory=3 << 29), [Limits(memory=512 << 20)], Limits(memory=3 << 30))
    with pytest.raises(LimitExceeded, match=r": 1\.5 are taken, 1 more are wanted, of 2$"):
        check_sandboxes(Quota(max_cpus=2), [Limits(cpus=1.5)], Limits(cpus=1))
    with pytest.raises(LimitExceeded, match=r": 0 bytes are taken, 2 KiB more are wanted, of 100 bytes$"):
        check_sum(Quota(max_disk=100), "disk", [], 2048)


def test_what_has_no_limit_cannot_be_counted() -> None:
    with pytest.raises(LimitExceeded, match=r"limits\.disk"):
        check_sum(Quota(max_disk=10), "disk", [], None)
    check_sum(Quota(max_disk=10), "disk", [None, 4], 6)
    with pytest.raises(LimitExceeded):
        check_sum(Quota(max_disk=10), "disk", [None, 5], 6)


def test_what_is_on_all_nodes_counts_also_before_it_runs() -> None:
    one = Limits(memory=10, disk=10)
    uses = [Use(running=(one,), disk=10), Use(pending=(one,), disk=10)]
    check_use(Quota(max_sandboxes=3, max_memory=30, max_disk=40), uses, one)
    for quota in (Quota(max_sandboxes=2), Quota(max_memory=29), Quota(max_disk=39)):
        with pytest.raises(LimitExceeded):
            check_use(quota, uses, one)
        check_use(quota, [use.settled() for use in uses], one)


def test_snapshots_beyond_a_quota() -> None:
    check_snapshots(Quota(), 9)
    check_snapshots(Quota(max_snapshots=2), 1)
    with pytest.raises(LimitExceeded):
        check_snapshots(Quota(max_snapshots=2), 2)


@pytest.mark.parametrize(
    ("most", "wanted"),
    [
        (None, Network.HOST),
        (Network.NONE, Network.NONE),
        (Network.INTERNET, Network.INTERNET),
        (Network.INTERNET, NetworkPolicy(allow=["x.example"])),
        (Network.HOST, Network.HOST),
        (NAMES, Network.NONE),
        (NAMES, NetworkPolicy(allow=["a.example", "x.b.example", "*.x.b.example", "*.b.example", "d.example:5432"])),
        (NAMES, NetworkPolicy(allow=[NetworkRule("c.example", methods=["GET"])])),
        (NAMES, NetworkPolicy(allow=[NetworkRule("a.example", methods=["GET"])])),
        (DENIED, NetworkPolicy(allow=["x.b.example", "b.example", "c.example:443", "*.d.example"])),
        (
            DENIED,
            NetworkPolicy(allow=["*.b.example", "c.example"], deny=["s.b.example", "*.t.b.example", "c.example:80"]),
        ),
        (BOUNDED, NetworkPolicy(allow=["a.example"], limits=NetworkLimits(connections=3, total_bytes=9))),
        (NARROWED, NARROWED),
        (NARROWED, NetworkPolicy(allow=[PUBLIC_PART, "x.corp.example", "*.x.corp.example"])),
        (NARROWED, NetworkPolicy(allow=["*.corp.example"], deny=["admin.corp.example", "*.t.corp.example"])),
    ],
)
def test_networks_within_a_quota(most: Network | NetworkPolicy | None, wanted: Network | NetworkPolicy) -> None:
    check_network(most, wanted)


@pytest.mark.parametrize(
    ("most", "wanted"),
    [
        (Network.NONE, Network.INTERNET),
        (Network.NONE, NetworkPolicy(allow=["x.example"])),
        (Network.INTERNET, Network.HOST),
        (NAMES, Network.INTERNET),
        (NAMES, NetworkPolicy(allow=["x.example"])),
        (NAMES, NetworkPolicy(allow=["b.example"])),
        (NAMES, NetworkPolicy(allow=["xb.example"])),
        (NAMES, NetworkPolicy(allow=["*.a.example"])),
        (NAMES, NetworkPolicy(allow=["a.example:22"])),
        (NAMES, NetworkPolicy(allow=["d.example"])),
        (NAMES, NetworkPolicy(allow=["c.example"])),
        (NAMES, NetworkPolicy(allow=[NetworkRule("a.example", private=True)])),
        (NAMES, NetworkPolicy(allow=[NetworkRule("c.example", methods=["GET"], websocket=True)])),
        *(
            (DENIED, NetworkPolicy(allow=[host]))
            for host in ("s.b.example", "*.b.example", "x.t.b.example", "c.example")
        ),
        (DENIED, NetworkPolicy(allow=["*.t.b.example"], deny=["s.b.example"])),
        *(
            (NARROWED, NetworkPolicy(allow=[host]))
            for host in ("admin.corp.example", "*.corp.example", "*.t.corp.example", "x.t.corp.example")
        ),
        (NARROWED, NetworkPolicy(allow=["*.corp.example", PUBLIC_PART])),
        (NARROWED, NetworkPolicy(allow=["*.corp.example"], deny=["admin.corp.example"])),
        (BOUNDED, NetworkPolicy(allow=["a.example"])),
        (BOUNDED, NetworkPolicy(allow=["a.example"], limits=NetworkLimits(connections=4))),
    ],
)
def test_networks_beyond_a_quota(most: Network | NetworkPolicy, wanted: Network | NetworkPolicy) -> None:
    with pytest.raises(PermissionDenied):
        check_network(most, wanted)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (NetworkPolicy(allow=["x.example"]), "'x.example': this key does not allow it"),
        (NetworkPolicy(allow=["admin.corp.example"]), "'admin.corp.example': this key does not allow it"),
        (NetworkPolicy(allow=["*.corp.example"]), "'*.corp.example': this key allows less of admin.corp.example"),
    ],
)
def test_who_is_beyond_a_quota_reads_which_rule_it_is(wanted: NetworkPolicy, said: str) -> None:
    with pytest.raises(PermissionDenied, match=re.escape(said)):
        check_network(NARROWED, wanted)


def test_of_several_keys_the_one_with_the_narrower_rule_holds_in_whatever_order() -> None:
    free = NetworkPolicy(allow=["admin.corp.example"])
    other = NetworkPolicy(allow=["*.corp.example", NetworkRule("admin.corp.example", methods=["POST"])])
    for networks in permutations([NARROWED, free]):
        found = strictest([Quota(network=each) for each in networks]).network
        assert isinstance(found, NetworkPolicy)
        assert found.rules == (PUBLIC_PART,)
    for networks in permutations([NARROWED, other]):
        found = strictest([Quota(network=each) for each in networks]).network
        assert isinstance(found, NetworkPolicy)
        assert found.deny == ("admin.corp.example:80", "admin.corp.example:443")
        check_network(found, NetworkPolicy(allow=["x.corp.example", NetworkRule("x.t.corp.example", methods=["GET"])]))


NAMES_BELOW = ("e", "a.e", "b.e", "a.a.e", "b.a.e", "a.b.e", "c.a.a.e")
PATTERNS = (*NAMES_BELOW[:5], "*.e", "*.a.e", "*.b.e", "*.a.a.e")
METHODS, PATHS, PORTS = ("GET", "POST"), ("/x", "/y"), (80, 443)


@st.composite
def rules(draw: st.DrawFn) -> NetworkRule:
    host = draw(st.sampled_from(PATTERNS))
    return NetworkRule(
        host,
        ports=draw(st.sampled_from([(), (80,), (443,)])),
        methods=draw(st.sampled_from([(), (), ("GET",), METHODS])),
        paths=draw(st.sampled_from([(), (), ("/x",)])),
        websocket=draw(st.booleans()),
        private=not host.startswith("*") and draw(st.booleans()),
    )


def policies_of(rules: st.SearchStrategy[NetworkRule]) -> st.SearchStrategy[NetworkPolicy]:
    denied = st.sampled_from([*PATTERNS, "a.e:80", "*.a.e:443"])
    return st.builds(
        NetworkPolicy, allow=st.lists(rules, min_size=1, max_size=5), deny=st.just(()) | st.lists(denied, max_size=3)
    )


def requests_of(network: Network | NetworkPolicy) -> set[tuple[str, int, str, str, str]]:
    """All requests that a policy allows, of those that could be made here."""
    policy = Policy(network)
    found = set()
    for name, port, method, path in product(NAMES_BELOW, PORTS, METHODS, PATHS):
        verdict = policy.judge(name, port)
        rule = verdict.rule if isinstance(verdict, Allowed) else None
        if rule is None or judge_request(rule, name, method, path) is not None:
            continue
        found.add((name, port, method, path, "request"))
        if rule.private:
            found.add((name, port, method, path, "private"))
        if rule.websocket or not rule.is_intercepted:
            found.add((name, port, method, path, "websocket"))
    return found


@given(st.data())
@settings(max_examples=200)
def test_what_a_policy_within_a_quota_allows_the_quota_allows_too(data: st.DataObject) -> None:
    most = data.draw(policies_of(rules()))
    wanted = data.draw(policies_of(st.sampled_from(most.rules) | rules()))
    try:
        check_network(most, wanted)
    except PermissionDenied:
        return
    assert requests_of(wanted) <= requests_of(most)


@given(st.data())
@settings(max_examples=200)
def test_what_several_keys_allow_each_of_them_allows(data: st.DataObject) -> None:
    one = data.draw(policies_of(rules()))
    others = data.draw(st.lists(policies_of(st.sampled_from(one.rules) | rules()), min_size=1, max_size=2))
    found = strictest([Quota(network=each) for each in (one, *others)]).network
    assert found is not None
    for each in (one, *others):
        assert requests_of(found) <= requests_of(each)
