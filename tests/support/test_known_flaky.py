"""Tests that fail are tried again; what passes only then is named, and forgiven only to those with a reason."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts/second_tries.py"

# Each test passes from the try on that its name says.
TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("needed", [1, 2, 3, 4, 5])
def test_x(needed):
    tries = pathlib.Path(f"tries-{needed}")
    made = len(tries.read_text()) + 1 if tries.exists() else 1
    tries.write_text("x" * made)
    assert made >= needed

def test_race():
    tries = pathlib.Path("tries-race")
    made = len(tries.read_text()) + 1 if tries.exists() else 1
    tries.write_text("x" * made)
    assert made % 3 == 2
"""


def try_again(project: Path, choice: str, known: str) -> tuple[int, str]:
    (project / "test_x.py").write_text(TESTS)
    (project / "known.toml").write_text(f'[[flaky]]\ntests = "{known}"\nreason = "a reason"\n')
    (project / "pytest.ini").write_text("[pytest]\n")
    arguments = ["-q", "-k", choice]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=project, env=env, capture_output=True)
    done = subprocess.run(
        [sys.executable, SCRIPT, "known.toml", *arguments], cwd=project, env=env, stdout=subprocess.PIPE, text=True
    )
    return done.returncode, done.stdout


def test_a_known_one_may_pass_later_and_is_named(tmp_path: Path) -> None:
    code, said = try_again(tmp_path, "1 or 2 or 4", "test_x.py::test_x[*")
    assert code == 0
    assert "PASSED AT TRY 2: test_x.py::test_x[2]: a reason" in said
    assert "PASSED AT TRY 4: test_x.py::test_x[4]: a reason" in said
    assert "test_x[1]" not in said


def test_one_that_fails_in_every_try_fails(tmp_path: Path) -> None:
    code, said = try_again(tmp_path, "5", "test_x.py::*")
    assert code == 1
    assert "FAILED IN EVERY TRY: test_x.py::test_x[5]" in said


def test_one_that_is_not_known_is_forgiven_one_failure_and_named(tmp_path: Path) -> None:
    code, said = try_again(tmp_path, "2", "test_x.py::test_y*")
    assert code == 0
    assert "PASSED AT TRY 2: test_x.py::test_x[2]: not a known one" in said
    assert len((tmp_path / "tries-2").read_text()) == 6


def test_one_that_is_not_known_and_fails_again_is_a_race(tmp_path: Path) -> None:
    code, said = try_again(tmp_path, "race", "test_x.py::test_y*")
    assert code == 1
    assert "FAILED AGAIN AFTER IT HAD PASSED: test_x.py::test_race" in said


def test_one_that_is_not_known_gets_no_third_try(tmp_path: Path) -> None:
    code, said = try_again(tmp_path, "3", "test_x.py::test_x[4]")
    assert code == 1
    assert "FAILED IN EVERY TRY: test_x.py::test_x[3]" in said


def test_every_entry_of_the_list_matches_a_test_and_has_a_reason() -> None:
    specification = importlib.util.spec_from_file_location("second_tries", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["second_tries"] = module
    specification.loader.exec_module(module)
    ids = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    ]
    known = module.load_known(ROOT / "tests/known_flaky.toml")
    assert all(entry.reason for entry in known)
    assert [entry.tests for entry in known if not any(entry.matches(id) for id in ids)] == []
