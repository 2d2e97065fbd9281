"""`cove journal` and `cove replay`: of a sandbox of a server, and of one that is gone."""

import json
from pathlib import Path

import pytest
from support.commands import Cli, cli_of_module

pytestmark = pytest.mark.pure
cove = cli_of_module


def test_a_journal_is_printed_and_replayed(cove: Cli, tmp_path: Path) -> None:
    with cove.sandbox("--journal", "output") as id:
        cove.text("exec", "--in", id, "echo first words")
        lines = cove.text("journal", id).splitlines()
        assert " created " in lines[0]
        assert any("'echo first words'" in line for line in lines)
        assert "process_ended" in lines[-1]
        assert "exited 0" in lines[-1]
        events = [json.loads(line) for line in cove.text("journal", id, "--json").splitlines()]
        later = cove.text("journal", id, "--json", "--since", events[0]["cursor"]).splitlines()
        assert [json.loads(line) for line in later] == events[1:]
        transcript = cove.text("replay", id)
        assert "first words\n" in transcript.partition("$ ")[2]
        assert cove("replay", id, "-o", str(tmp_path / "transcript")).returncode == 0
        assert (tmp_path / "transcript").read_text() == transcript
        assert b"--journal output" in cove("replay", id, "--terminal", "missing").stderr
    assert id in cove.text("journal", "--destroyed")
    assert " destroyed " in cove.text("journal", "--destroyed", id).splitlines()[-1]
    assert cove.text("replay", "--destroyed", id).startswith(transcript)


def test_a_sandbox_has_to_be_named(cove: Cli) -> None:
    assert b"name a sandbox" in cove("journal").stderr
    assert b"leave out --follow" in cove("journal", "--destroyed", "-f", "gone").stderr
