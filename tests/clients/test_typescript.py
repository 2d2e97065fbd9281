"""The TypeScript client works against a real server; its types, and those of the console, are current and strict."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.client_packages import typescript_packages
from support.servers import Server, serving

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parent.parent.parent
CLIENT = ROOT / "clients/typescript"
CONSOLE = ROOT / "console"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    home = Path(tempfile.mkdtemp(prefix="cove-typescript-"))
    home.chmod(0o711)
    try:
        with serving(home, "--on-stop", "destroy") as server:
            yield server
    finally:
        shutil.rmtree(home)


def test_its_types_are_those_of_the_document() -> None:
    command = [sys.executable, str(ROOT / "scripts/make_typescript.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_its_own_tests_pass_against_a_server(server: Server, tmp_path: Path) -> None:
    packages = typescript_packages(CLIENT)
    copy = tmp_path / "typescript"
    shutil.copytree(CLIENT, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (copy / "node_modules").symlink_to(packages)
    environment = {**os.environ, "COVE_URL": server.url, "COVE_API_KEY": server.key}
    done = subprocess.run(["npm", "test"], cwd=copy, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.directory.count() == 0


@pytest.mark.browser
def test_the_console_passes_the_strict_check_of_its_types(tmp_path: Path) -> None:
    for project in (CLIENT, CONSOLE):
        copy = tmp_path / project.relative_to(ROOT)
        shutil.copytree(project, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (tmp_path / "console/node_modules").symlink_to(typescript_packages(CONSOLE))
    command = ["node_modules/.bin/tsc"]
    done = subprocess.run(command, cwd=tmp_path / "console", capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
