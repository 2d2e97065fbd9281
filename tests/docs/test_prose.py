"""The documents read well: short sentences, one on each line, and decision records of one form."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted(DOCS.glob("*.md")),
    *DECISIONS,
]
MOST_WORDS = 25

CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
NO_PROSE = re.compile(r"\s*(#|\||<|!\[|---+$|$)")
BULLET = re.compile(r"\s*([-*] |\d+\. )")
# A sentence ends before a space and a capital, a digit, code, a link or emphasis.
END = re.compile(r"[.!?][\"')*_\]]*\s+(?=[\"'(*_\[]*[A-Z0-9`\[*])")


def lines(text: str) -> Iterator[tuple[int, bool, str]]:
    """The lines of prose: number, whether an item of a list begins, and words. No code, no tables, no headings."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        if not (is_code or is_fence or NO_PROSE.match(line)):
            yield number, bool(BULLET.match(line)), LINK.sub(r"\1", CODE.sub("Code", BULLET.sub("", line))).strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_line_is_one_sentence_of_at_most_25_words(document: Path) -> None:
    bad = []
    previous = 0
    is_open = False
    for number, is_item, line in lines(document.read_text()):
        if is_open and number == previous + 1 and not is_item:
            bad.append(f"{number} goes on from the line before: {line}")
        if END.search(line):
            bad.append(f"{number} has two sentences: {line}")
        if len([word for word in line.split() if re.search(r"\w", word)]) > MOST_WORDS:
            bad.append(f"{number} is too long: {line}")
        previous, is_open = number, not re.search(r"[.!?:;][\"')*_\]]*$", line)
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_the_parts_that_all_have(decision: Path) -> None:
    text = decision.read_text()
    number = int(decision.name[:4])
    assert re.match(rf"# {number}\. \S.*\n\nStatus: (accepted|superseded by \[.*\]\(.*\))\.\n", text)
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == ["Context", "Decision", "Consequences", "Measured"]


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))
