"""`cove backup` against a real server."""

from collections.abc import Iterator

import pytest
from support.commands import Cli, cli_with_server

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def cove() -> Iterator[Cli]:
    with cli_with_server() as cli:
        yield cli


@pytest.fixture
def sandbox(cove: Cli) -> Iterator[str]:
    with cove.sandbox() as id:
        yield id


def test_a_directory_is_saved_listed_restored_and_removed(cove: Cli, sandbox: str) -> None:
    cove.text("exec", "--in", sandbox, "mkdir d; echo one > d/f; echo '*.o' > d/.gitignore; touch d/x.o")
    id = cove.text("backup", "create", "--name", "mine", "--gitignore", sandbox, "d").strip()
    (listed,) = cove.json("backup", "ls", sandbox)
    assert (listed["id"], listed["name"], listed["dir"]) == (id, "mine", "/workspace/d")
    assert id in cove.text("backup", "ls", sandbox)
    cove.text("exec", "--in", sandbox, "echo two > d/f")
    cove.text("backup", "restore", sandbox, id)
    cove.text("backup", "restore", sandbox, id, "/workspace/e")
    assert cove.text("exec", "--in", sandbox, "cat d/f; ls -A e") == "one\n.gitignore\nf\n"
    cove.text("backup", "rm", sandbox, id)
    assert cove.json("backup", "ls", sandbox) == []


def test_what_is_not_there_is_told(cove: Cli, sandbox: str) -> None:
    end = cove("backup", "restore", sandbox, "nosuch")
    assert (end.returncode, end.stdout) == (125, b"")
    assert b"there is no backup 'nosuch'" in end.stderr
    made = cove.json("backup", "create", "--ttl", "0.001", sandbox)
    assert b"expired" in cove("backup", "restore", sandbox, made["id"]).stderr
    cove.text("backup", "rm", sandbox, made["id"])
