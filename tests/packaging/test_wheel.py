"""The wheel and the source package: what is in them, and that they work without the checkout."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.wheels import build, install, run

import cove
from cove.runtime.interpreters import find_node

ROOT = Path(__file__).parent.parent.parent
# A build and a type check take long where the machine is busy.
pytestmark = [pytest.mark.pure, pytest.mark.timeout(600)]
MADE = {"node_modules", "static"}
HAS_NPM = shutil.which("npm") is not None
PROGRAM = """
import asyncio

from cove import AsyncSandbox, ExecResult, NetworkPolicy, Sandbox
from cove.errors import CoveError


def count(sandbox: Sandbox, text: str) -> int:
    result: ExecResult = sandbox.exec(["wc", "-w"], stdin=text.encode(), timeout=5)
    return int(result.stdout) if result.ok else -1


async def main() -> None:
    async with AsyncSandbox.create(network=NetworkPolicy(allow=["example.com"])) as sandbox:
        code = await sandbox.create_code_context()
        try:
            execution = await code.run("6 * 7")
        except CoveError as error:
            print(error.code)
        else:
            print(execution.text)


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the packages are built, and the wheel is installed: open to the users of sandboxes."""
    directory = tmp_path_factory.mktemp("packages")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def source(place: Path) -> Path:
    return build(place / "dist", "sdist")


@pytest.fixture(scope="module")
def wheel(place: Path, source: Path) -> Path:
    """The wheel that the source package builds of itself, where no npm is found."""
    with tarfile.open(source) as archive:
        archive.extractall(place / "source", filter="data")
    (unpacked,) = (place / "source").iterdir()
    return build(place / "dist", "wheel", source=unpacked, PATH="/nowhere")


@pytest.fixture(scope="module")
def programs(place: Path, wheel: Path) -> Path:
    return install(wheel, place / "environment")


def names_of(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    package = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    written = {str(path.relative_to(ROOT / "src")) for path in package if not MADE & set(path.parts)}
    found = {name for name in names_of(wheel) if not MADE & set(name.split("/"))}
    assert {name for name in found if name.startswith("cove/")} == written
    made = f"cove-{cove.__version__}"
    assert {name.split("/")[0] for name in found} == {"cove", f"{made}.dist-info", f"{made}.data"}
    shared = {path.relative_to(ROOT / "packaging") for path in (ROOT / "packaging").rglob("*") if path.is_file()}
    assert {name for name in found if ".data/" in name} == {f"{made}.data/data/share/cove/{name}" for name in shared}
    assert {"cove/py.typed", f"cove-{cove.__version__}.dist-info/licenses/LICENSE"} <= found


@pytest.mark.skipif(not HAS_NPM, reason="without npm they are not built")
def test_the_wheel_has_what_needs_npm(wheel: Path) -> None:
    found = names_of(wheel)
    modules = "cove/executor/node_modules"
    assert {f"{modules}/{name}/package.json" for name in ("acorn", "acorn-walk", "sucrase")} <= found
    assert not [name for name in found if name.startswith(modules) and name.endswith((".map", ".ts"))]
    assert {Path(name).suffix for name in found if name.startswith("cove/server/console/static/")} == {
        ".html",
        ".css",
        ".js",
    }


def test_the_source_package_has_no_tests_and_no_benchmarks(source: Path) -> None:
    with tarfile.open(source) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    wanted = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "SECURITY.md", "packaging", "pyproject.toml"}
    assert tops - {".gitignore"} == {*wanted, "scripts", "src"}


def test_the_installed_command_works_without_the_checkout(programs: Path, place: Path) -> None:
    script = "import cove; print(cove.__file__)"
    assert str(place) in run([str(programs / "python"), "-c", script], cwd=place)
    command = str(programs / "cove")
    assert run([command, "version"], cwd=place) == f"cove {cove.__version__}\n"
    assert "Isolation works on this machine." in run([command, "doctor"], cwd=place)
    assert run([command, "exec", "echo inside; id -u"], cwd=place) == "inside\n1000\n"


def test_the_demo_of_the_installed_wheel_needs_no_make(programs: Path, place: Path) -> None:
    told = run([str(programs / "cove"), "demo"], cwd=place, COVE_PYTHON=str(place / "nothing"))
    assert "left running: 0" in told
    assert "run `cove setup` once" in told
    assert "hello from cove" in told


@pytest.mark.skipif(not HAS_NPM or find_node() is None, reason="needs npm, and a Node.js that sandboxes see")
def test_the_installed_wheel_runs_typescript(programs: Path, place: Path) -> None:
    (place / "cell.ts").write_text("const six: number = 6; console.log(six * 7)")
    assert run([str(programs / "cove"), "run", "cell.ts"], cwd=place) == "42\n"


def test_a_program_of_a_stranger_is_checked_against_the_installed_types(programs: Path, place: Path) -> None:
    (place / "program.py").write_text(PROGRAM)
    (place / "wrong.py").write_text("from cove import Sandbox\n\nSandbox.create().exec(5)\n")
    checker = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(place / "cache")]
    command = [*checker, "--python-executable", str(programs / "python"), "program.py", "wrong.py"]
    end = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=500)
    (error, _) = end.stdout.splitlines()
    assert error.startswith('wrong.py:3: error: Argument 1 to "exec"'), end.stdout
