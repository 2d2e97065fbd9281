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


def test_a_list_of_keys_says_what_each_may_have(cove: Cli) -> None:
    cove.text(
        "key", "create", "few", "--max-sandboxes", "2", "--max-disk", "1536M", "--network", "none", "--rate", "20/s"
    )
    cove.text("key", "create", "some", "--allow", "a.example")
    header, few, some = cove.text("key", "ls").splitlines()
    assert header.split()[-1] == "QUOTA"
    assert few.endswith("sandboxes 2, disk 1.5 GiB, network none, rate 20/s")
    assert some.endswith("network a policy")
    for name in ("few", "some"):
        cove.text("key", "rm", name)


def test_a_token_reaches_one_sandbox_for_what_it_is_for(cove: Cli) -> None:
    for id in ("shared", "private"):
        cove.text("create", "--id", id)
        cove.text("exec", "--in", id, "echo content > file")
    token = cove.text("token", "shared", "files.read", "sandbox.read", "--expires", "10m").strip()
    assert cove.text("cp", "shared:file", "-", "--api-key", token) == "content\n"
    assert cove("exec", "--in", "shared", "--api-key", token, "true").returncode == 125
    assert cove("cp", "private:file", "-", "--api-key", token).returncode == 125
    refused = cove("token", "shared", "everything")
    assert (refused.returncode, b"everything" in refused.stderr) == (125, True)
    refused = cove("token", "shared", "files", "--expires", "soon")
    assert (refused.returncode, b"30d" in refused.stderr) == (125, True)
    cove.text("rm", "shared", "private")


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
    refused = cove("exec", "--in", "theirs", "true")
    assert (refused.returncode, b"COVE_TENANT=team" in refused.stderr) == (125, True), refused.stderr
    cove.environment["COVE_TENANT"] = "team"
    try:
        assert cove.text("exec", "--in", "theirs", "echo reached") == "reached\n"
        cove.text("rm", "theirs")
        assert cove.json("ls") == []
    finally:
        del cove.environment["COVE_TENANT"]
    cove.text("key", "rm", "team")
