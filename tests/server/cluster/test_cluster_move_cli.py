"""`cove move` and `cove cluster drain --move`, as people type them."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.clusters import API_KEY, Cluster, cluster_of
from support.commands import Cli
from support.ray_machines import wait_until

from cove.local.state import SERVER_DIRECTORY
from cove.server.cluster.agent_protocol import Answer, Call, Drain, agent_socket


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of("a", "b") as found:
        yield found


class ClusterCli(Cli):
    """Runs subcommands against one node."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        super().__init__(cluster[node])
        self.environment["COVE_API_KEY"] = API_KEY

    def node_of(self, id: str) -> object:
        return self.json("info", id)["node"]

    def sandbox_on(self, node: str) -> str:
        """A sandbox on that node: others hold the room of the other one meanwhile."""
        made: list[str] = []
        while not made or self.node_of(made[-1]) != node:
            made.append(self.text("create").strip())
        for each in made[:-1]:
            self.text("rm", each)
        return made[-1]


def test_a_sandbox_is_moved_by_its_name_and_says_where_it_is(cluster: Cluster) -> None:
    cove = ClusterCli(cluster, "b")
    id = cove.sandbox_on("a")
    cove.text("exec", "--in", id, "echo kept > file")
    refused = cove("move", id, "b")
    assert refused.returncode == 125
    assert b"stop it first" in refused.stderr
    assert cove.node_of(id) == "a"
    cove.text("stop", id)
    assert cove.text("move", id, "b") == f"sandbox {id} is on node b\n"
    assert cove.json("info", id)["status"] == "stopped"
    assert cove.text("move", id) == f"sandbox {id} is on node a\n"
    unknown = cove("move", id, "z")
    assert unknown.returncode == 125
    assert b"there is no node 'z'" in unknown.stderr
    cove.text("start", id)
    assert cove.text("exec", "--in", id, "cat file") == "kept\n"
    cove.text("rm", id)


def test_one_that_runs_is_stopped_moved_and_started(cluster: Cluster) -> None:
    cove = ClusterCli(cluster, "a")
    id = cove.sandbox_on("a")
    cove.text("exec", "--in", id, "echo kept > file")
    done = cove("move", id, "b", "--stop")
    assert (done.returncode, done.stdout.decode()) == (0, f"sandbox {id} is on node b\n")
    assert b"it is stopped" in done.stderr
    assert cove.json("info", id)["status"] == "running"
    cove.text("start", id, "--id", "kept", "sleep 1000")
    refused = cove("move", id, "z", "--stop")
    assert refused.returncode == 125
    assert b"there is no node 'z'" in refused.stderr
    assert b"it is stopped" not in refused.stderr
    found = {each["id"]: each["status"] for each in cove.json("ps", id)}
    assert found.get("kept") == "running", "what stays is not stopped"
    assert cove.text("exec", "--in", id, "cat file") == "kept\n"
    cove.text("rm", id)


def test_a_node_that_is_drained_with_move_says_who_stays(cluster: Cluster) -> None:
    cove = ClusterCli(cluster, "a")
    stopped, running = cove.sandbox_on("a"), cove.sandbox_on("a")
    cove.text("stop", stopped)
    with played_agent(cluster.homes["a"]) as calls:
        done = drain(cove, "a", "--move")
        assert done.returncode != 0
        assert f"{running} stays" in done.stderr.decode()
        assert done.stdout.decode() == "1 sandbox of node a moved, 1 stay\n"
        assert (cove.node_of(stopped), cove.node_of(running)) == ("b", "a")
        done = drain(cove, "a", "--move", "--stop")
        assert (done.returncode, done.stdout.decode()) == (0, "1 sandbox of node a moved\n")
        assert (cove.node_of(running), cove.json("info", running)["status"]) == ("b", "running")
        assert drain(cove, "a", "--undo").returncode == 0
        assert calls == [Drain(node="a"), Drain(node="a"), Drain(node="a", undo=True)]
        for wrong in (("--stop",), ("--move", "--undo")):
            refused = drain(cove, "a", *wrong)
            assert refused.returncode != 0
            assert b"--stop goes with --move" in refused.stderr
    assert len(calls) == 3, "what makes no sense has drained nothing"
    for id in (stopped, running):
        cove.text("rm", id)


def test_a_list_of_nodes_is_shown_and_no_agent_is_asked_to_drain_one(cluster: Cluster) -> None:
    cove = ClusterCli(cluster, "a")
    made = cove.text("create").strip()
    node = str(cove.node_of(made))
    assert f"node       {node}\n" in cove.text("info", made)
    heads, row = cove.text("ls").splitlines()
    assert row[heads.index("NODE") :].split() == [node]
    cove.text("rm", made)
    wait_until(lambda: all(each["health"] for each in cove.json("cluster", "status")["nodes"]), "both were asked")
    heads, *rows = cove.text("cluster", "status").splitlines()
    assert heads.split() == ["NODE", "ADDRESS", "STATE", "FREE", "SANDBOXES", "VERSION"]
    assert [row.split()[:3] for row in rows] == [[name, cluster[name].url, "up"] for name in ("a", "b")]
    refused = drain(cove, "b")
    assert refused.returncode == 125
    assert b"max_sandboxes = 0" in refused.stderr


def test_a_state_directory_of_no_node_is_named(cluster: Cluster, tmp_path: Path) -> None:
    refused = ClusterCli(cluster, "a")("cluster", "status", "--home", str(tmp_path))
    assert refused.returncode == 125
    assert str(tmp_path).encode() in refused.stderr


def drain(cove: ClusterCli, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return cove("cluster", "drain", *arguments)


@contextmanager
def played_agent(home: Path) -> Iterator[list[Call]]:
    """The other end of an agent's socket: a list of nodes has none, and moves are the same with any."""
    path = agent_socket(home / SERVER_DIRECTORY)
    calls: list[Call] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, connection.makefile("rwb") as stream:
                    calls.append(msgspec.json.decode(stream.readline(), type=Call))
                    stream.write(msgspec.json.encode(Answer()) + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield calls
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            os.unlink(path)
