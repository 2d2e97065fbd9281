"""What the documents say is so: examples run, modules exist, tests that are named are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted(path for path in ROOT.rglob("*.md") if not {".venv", "node_modules"} & set(path.parts))
NEED_A_SERVER = ("server.md", "cli.md", "agents.md", "tenants.md")  # see test_server_guides.py, test_agents_guide.py
GUIDES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in NEED_A_SERVER),
]
EXAMPLES = [
    example
    for guide in GUIDES
    for example in re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.DOTALL | re.MULTILINE)
]


def test_the_readme_has_an_asynchronous_and_a_blocking_example() -> None:
    assert any("AsyncSandbox" in example for example in EXAMPLES)
    assert any("import Sandbox" in example for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_guides_runs_as_it_stands(example: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(example)
    end = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=100)
    assert end.returncode == 0, end.stderr
    assert end.stdout
    assert not end.stderr


def test_the_first_example_of_the_readme_prints_what_it_shows(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    found = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    script = tmp_path / "example.py"
    script.write_text(found[1])
    end = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=100)
    assert end.stdout.strip() == found[2].strip()


def test_the_architecture_names_every_package_and_no_module_that_is_gone() -> None:
    package = ROOT / "src/cove"
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {str(path.parent.relative_to(package)) for path in package.rglob("__init__.py")}
    named = set(re.findall(r"`([\w/.]+)`", text))
    assert {"agent", "cli", "runtime/isolation"} <= packages
    assert not packages - named - {".", "verify/inside"}
    paths = {name for name in named if name.count("/") and name.split("/")[0] in packages}
    assert not [name for name in paths if not any((package / f"{name}{end}").exists() for end in ("", ".py"))]


def _promises() -> list[tuple[str, str]]:
    """Every row of SECURITY.md's tables: what is promised, and what holds it."""
    text = (ROOT / "SECURITY.md").read_text()
    section = text[text.index("## Promises") : text.index("## No promises")]
    rows = [line.strip("| ").rpartition(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(promise, held) for promise, _, held in rows if held != "held by"]


PROMISES = _promises()


def test_the_tables_of_promises_are_found() -> None:
    assert len(PROMISES) > 140
    assert (ROOT / "SECURITY.md").read_text().count("| held by |") == 5


@pytest.mark.parametrize(("promise", "held"), PROMISES, ids=[promise[:60] for promise, _ in PROMISES])
def test_every_promise_names_tests_that_exist(promise: str, held: str) -> None:
    """A name without a file is of the file before it; what stands in brackets says more of a test."""
    file = ""
    named = []
    for reference in re.findall(r"`([^`]+)`", re.sub(r" \([^)]*\)", "", held)):
        path, _, name = reference.rpartition("::")
        file = path or file
        named.append((file, name))
    assert named, f"nothing holds: {promise}"
    missing = [f"{path}::{name}" for path, name in named if not _has_test(ROOT / path, name)]
    assert not missing


def _has_test(path: Path, name: str) -> bool:
    return name.startswith("test_") and re.search(rf"^(async )?def {name}\(", _read(path), re.MULTILINE) is not None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)\)", document.read_text())
    assert not [target for target in targets if not (document.parent / target).exists()]


def test_the_makefile_has_the_commands_that_the_documents_name() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    for command in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def test_the_site_is_built_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    end = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert end.returncode == 0, end.stderr
    assert (tmp_path / "site/sessions/index.html").exists()
    assert "Which surface do I use?" in (tmp_path / "site/search/search_index.json").read_text()
