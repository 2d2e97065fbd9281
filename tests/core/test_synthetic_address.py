import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.synthetic_address import NETWORK, OWN_ADDRESS, SyntheticAddresses

pytestmark = pytest.mark.pure


def test_a_name_keeps_its_address_and_an_address_its_name() -> None:
    addresses = SyntheticAddresses(lambda _: False)
    one, other = addresses.address_of("a.example"), addresses.address_of("b.example")
    assert one != other
    assert addresses.address_of("a.example") == one
    assert addresses.name_of(one) == "a.example"
    assert addresses.name_of(OWN_ADDRESS) is None
    assert ipaddress.IPv4Address(one) in NETWORK


def test_the_name_asked_for_longest_ago_is_forgotten_unless_it_is_in_use() -> None:
    used = {"a"}
    addresses = SyntheticAddresses(used.__contains__, most=3)
    first = {name: addresses.address_of(name) for name in ("a", "b", "c")}
    addresses.address_of("b")
    addresses.address_of("d")
    assert addresses.name_of(first["c"]) is None
    assert [addresses.name_of(first[name]) for name in ("a", "b")] == ["a", "b"]


def test_more_names_than_fit_are_known_while_all_are_in_use() -> None:
    addresses = SyntheticAddresses(lambda _: True, most=2)
    assert len({addresses.address_of(name) for name in "abcd"}) == 4


@given(st.lists(st.integers(0, 400), max_size=600))
def test_no_two_names_have_one_address(numbers: list[int]) -> None:
    addresses = SyntheticAddresses(lambda _: False, most=50)
    for number in numbers:
        assert addresses.name_of(addresses.address_of(str(number))) == str(number)


def test_an_address_is_given_again_only_after_all_others_and_not_while_it_is_in_use() -> None:
    addresses = SyntheticAddresses(lambda name: name == "0", most=10)
    given_once = [addresses.address_of(str(number)) for number in range(NETWORK.num_addresses - 512)]
    assert len(set(given_once)) == len(given_once)
    assert all(ipaddress.IPv4Address(address) in NETWORK for address in (given_once[0], given_once[-1]))
    assert addresses.address_of("again") == given_once[1]
    assert addresses.name_of(given_once[0]) == "0"
    assert addresses.address_of(str(NETWORK.num_addresses - 513)) == given_once[-1]
