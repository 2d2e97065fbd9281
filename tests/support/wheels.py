"""Cove as a user has it: built from this checkout, and installed where nothing of the checkout is seen."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

_ROOT = Path(__file__).parent.parent.parent
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def build(target: Path, *kinds: str, source: Path = _ROOT, **environment: str) -> Path:
    """Build a wheel, a source package or both, as `python -m build` does, and return the last one."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target)]
    for kind in kinds:
        command += ["--target", kind]
    run(command, cwd=source, **environment)
    (found,) = target.glob("*.whl" if kinds[-1] == "wheel" else "*.tar.gz")
    return found


def install(wheel: Path, directory: Path) -> Path:
    """Make an environment of that wheel and of what it says it needs, and return its directory of programs.

    No network: the needed packages are those of the environment of the tests, and no others.
    """
    run([sys.executable, "-m", "venv", "--without-pip", str(directory)])
    programs = directory / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]
    run([*pip, "--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)])
    (packages,) = directory.glob("lib/python*/site-packages")
    (metadata,) = packages.glob("cove-*.dist-info")
    for needed in _closure(Distribution.at(metadata)):
        for entry in _entries(needed):
            (packages / entry.name).symlink_to(entry)
    return programs


def _closure(wanted: Distribution) -> Iterator[Distribution]:
    """Give what a distribution needs without extras, and what that needs, each once."""
    seen, left = {"cove"}, [wanted]
    while left:
        for line in left.pop().requires or ():
            name = _NAME.match(line)
            assert name is not None
            if "extra ==" in line or name[0].lower() in seen:
                continue
            seen.add(name[0].lower())
            try:
                found = distribution(name[0])
            except PackageNotFoundError:  # not for this system
                continue
            left.append(found)
            yield found


def _entries(package: Distribution) -> set[Path]:
    """Return what a distribution has at the top of its directory: packages, modules, facts."""
    base = Path(str(package.locate_file("")))
    tops = {Path(str(file)).parts[0] for file in package.files or ()}
    return {base / top for top in tops if top not in ("..", "__pycache__") and (base / top).exists()}


def run(command: list[str], *, cwd: Path | None = None, **environment: str) -> str:
    """Run a program that has to succeed, and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    end = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=500, env={**kept, **environment})
    assert end.returncode == 0, end.stdout + end.stderr
    return end.stdout
