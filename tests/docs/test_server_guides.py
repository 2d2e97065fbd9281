"""The guides to the server and to the command line: what they show is run, against a real server."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import COVE, Cli, cli_with_server

from cove.cli.commands import COMMANDS
from cove.server.configuration import Configuration, load

pytestmark = pytest.mark.pure

DOCS = Path(__file__).parent.parent.parent / "docs"
DEFAULT_URL = "http://127.0.0.1:8787"


@pytest.fixture(scope="module")
def cove() -> Iterator[Cli]:
    with cli_with_server() as cli:
        yield cli


def blocks(guide: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / guide).read_text(), re.DOTALL | re.MULTILINE)


def environment(cove: Cli) -> dict[str, str]:
    path = f"{Path(COVE).parent}:{os.environ['PATH']}"
    return {**cove.environment, "PATH": path, "COVE_API_KEY": cove.server.key}


def run_lines(cove: Cli, guide: str, folder: Path) -> str:
    """All shell lines of a guide as one script, in a copy of what they name."""
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("figures", "reference"))
    script = "set -euo pipefail\n" + "\n".join(blocks(guide, "sh"))
    end = subprocess.run(["bash", "-c", script], cwd=folder, env=environment(cove), capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    return end.stdout


EXAMPLES = [*blocks("server.md", "python"), *blocks("tenants.md", "python")]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_server_guide_runs(cove: Cli, example: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(example.replace(DEFAULT_URL, cove.server.url))
    unset = {name: value for name, value in environment(cove).items() if name not in ("COVE_URL", "COVE_API_KEY")}
    end = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, env=unset)
    assert (end.returncode, end.stderr) == (0, "")
    assert end.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_lines_with_curl_do_what_the_server_guide_says(cove: Cli, tmp_path: Path) -> None:
    seen = run_lines(cove, "server.md", tmp_path)
    assert '"stdout":"hello world\\n"' in seen
    assert '"exit_code":3' in seen
    assert seen.count('"text":"1\\n"') == 1
    assert seen.count("event: exit") == 2
    assert "remember the milk" in seen
    assert "cove_sandboxes{" in seen


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_lines_of_the_guide_to_tenants_do_what_it_says(cove: Cli, tmp_path: Path) -> None:
    seen = run_lines(cove, "tenants.md", tmp_path).splitlines()
    assert seen[0].startswith("cove_")
    assert "LAST USED" in seen[1]
    assert any(line.startswith("ci ") for line in seen[2:])
    assert seen[-1] == "[]"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_lines_of_the_guide_to_telemetry_do_what_it_says(cove: Cli, tmp_path: Path) -> None:
    assert "cove_sandboxes{" in run_lines(cove, "telemetry.md", tmp_path)


def test_the_lines_of_the_command_line_guide_do_what_it_says(cove: Cli, tmp_path: Path) -> None:
    seen = run_lines(cove, "cli.md", tmp_path)
    assert "hello world in /tmp\n" in seen
    assert "tick 3\n" in seen
    assert "team=blue" in seen
    assert "data\n" in seen
    assert (tmp_path / "guide.md").read_bytes() == (DOCS / "cli.md").read_bytes()


def test_the_configuration_of_the_guide_is_one(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text("\n".join(blocks("server.md", "toml")))
    assert load(tmp_path / "server.toml", {}) != Configuration()


def test_the_guide_names_every_command() -> None:
    text = (DOCS / "cli.md").read_text()
    assert not [name for name in COMMANDS if f"cove {name}" not in text and name not in ("serve", "setup", "version")]
