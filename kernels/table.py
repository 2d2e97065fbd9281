"""Write the results as a page of the documentation."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten

from kernels.machine import Result
from kernels.outcome import Outcome

_BEGIN = "<!-- results: made by `make kernels` -->"
_END = "<!-- end of results -->"
_MOST_CHARACTERS = 300
_MARKS = {"ok": "ok", "refused": "refused", "failed": "**failed**"}


def write_page(page: Path, outcomes: list[Outcome]) -> None:
    """Replace the results in the page, and leave its words."""
    before, _, rest = page.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    page.write_text(f"{before}{_BEGIN}\n\n{render(outcomes)}\n{_END}{after}")


def render(outcomes: list[Outcome]) -> str:
    """Return one table of all machines, and what was refused or failed, with its reason."""
    checks = list(dict.fromkeys(result.check for outcome in outcomes for result in outcome.results))
    lines = [f"| machine | kernel | user | {' | '.join(checks)} |", "|---" * (3 + len(checks)) + "|"]
    notes: dict[str, int] = {}
    for outcome in outcomes:
        lines += _rows(outcome, checks, notes)
    if notes:
        lines += ["", "| | reason |", "|---|---|"]
        lines += [f"| {number} | {_one_line(note)} |" for note, number in notes.items()]
    return "\n".join(lines) + "\n"


def _rows(outcome: Outcome, checks: list[str], notes: dict[str, int]) -> Iterator[str]:
    if outcome.reason:
        yield f"| {outcome.case.name} | not obtainable here{_note(outcome.reason, notes)} |{' |' * (1 + len(checks))}"
    for user in dict.fromkeys(result.user for result in outcome.results):
        found = {result.check: result for result in outcome.results if result.user == user}
        cells = [_cell(found.get(check), notes) for check in checks]
        yield f"| {outcome.case.name} | {outcome.version} | {_who(user)} | {' | '.join(cells)} |"


def _who(user: str) -> str:
    return "root" if user == "root" else "plain"


def _cell(result: Result | None, notes: dict[str, int]) -> str:
    if result is None:
        return "not run"
    return _MARKS[result.end] + ("" if result.end == "ok" else _note(result.detail, notes))


def _note(text: str, notes: dict[str, int]) -> str:
    return f" ({notes.setdefault(text, len(notes) + 1)})"


def _one_line(text: str) -> str:
    return shorten(text, _MOST_CHARACTERS, placeholder=" …").replace("|", "\\|").replace("<", "&lt;")
