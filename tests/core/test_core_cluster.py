import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.cluster import birth_code, check_members, claim_keepers, claim_name, code_of, new_id
from cove.core.exposure import Label, make_exposure, parse_label
from cove.core.identifier import KEY_LENGTH, check_sandbox_id
from cove.errors import ValidationFailed
from cove.model.cluster import Member, Members

pytestmark = pytest.mark.pure


def member(name: str, *, address: str | None = None, code: str | None = None) -> Member:
    return Member(name=name, address=address or f"http://{name}:8787", code=code or code_of(name))


@given(st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=63))
def test_an_id_that_was_made_says_where(name: str) -> None:
    id = new_id(code_of(name))
    assert check_sandbox_id(id) == id
    assert birth_code(id) == code_of(name)


def test_ids_of_tenants_are_claimed_under_names_of_their_own() -> None:
    names = {claim_name(tenant, id) for tenant in ("", "a", "b") for id in ("x", "a-x")}
    assert len(names) == 6
    assert claim_name("", "x") == "x"


@pytest.mark.parametrize("id", ["mine", "a" * 25, "a" * 27, "a" * 25 + "-", "a" * 25 + "1"])
def test_an_id_that_was_chosen_says_nothing(id: str) -> None:
    assert birth_code(id) is None


def test_without_a_cluster_ids_are_as_long() -> None:
    assert len(new_id("")) == len(new_id(code_of("a"))) == 26


def test_the_label_of_a_preview_has_room_for_the_code() -> None:
    exposure = make_exposure(65535, None, "t" * 40)
    label = exposure.label("k" * KEY_LENGTH, code_of("a"))
    assert len(label) == 63
    assert parse_label(label) == Label(65535, "k" * KEY_LENGTH, "t" * 40, code_of("a"))
    without = parse_label(exposure.label("k" * KEY_LENGTH))
    assert without is not None
    assert without.code == ""


def test_a_list_of_members_is_checked() -> None:
    members = Members(node="b", members=(member("a"), member("b")))
    assert check_members(members).here == member("b")


@pytest.mark.parametrize(
    "members",
    [
        (member("b"),),
        (member("a"), member("a")),
        (member("a"), member("b", code=code_of("a"))),
        (member("a", address="ftp://a"),),
        (member("A"),),
        (member("a", code="abc-"),),
    ],
)
def test_a_list_that_cannot_be_is_refused(members: tuple[Member, ...]) -> None:
    with pytest.raises(ValidationFailed):
        check_members(Members(node="a", members=members))


def test_names_are_kept_all_over_the_cluster_and_stay_where_they_are_when_another_node_joins() -> None:
    nodes = [member(name) for name in "abc"]
    names = [f"name-{number}" for number in range(3000)]
    kept = {name: claim_keepers(name, nodes)[0].name for name in names}
    assert min(Counter(kept.values()).values()) > 800
    later = {name: claim_keepers(name, [*nodes, member("d")])[0].name for name in names}
    assert all(later[name] in (kept[name], "d") for name in names)
