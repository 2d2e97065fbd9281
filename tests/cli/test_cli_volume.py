"""`cove volume` and `cove mount` against a real server."""

import pytest
from support.commands import Cli, cli_of_module, sandbox_of_test

pytestmark = pytest.mark.pure
cove = cli_of_module
sandbox = sandbox_of_test


def test_a_volume_is_made_mounted_unmounted_and_removed(cove: Cli, sandbox: str) -> None:
    assert cove.text("volume", "create", "kept", "--size", "8M").strip() == "kept"
    (listed,) = cove.json("volume", "ls")
    assert (listed["name"], listed["size"]) == ("kept", 8 << 20)
    cove.text("mount", "add", sandbox, "kept", "/data", "--read-only")
    (mount,) = cove.json("mount", "ls", sandbox)
    assert mount == {"type": "volume", "volume": "kept", "target": "/data", "read_only": True}
    assert "read-only" in cove.text("mount", "ls", sandbox)
    assert "kept:/data" in cove.text("info", sandbox)
    assert b"used by" in cove("volume", "rm", "kept").stderr
    assert cove("mount", "sync", sandbox, "/data").returncode == 125
    cove.text("mount", "rm", sandbox, "/data")
    assert cove.json("mount", "ls", sandbox) == []
    cove.text("volume", "rm", "kept")
    assert cove.json("volume", "ls") == []


def test_what_cannot_be_mounted_is_told(cove: Cli, sandbox: str) -> None:
    for words, reason in (
        (("missing", "/data"), b"no volume"),
        (("s3://bucket", "/data"), b"--endpoint"),
        (("s3://bucket", "/data", "--endpoint", "http://s3.example", "--credentials", "KEYS"), b"does not allow"),
        (("/srv", "/data"), b"does not allow"),
    ):
        end = cove("mount", "add", sandbox, *words)
        assert (end.returncode, reason in end.stderr) == (125, True), end.stderr
