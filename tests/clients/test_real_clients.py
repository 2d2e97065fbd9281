"""The sandbox clients that others wrote, unchanged, against a server."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bridge_client import bridge_server
from support.client_packages import node_client, python_client
from support.servers import Server

pytestmark = [pytest.mark.timeout(600), pytest.mark.pure]

HERE = Path(__file__).parent
GUIDE = (HERE.parent.parent / "docs/openai-agents.md").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with bridge_server() as server:
        yield server


@pytest.fixture(scope="module")
def python() -> Path:
    return python_client()


@pytest.fixture(scope="module")
def packages() -> Path:
    return node_client()


def run(server: Server, *command: str | Path, input: str = "") -> str:
    keys = dict.fromkeys(("BRIDGE_KEY", "COVE_API_KEY", "CLOUDFLARE_SANDBOX_API_KEY"), server.key)
    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    environment = {**os.environ, **proxies, **keys, "COVE_URL": server.url}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, input=input, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.directory.count() == 0, "the client deletes what it made"
    return done.stdout


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_the_python_client_does_everything_it_can(server: Server, python: Path) -> None:
    assert "all is well" in run(server, python, HERE / "openai_agents.py", server.url)


@pytest.mark.slow
def test_the_python_client_resumes_what_it_left(server: Server, python: Path) -> None:
    assert "all is well" in run(server, python, HERE / "openai_agents.py", server.url, "--long")


def test_the_javascript_client_does_everything_it_can(server: Server, packages: Path, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(packages)
    script = shutil.copy(HERE / "openai_agents.mjs", tmp_path)
    assert "all is well" in run(server, "node", script, server.url)


def test_the_examples_of_the_guide_for_python_work(server: Server, python: Path) -> None:
    with_model, without_model = examples("py")
    told = run(server, python, HERE / "guide.py", input=with_model)
    assert "sorted" in told
    assert "Output:\n1 2 3" in told
    assert run(server, python, HERE / "guide.py", input=without_model) == "b'5\\n4\\n3\\n2\\n1\\n'\n"


def test_the_example_of_the_guide_for_javascript_works(server: Server, packages: Path, tmp_path: Path) -> None:
    (example,) = examples("js")
    (tmp_path / "node_modules").symlink_to(packages)
    script = tmp_path / "guide.mjs"
    script.write_text(example)
    assert "5\n4\n3\n2\n1" in run(server, "node", script)
