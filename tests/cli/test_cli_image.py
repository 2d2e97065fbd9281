"""`cove image`, here and on a server."""

import json
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.commands import Cli, cli_of_module

pytestmark = [pytest.mark.pure, needs_busybox]
cove = cli_of_module


@pytest.fixture(params=["here", "server"])
def at(request: pytest.FixtureRequest, cove: Cli) -> dict[str, str]:
    """The environment by which images are found: without a server the state directory is the same."""
    return {"COVE_URL": cove.server.url if request.param == "server" else "", "COVE_REGISTRY": ""}


def run(cove: Cli, at: dict[str, str], *words: str) -> str:
    end = cove("image", *words, stdin=b"", **at)
    told = [line for line in end.stderr.splitlines() if b" layers, " not in line]
    assert (end.returncode, told) == (0, []), end
    return end.stdout.decode()


def test_an_image_is_loaded_listed_used_saved_and_forgotten(cove: Cli, at: dict[str, str], tmp_path: Path) -> None:
    path = write_busybox(tmp_path / "image.tar", settings={"Env": ["GREETING=hello"]})
    end = cove("image", "load", path, "--name", "team/made:1", stdin=b"", **at)
    assert (end.stdout, end.stderr[:12]) == (b"team/made:1\n", b"1/1 layers, "), end
    (listed,) = json.loads(run(cove, at, "ls", "--json"))
    assert (listed["name"], listed["layers"]) == ("team/made:1", 1)
    assert "team/made:1" in run(cove, at, "ls")
    assert json.loads(run(cove, at, "inspect", "team/made:1"))["env"] == ["GREETING=hello"]
    end = cove("exec", "--image", "team/made:1", "echo $GREETING", stdin=b"", **at)
    assert end.stdout == b"hello\n", end
    run(cove, at, "save", "team/made:1", f"{tmp_path}/saved.tar")
    run(cove, at, "rm", "team/made:1")
    assert run(cove, at, "load", f"{tmp_path}/saved.tar") == "team/made:1\n"
    with cove.sandbox("--image", "team/made:1") as id:
        end = cove("image", "rm", "team/made:1", stdin=b"", **at)
        assert (end.returncode, b"stands on" in end.stderr) == (125, True), end
        assert run(cove, at, "prune", "--all") == ""
        assert cove.text("exec", "--in", id, "echo $GREETING; echo w > /workspace/w") == "hello\n"
        assert cove.text("commit", id, "committed") == "committed:latest\n"
    assert cove("exec", "--image", "committed", "cat w", stdin=b"", **at).stdout == b"w\n"
    run(cove, at, "load", path, "--name", "other")
    run(cove, at, "rm", "--force", "other")
    assert run(cove, at, "prune") == ""
    assert run(cove, at, "prune", "--all") == "committed:latest\nteam/made:1\n"
    assert json.loads(run(cove, at, "ls", "--json")) == []


def test_what_is_no_image_is_told_in_one_line(cove: Cli, at: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage" * 1000)
    for words, reason in (
        (("load", f"{tmp_path}/garbage", "--name", "x"), b"this is no image archive"),
        (("load", f"{tmp_path}/missing"), b"No such file"),
        (("inspect", "absent"), b"there is no image absent:latest"),
        (("save", "absent", f"{tmp_path}/out.tar"), b"there is no image absent:latest"),
        (("rm", "absent"), b"there is no image absent:latest"),
        (("pull", "absent"), b"names no registry"),
        (("pull", "registry.invalid/name:1"), b"registry.invalid"),
    ):
        end = cove("image", *words, stdin=b"", **at)
        assert (end.returncode, reason in end.stderr, end.stderr.count(b"\n")) == (125, True, 1), end
    assert [path.name for path in tmp_path.iterdir()] == ["garbage"]


def test_what_is_no_export_of_a_snapshot_is_named_so(cove: Cli, tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage" * 1000)
    end = cove("snapshot", "load", f"{tmp_path}/garbage")
    assert (end.returncode, b"this is no export of a snapshot" in end.stderr) == (125, True), end


def test_an_image_is_built_and_its_steps_are_shown(cove: Cli, at: dict[str, str], tmp_path: Path) -> None:
    run(cove, at, "load", write_busybox(tmp_path / "image.tar"), "--name", "base")
    (tmp_path / "Recipe").write_text("FROM base\nARG A\nRUN echo $A; exit $A\nCMD sh\n")
    words = ("build", "-t", "made", "-f", f"{tmp_path}/Recipe", str(tmp_path))
    end = cove("image", *words, "--build-arg", "A=0", stdin=b"", **at)
    assert (end.returncode, end.stdout) == (0, b"made:latest\n"), end
    assert end.stderr == b"[1/2] RUN echo $A; exit $A\n0\n[2/2] CMD sh\n"
    end = cove("image", *words, "--build-arg", "A=0", stdin=b"", **at)
    assert end.stderr == b"[1/2] CACHED RUN echo $A; exit $A\n[2/2] CMD sh\n"
    assert run(cove, at, *words, "--build-arg", "A=0", "--quiet", "--no-cache") == "made:latest\n"
    end = cove("image", *words, "--build-arg", "A=7", stdin=b"", **at)
    says = f"{tmp_path}/Recipe, line 3: RUN echo $A; exit $A failed with exit code 7".encode()
    assert (end.returncode, says in end.stderr) == (125, True), end
    for wrong, says in ((("build", "."), b"-t NAME"), (("build",), b"--preset"), (("build", "--preset", "x"), b"data")):
        end = cove("image", *wrong, stdin=b"", **at)
        assert (end.returncode, says in end.stderr) == (125, True), end
    assert sorted(run(cove, at, "prune", "-a").split()) == ["base:latest", "made:latest"]
