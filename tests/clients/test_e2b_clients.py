"""The clients of E2B, unchanged, against a server."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bridge_client import bridge_server
from support.client_packages import e2b_node_client
from support.executors import needs_python
from support.servers import Server

pytest.importorskip("e2b", reason="the environment is older than its requirements: install them again")

pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent
GUIDE = (HERE.parent.parent / "docs/e2b.md").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with bridge_server() as server:
        yield server


def run(server: Server, *command: str | Path, input: str = "", key: str | None = None) -> str:
    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    urls = {"E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url, "E2B_API_KEY": key or server.key}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        input=input,
        env={**os.environ, **proxies, **urls},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.directory.count() == 0, "the client kills what it made"
    return done.stdout


def test_the_synchronous_python_client_does_everything_it_can(server: Server) -> None:
    assert "all is well" in run(server, sys.executable, HERE / "e2b_sync.py")


def test_the_asynchronous_python_client_works_with_a_key_of_the_form_that_older_ones_want(server: Server) -> None:
    key = "e2b_" + server.key.encode().hex()
    assert "all is well" in run(server, sys.executable, HERE / "e2b_async.py", key=key)


@needs_python
def test_the_code_interpreter_for_python_does_everything_it_can(server: Server) -> None:
    assert "all is well" in run(server, sys.executable, HERE / "e2b_code.py")


@needs_python
def test_the_javascript_clients_do_everything_they_can(server: Server, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(e2b_node_client())
    script = shutil.copy(HERE / "e2b.mjs", tmp_path)
    assert "all is well" in run(server, "node", script)


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@needs_python
@pytest.mark.pure
def test_the_examples_of_the_guide_for_python_work(server: Server) -> None:
    first, code = examples("py")
    assert run(server, sys.executable, "-", input=first) == "hello\n['notes.txt']\n"
    assert run(server, sys.executable, "-", input=code) == "3.0\n"


@pytest.mark.pure
def test_the_example_of_the_guide_for_javascript_works(server: Server, tmp_path: Path) -> None:
    (example,) = examples("js")
    (tmp_path / "node_modules").symlink_to(e2b_node_client())
    script = tmp_path / "guide.mjs"
    script.write_text(example)
    assert run(server, "node", script) == "hello\n"
