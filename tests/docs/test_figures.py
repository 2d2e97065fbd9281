"""The figures of the documents are those that their sources and the last measurement give."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bench.beside.chart import draw
from bench.beside.groups import GROUPS
from bench.beside.tables import BEGIN, END, markdown, readme_table

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parent.parent.parent
FIGURES = ROOT / "docs" / "figures"
MEASURED = json.loads((FIGURES / "beside.json").read_text())["all"]
MOST_BYTES = 300_000


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_architecture_is_drawn_from_its_source() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_architecture.py"), "--check"]
    end = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert end.returncode == 0, end.stdout


def test_the_recording_is_an_asciicast_that_ends_the_demo() -> None:
    header, *events = map(json.loads, (FIGURES / "demo.cast").read_text().splitlines())
    assert header["version"] == 2
    times = [when for when, _, _ in events]
    assert times == sorted(times)
    assert {kind for _, kind, _ in events} == {"o"}
    assert "Every sandbox is gone" in events[-1][2]


def test_the_animation_is_drawn_from_the_recording_and_is_small() -> None:
    recording = script("make_recording")
    events = recording.read_cast((FIGURES / "demo.cast").read_text())
    svg = (FIGURES / "demo.svg").read_text()
    assert svg == recording.draw(events)
    assert len(svg.encode()) < MOST_BYTES
    assert "infinite" in svg


def test_the_comparison_shows_what_was_measured() -> None:
    assert (FIGURES / "beside.svg").read_text() == draw(GROUPS, MEASURED)


@pytest.mark.parametrize("name", ["README.md", "docs/benchmarks.md"])
def test_the_tables_of_a_document_show_what_was_measured(name: str) -> None:
    table = readme_table(MEASURED) if name == "README.md" else markdown(GROUPS, MEASURED)
    assert f"{BEGIN}\n\n{table}\n\n{END}" in (ROOT / name).read_text()
    assert table.count("\n") > 5
