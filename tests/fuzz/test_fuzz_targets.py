"""Fuzzers: every input that is kept, or that they begin with, keeps every property; and what breaks one is told."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.loop import close
from fuzz.run import has_engine
from fuzz.target import CORPUS, load, names

pytestmark = pytest.mark.pure

load("dockerfile").check(b"FROM a")  # opens descriptors of Go's runtime, which stay
needs_engine = pytest.mark.skipif(not has_engine(), reason="atheris has no wheel for this Python or machine")
ROOT = Path(__file__).parent.parent.parent
KEPT = [(path.parent.name, path.name) for path in sorted(CORPUS.glob("*/*"))]


@pytest.fixture(autouse=True)
def no_blocking_calls() -> None:
    """A target runs its loop for one input alone: whatever it calls there may block."""


@pytest.fixture(autouse=True)
def loop_that_ends() -> Iterator[None]:
    yield
    close()


@pytest.mark.parametrize("name", names())
def test_what_a_target_begins_with_keeps_every_property(name: str) -> None:
    target = load(name)
    seeds = list(target.seeds())
    assert seeds
    assert all(len(seed) <= target.most_bytes for seed in seeds)
    for seed in (*seeds, b"", b"\0"):
        target.check_in_time(seed)


@pytest.mark.parametrize(("name", "input"), KEPT)
def test_what_broke_a_property_once_does_so_no_more(name: str, input: str) -> None:
    load(name).check_in_time((CORPUS / name / input).read_bytes())


def test_every_directory_of_kept_inputs_is_a_targets() -> None:
    assert {name for name, _ in KEPT} <= set(names())
    assert sum(path.stat().st_size for path in CORPUS.glob("*/*")) < 100_000


def plant(directory: Path, body: str) -> None:
    """Copy the fuzzers, with a target `planted` that checks its `data` by these lines."""
    subprocess.run(["cp", "-r", str(ROOT / "fuzz"), str(directory / "fuzz")], check=True)
    (directory / "fuzz" / "targets" / "planted.py").write_text(
        f"def check(data: bytes) -> None:\n{body}\n\ndef seeds() -> list[bytes]:\n    return [b'....']\n"
    )


def fuzz_planted(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuzz", "planted", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=110)


@needs_engine
def test_an_input_that_breaks_a_property_is_written_down_and_can_be_replayed(tmp_path: Path) -> None:
    """A target of our own, with a mistake behind four bytes: only one that sees the branches finds it in time."""
    plant(
        tmp_path,
        "    if data[:1] == b'c' and data[1:2] == b'o' and data[2:3] == b'v' and data[3:4] == b'e':\n"
        "        raise RuntimeError('found')\n",
    )
    end = fuzz_planted(tmp_path, "--seconds", "60", "--seed", "1")
    assert end.returncode == 1, end.stdout + end.stderr
    assert "RuntimeError: found" in end.stdout
    (crash,) = (tmp_path / ".fuzz/crashes").iterdir()
    assert f"replay it: python -m fuzz planted {crash.relative_to(tmp_path)}" in end.stdout
    assert crash.read_bytes().startswith(b"cove")
    again = fuzz_planted(tmp_path, str(crash))
    assert again.returncode == 1
    assert "RuntimeError: found" in again.stderr


@needs_engine
def test_an_input_that_breaks_a_property_only_once_is_told_and_fails_nothing(tmp_path: Path) -> None:
    plant(
        tmp_path,
        "    import os\n"
        "    if data == b'....' and not os.path.exists('once'):\n"
        "        os.mkdir('once')\n"
        "        raise RuntimeError('found')\n",
    )
    end = fuzz_planted(tmp_path, "--seconds", "20", "--seed", "1")
    assert end.returncode == 0, end.stdout + end.stderr
    assert "RuntimeError: found" in end.stdout
    assert "broken once, and not again" in end.stdout
