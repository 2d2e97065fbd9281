"""`cove stop`, `start`, `pause`, `resume` and `label`: what each does to a sandbox of a server."""

import pytest
from support.commands import Cli, cli_of_module

pytestmark = pytest.mark.pure
cove = cli_of_module


def status(cove: Cli, id: str) -> object:
    return cove.json("info", id)["status"]


def test_a_stopped_sandbox_refuses_until_it_is_started(cove: Cli) -> None:
    with cove.sandbox() as id:
        cove.text("exec", "--in", id, "echo kept > file")
        cove.text("stop", id)
        assert status(cove, id) == "stopped"
        refused = cove("exec", "--in", id, "true")
        assert refused.returncode == 125
        assert b"start" in refused.stderr
        cove.text("start", id)
        assert status(cove, id) == "running"
        assert cove.text("exec", "--in", id, "cat file") == "kept\n"


def test_a_paused_sandbox_is_resumed(cove: Cli) -> None:
    with cove.sandbox() as id:
        cove.text("start", "--id", "sleeper", id, "sleep 1000")
        cove.text("pause", id)
        assert status(cove, id) == "paused"
        cove.text("resume", id)
        assert status(cove, id) == "running"
        assert [process["status"] for process in cove.json("ps", id)] == ["running"]


def test_sandboxes_are_listed_by_their_labels(cove: Cli) -> None:
    with cove.sandbox() as id, cove.sandbox() as other:
        cove.text("label", id, "team=a")
        listed = [each["id"] for each in cove.json("ls", "--label", "team=a")]
        assert listed == [id]
        assert other not in listed
