"""`cove key` against a real server."""

import pytest
from support.commands import Cli, cli_of_module

pytestmark = pytest.mark.pure
cove = cli_of_module


def test_a_key_is_made_used_replaced_and_revoked(cove: Cli) -> None:
    made = cove.json("key", "create", "ci", "--expires", "30d", "--max-sandboxes", "2", "--max-memory", "1G")
    assert (made["info"]["tenant"], made["info"]["quota"]) == ("ci", {"max_sandboxes": 2, "max_memory": 1 << 30})
    assert cove.json("ls", "--api-key", made["key"]) == []
    (listed,) = cove.json("key", "ls")
    assert listed["last_used_at"] is not None
    new = cove.text("key", "rotate", "ci").strip()
    assert cove("ls", "--api-key", made["key"]).returncode == 125
    assert cove.json("ls", "--api-key", new) == []
    cove.text("key", "rm", "ci")
    assert cove("ls", "--api-key", new).returncode == 125
    assert cove.json("key", "ls") == []


def test_what_is_wrong_with_a_key_is_told(cove: Cli) -> None:
    for words, reason in (
        (("create", "No!"), b"no name of a key"),
        (("create", "a", "--expires", "soon"), b"30d"),
        (("create", "a", "--rate", "many"), b"20/s"),
        (("create", "a", "--admin", "--max-sandboxes", "1"), b"neither a tenant nor a quota"),
        (("rm", "missing"), b"no key missing"),
    ):
        end = cove("key", *words)
        assert (end.returncode, reason in end.stderr) == (125, True), end.stderr


def test_an_admin_sees_whose_a_sandbox_is_and_acts_for_its_tenant(cove: Cli) -> None:
    made = cove.json("key", "create", "team")
    cove.text("create", "--id", "theirs", "--api-key", made["key"])
    assert cove.text("ls").splitlines()[1].startswith("team   theirs  running")
    assert cove("exec", "--in", "theirs", "true").returncode == 125
    cove.environment["COVE_TENANT"] = "team"
    try:
        assert cove.text("exec", "--in", "theirs", "echo reached") == "reached\n"
        cove.text("rm", "theirs")
        assert cove.json("ls") == []
    finally:
        del cove.environment["COVE_TENANT"]
    cove.text("key", "rm", "team")
