"""Keys that several state directories have: which of two changes holds, and for how long an old decision lives."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from cove.core.api_key import is_key
from cove.core.cluster import code_of
from cove.errors import ApiKeyNotFound, NodeUnavailable, PlacementUnavailable, ValidationFailed
from cove.local.api_keys import ApiKeyRecord, ApiKeys, KeyState, RevokedKey
from cove.model.api_key import ApiKeyMade
from cove.model.cluster import Member
from cove.server.cluster.nodes import Health, Nodes, NodeState
from cove.server.cluster.peer import PeerClient, PeerKey
from cove.server.cluster.shared_keys import SharedKeys

pytestmark = pytest.mark.pure

HOLD = 300.0


@pytest.fixture
def here(tmp_path: Path) -> ApiKeys:
    return ApiKeys(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> ApiKeys:
    return ApiKeys(tmp_path / "there")


def takes(keys: ApiKeys, made: ApiKeyMade) -> bool:
    return any(is_key(made.key, record.digest) for record in keys.read())


def meet(one: ApiKeys, other: ApiKeys) -> None:
    """Both take over what the other has, and have the same then."""
    one.merge(other.state())
    other.merge(one.state())
    assert one.state().digest() == other.state().digest()


def test_a_key_holds_in_both_and_a_revoked_one_comes_back_from_neither(here: ApiKeys, there: ApiKeys) -> None:
    made = here.create("ci", tenant="team")
    before = here.state()
    meet(here, there)
    assert takes(there, made)
    assert there.find("ci").tenant == "team"
    there.delete("ci")
    there.merge(before)  # somebody has not heard of it
    assert not takes(there, made)
    meet(here, there)
    assert not takes(here, made)
    again = here.create("ci")
    meet(there, here)
    assert takes(there, again)
    assert not takes(there, made)


def test_of_two_changes_the_later_one_holds_and_the_old_key_in_neither_case(here: ApiKeys, there: ApiKeys) -> None:
    old = here.create("ci")
    meet(here, there)
    here.delete("ci")
    new = there.rotate("ci")
    meet(here, there)
    for each in (here, there):
        assert takes(each, new)
        assert not takes(each, old)


def test_a_revocation_that_was_cut_short_is_finished(here: ApiKeys) -> None:
    made = here.create("ci")
    record = (here.home / "keys" / "ci.json").read_bytes()
    here.delete("ci")
    (here.home / "keys" / "ci.json").write_bytes(record)  # as whoever is killed between the two steps leaves it
    assert here.state().keys == ()
    assert not takes(here, made)
    with pytest.raises(ApiKeyNotFound):
        here.find("ci")


@pytest.mark.parametrize("fields", [{"name": "../x"}, {"tenant": "../../x"}, {"tenant": ""}])
def test_what_no_node_has_is_not_taken_over(here: ApiKeys, there: ApiKeys, fields: dict[str, str]) -> None:
    there.create("ci")
    (record,) = there.state().keys
    forged: ApiKeyRecord = msgspec.structs.replace(record, **fields)
    with pytest.raises(ValidationFailed):
        here.merge(KeyState(keys=(forged,)))
    with pytest.raises(ValidationFailed):
        here.merge(KeyState(revoked=tuple(RevokedKey(name=f"k{n}", version=1) for n in range(20_001))))
    assert here.state() == KeyState()


def shared(home: Path, *, heard: dict[str, float], down: tuple[str, ...] = ()) -> SharedKeys:
    """The keys of node a of three, which has heard of the others so many seconds ago."""
    client = PeerClient(PeerKey("a-peer-key"))
    nodes = Nodes(home, client, lambda _: None)
    nodes.node = "a"
    nodes.members = {name: Member(name=name, address="http://127.0.0.1:1", code=code_of(name)) for name in "abc"}
    now = datetime.now(UTC)
    for name in "bc":
        state = NodeState.DOWN if name in down else NodeState.UP
        at = now - timedelta(seconds=heard[name]) if name in heard else None
        nodes.health[name] = Health(state=state, keys_at=at)
    return SharedKeys(home, nodes, client, HOLD)


@pytest.mark.parametrize(
    ("heard", "holds"),
    [
        ({"b": 1.0, "c": 1.0}, True),
        ({"b": 1.0}, True),
        ({"b": HOLD + 60, "c": HOLD - 60}, True),
        ({"b": HOLD + 60, "c": HOLD + 60}, False),
        ({}, False),
    ],
)
def test_a_node_without_most_others_takes_no_key_after_a_time(
    tmp_path: Path, heard: dict[str, float], holds: bool
) -> None:
    with nullcontext() if holds else pytest.raises(NodeUnavailable):
        shared(tmp_path, heard=heard).check_current()


def test_keys_are_changed_where_most_nodes_can_be_told(tmp_path: Path) -> None:
    shared(tmp_path, heard={}, down=("b",)).check_majority()
    alone = shared(tmp_path, heard={}, down=("b", "c"))
    with pytest.raises(PlacementUnavailable):
        alone.check_majority()
    alone.check_told(["b"])
    with pytest.raises(NodeUnavailable, match="not yet on b, c"):
        alone.check_told(["b", "c"])
