"""SWE-ReX's own tests of a runtime, unchanged, on a sandbox; and mini-swe-agent."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.client_packages import harness_client, installed_cove, swerex_tests
from support.servers import Server, left_behind

pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent
GUIDE = HERE.parent.parent / "docs/swe-agent.md"


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the users of sandboxes can reach."""
    path = Path(tempfile.mkdtemp(prefix="cove-swerex-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def run_tests(directory: Path, more: Mapping[str, str]) -> None:
    python, package = harness_client(), directory / "swerex_tests"
    package.mkdir()
    (package / "__init__.py").touch()
    for source, name in (
        (swerex_tests() / "test_execution.py", "test_execution.py"),
        (HERE / "swerex_conftest.py", "conftest.py"),
        (HERE / "swerex_checks.py", "test_more.py"),
    ):
        shutil.copy(source, package / name)
    ini = directory / "pytest.ini"
    ini.write_text("[pytest]\ntimeout = 120\nanyio_mode = auto\n")
    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    paths = installed_cove(directory)
    environment = {**os.environ, **proxies, "PYTHONPATH": paths, "MSWEA_GLOBAL_CONFIG_DIR": str(directory), **more}
    command = [python, "-m", "pytest", "-q", "-n", "4", "-c", ini, "--basetemp", directory / "tmp", package]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=environment, timeout=500, cwd=directory
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_swe_rexs_own_tests_pass_and_mini_swe_agent_works(directory: Path) -> None:
    run_tests(directory, {})


def test_a_deployment_on_a_server_is_driven_as_swe_agent_does(directory: Path, shared_server: Server) -> None:
    told = {"PYTHONPATH": installed_cove(directory), "COVE_API_KEY": shared_server.key}
    done = subprocess.run(
        [harness_client(), HERE / "swerex_agent.py", shared_server.url],
        capture_output=True,
        text=True,
        env={**os.environ, **told},
        timeout=200,
    )
    assert done.stdout.endswith("all is well\n"), done.stderr[-3000:]
    assert left_behind(shared_server.home) == []


def test_the_examples_of_the_guide_run(directory: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": installed_cove(directory), "MSWEA_GLOBAL_CONFIG_DIR": str(directory)}
    told = []
    for example in re.findall(r"```py\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        done = subprocess.run(
            [harness_client(), "-c", example], capture_output=True, text=True, env=environment, timeout=100
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert "42 in /tmp" in told[0]
    assert "hello from /workspace" in told[1]
