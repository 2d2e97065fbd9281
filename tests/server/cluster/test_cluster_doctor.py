"""`cove doctor --cluster` on a list of nodes: what it finds when all is well, a key is another, or a node is away."""

import secrets
from pathlib import Path

import msgspec
import pytest
from support.clusters import cluster_of
from support.ray_machines import wait_until

from cove.cli.check import Check, Status
from cove.cli.check_cluster import examine_cluster
from cove.core.cluster import code_of
from cove.model.cluster import Member, Members
from cove.server.cluster.nodes import OTHER_KEY, Health, Report, judge, read_nodes
from cove.server.sandboxes.members import write_members

pytestmark = pytest.mark.pure


def wrong(checks: list[Check]) -> dict[str, str]:
    """The names of the checks that are not ok, and what they found."""
    return {check.name: check.found for check in checks if check.status is not Status.OK}


def answering(home: Path) -> set[str]:
    """The nodes that the last probe found."""
    return {name for name, health in read_nodes(home).items() if health.report is not None and not health.misses}


@pytest.mark.cluster
def test_the_doctor_of_a_list_knows_a_node_with_another_key_and_one_that_is_away() -> None:
    with cluster_of("a", "b") as cluster:
        home = cluster.homes["a"]
        wait_until(lambda: len(answering(home)) == 2, "both nodes answer")
        checks = examine_cluster(home)
        assert {check.name for check in checks} == {"list", "ports", "clocks", "peer key", "versions"}
        assert wrong(checks) == {}
        cluster.stop("b")
        wait_until(lambda: answering(home) == {"a"}, "the other is missed")
        assert wrong(examine_cluster(home)) == {"ports": "these nodes do not answer: b"}
        (key := home.parent / "other-key").touch(mode=0o600)
        key.write_text(secrets.token_urlsafe(32))
        text = cluster.configurations["b"].read_text()
        cluster.configurations["b"].write_text(text.replace(str(home.parent / "peer-key"), str(key)))
        cluster.start("b")
        wait_until(lambda: "peer key" in read_nodes(home)["b"].problem, "the other key is refused")
        assert wrong(examine_cluster(home)) == {"peer key": "these nodes do not know that of this one: b"}


def test_the_doctor_of_a_list_compares_versions_and_keys(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    silent = [Member(name=name, address="http://127.0.0.1:9", code=code_of(name)) for name in ("a", "b")]
    write_members(tmp_path, Members(node="a", members=tuple(silent)))
    assert wrong(examine_cluster(tmp_path))["peer key"] == "no node was asked yet"
    found = {name: judge(Health(), report=Report(name=name, version=f"1.{name}")) for name in ("a", "b")}
    (tmp_path / "server" / "nodes.json").write_bytes(msgspec.json.encode(found))
    assert wrong(examine_cluster(tmp_path))["versions"] == "nodes differ: Cove 1.a, 1.b"
    found["b"] = judge(found["b"], problem=f"it answers 403: {OTHER_KEY}")
    (tmp_path / "server" / "nodes.json").write_bytes(msgspec.json.encode(found))
    assert wrong(examine_cluster(tmp_path))["peer key"] == "these nodes do not know that of this one: b"
