"""`cove snapshot`, `restore`, `fork` and `diff`."""

from pathlib import Path

import pytest
from support.commands import Cli, cli_of_module

pytestmark = pytest.mark.pure
cove = cli_of_module


def test_a_snapshot_is_made_restored_copied_and_removed(cove: Cli) -> None:
    with cove.sandbox() as id:
        cove.text("exec", "--in", id, "echo one > f")
        snapshot = cove.text("snapshot", "create", id, "--name", "first", "--label", "a=b").strip()
        (listed,) = cove.json("snapshot", "ls")
        assert (listed["id"], listed["name"], listed["labels"]) == (snapshot, "first", {"a": "b"})
        assert "first" in cove.text("snapshot", "ls")
        cove.text("exec", "--in", id, "echo two > f")
        assert "-one\n+two\n" in cove.text("diff", id, "--since", snapshot)
        assert cove.text("diff", id, "--names", "--since", snapshot) == "modified /workspace/f\n"
        copies = cove.text("fork", id, "-n", "2").split()
        assert [cove.text("exec", "--in", copy, "cat f") for copy in copies] == ["two\n", "two\n"]
        cove.text("rm", *copies)
        cove.text("restore", id, snapshot)
        assert cove.text("exec", "--in", id, "cat f") == "one\n"
        cove.text("snapshot", "rm", snapshot)
        assert cove.json("snapshot", "ls") == []


def test_a_snapshot_is_exported_and_loaded(cove: Cli, tmp_path: Path) -> None:
    with cove.sandbox() as id:
        cove.text("exec", "--in", id, "echo one > f")
        snapshot = cove.text("snapshot", "create", id).strip()
        location = cove.text("snapshot", "export", snapshot, f"{tmp_path}/out/").strip()
        assert cove.json("snapshot", "export", snapshot, f"{tmp_path}/out/")["sent_layers"] == 0
        cove.text("snapshot", "rm", snapshot)
        loaded = cove.text("snapshot", "load", location).strip()
        cove.text("exec", "--in", id, "echo two > f")
        cove.text("restore", id, loaded)
        assert cove.text("exec", "--in", id, "cat f") == "one\n"
        cove.text("snapshot", "rm", loaded)
    assert b"Traceback" not in cove("snapshot", "load", f"{tmp_path}/missing").stderr
