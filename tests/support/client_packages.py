"""The clients that others wrote, installed once in a cache."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import cove

PYTHON_PACKAGE = "openai-agents[cloudflare]==0.24.0"
NODE_PACKAGES = ("@openai/agents-extensions@0.18.0", "@openai/agents@0.18.0", "ws@8", "zod@4")
HARNESSES = (
    *("inspect-ai==0.3.285", "swe-rex==1.4.0", "mini-swe-agent==2.4.6"),
    *("pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.6"),
)
_ROOT = Path(__file__).parent.parent.parent
E2B_NODE_PACKAGES = ("e2b@2.51.0", "@e2b/code-interpreter@2.8.0")
_SHARED = Path("/var/cache/cove-tests")
_SYSTEM = "/usr/bin/python3"
_SECONDS = 500


def python_client() -> Path:
    """An interpreter that has the Python client, or skip."""
    base = _interpreter()
    version = _ask(base, "-c", "import sys; print(*sys.version_info[:2], sep='.')").stdout
    with _installed(f"openai-agents-0.24.0-python{version.strip()}") as (directory, is_new):
        if is_new:
            _run([base, "-m", "venv", str(directory / "venv")])
            _run([str(directory / "venv/bin/pip"), "install", "-q", "--disable-pip-version-check", PYTHON_PACKAGE])
    return directory / "venv/bin/python"


def harness_client() -> Path:
    """An interpreter that has the harnesses of others, and what Cove itself needs, or skip."""
    base = _interpreter()
    version = _ask(base, "-c", "import sys; print(*sys.version_info[:2], sep='.')").stdout
    needed = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    with _installed(f"harnesses-{HARNESSES[0]}-python{version.strip()}") as (directory, is_new):
        if is_new:
            _run([base, "-m", "venv", str(directory / "venv")])
            pip = [str(directory / "venv/bin/pip"), "install", "-q", "--disable-pip-version-check"]
            _run([*pip, *HARNESSES, *needed])
    return directory / "venv/bin/python"


def ray_client() -> Path:
    """An interpreter that has Ray, and what Cove itself needs, or skip."""
    version = ".".join(map(str, sys.version_info[:2]))
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["cluster"]]
    with _installed(f"ray-2.60-python{version}") as (directory, is_new):
        if is_new:
            _run([sys.executable, "-m", "venv", str(directory / "venv")])
            _run([str(directory / "venv/bin/pip"), "install", "-q", "--disable-pip-version-check", *needed])
    return directory / "venv/bin/python"


def swerex_tests() -> Path:
    """The directory of the tests that SWE-ReX's source package brings, or skip."""
    python = harness_client()
    with _installed(f"{HARNESSES[1]}-source") as (directory, is_new):
        if is_new:
            pip = [str(python), "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
            _run([*pip, "--no-binary", ":all:", "-d", str(directory), HARNESSES[1]])
            (archive,) = directory.glob("*.tar.gz")
            with tarfile.open(archive) as members:
                members.extractall(directory, filter="data")
    (tests,) = directory.glob("*/tests")
    return tests


def installed_cove(directory: Path) -> str:
    """Return a search path on which Cove is found with its entry points, as if it had been installed."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    facts = directory / f"cove-{cove.__version__}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cove\nVersion: {cove.__version__}\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in names.items())
        for group, names in project["entry-points"].items()
    ]
    (facts / "entry_points.txt").write_text("\n".join(lines))
    return f"{directory}:{_ROOT / 'src'}"


def node_client() -> Path:
    """The directory of packages in which Node finds the JavaScript client, or skip."""
    return _node_packages("openai-agents-extensions-0.18.0", NODE_PACKAGES)


def e2b_node_client() -> Path:
    """The directory of packages in which Node finds E2B's JavaScript clients, or skip."""
    return _node_packages("e2b-2.51.0", E2B_NODE_PACKAGES)


def typescript_packages(project: Path) -> Path:
    """The directory of packages that a project of this repository has locked, or skip."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm on this machine")
    lock = project / "package-lock.json"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    with _installed(f"{project.name}-{digest}") as (directory, is_new):
        if is_new:
            for name in ("package.json", "package-lock.json", ".npmrc"):
                shutil.copy(project / name, directory)
            _run(["npm", "ci", "--silent"], cwd=directory)
    return directory / "node_modules"


def _node_packages(name: str, packages: tuple[str, ...]) -> Path:
    if shutil.which("npm") is None:
        pytest.skip("there is no npm on this machine")
    with _installed(name) as (directory, is_new):
        if is_new:
            (directory / "package.json").write_text('{"private": true}\n')
            _run(["npm", "install", "--no-audit", "--no-fund", "--silent", *packages], cwd=directory)
    return directory / "node_modules"


def _interpreter() -> str:
    """The system's, which every user can run, or else the one that runs the tests."""
    if Path(_SYSTEM).exists() and _ask(_SYSTEM, "-c", "import ensurepip").returncode == 0:
        return _SYSTEM
    return sys.executable


@contextmanager
def _installed(name: str) -> Iterator[tuple[Path, bool]]:
    """A directory of the cache, and whether it has to be filled; only one test run at a time fills it."""
    if (_SHARED / name / "ready").exists():
        yield _SHARED / name, False
        return
    directory = _cache() / name
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_new = not (directory / "ready").exists()
        yield directory, is_new
        (directory / "ready").touch()


def _cache() -> Path:
    with suppress(OSError):  # not ours to make
        _SHARED.mkdir(exist_ok=True)
    if os.access(_SHARED, os.W_OK):
        return _SHARED
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cove-tests"


def _run(command: list[str], cwd: Path | None = None) -> None:
    try:
        done = _ask(*command, cwd=cwd)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} took too long to install the client")
    if done.returncode != 0:
        pytest.skip(f"the client cannot be installed here: {(done.stderr or done.stdout).strip()[-300:]}")


def _ask(*command: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS)
