"""What was measured as tables: for a terminal, for docs/benchmarks.md and for README."""

import re
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console
from rich.table import Table

from bench.beside.chart import NOTHING, show
from bench.beside.groups import GROUPS, Figure, Group
from bench.beside.summary import Measured, Spread

BEGIN, END = "<!-- made by `make beside` -->", "<!-- end -->"
_PLACE = re.compile(r"\{(.*?)\}")
# What README says: the row, the figures of Cove, and those of others; each as group/contender/figure.
_README = (
    (
        "a sandbox, to its first result",
        "{tools/Cove/create}",
        "llm-sandbox, also with bubblewrap: {tools/llm-sandbox/create}; jupyter: {tools/jupyter/create}; "
        "openai-agents, without isolation: {tools/openai-agents/create}",
    ),
    (
        "sandboxes made, used and ended",
        "{tools/Cove/lives}",
        "a bare bubblewrap: {tools/bare bwrap/lives}; llm-sandbox: {tools/llm-sandbox/lives}",
    ),
    (
        '`exec("true")`',
        "{tools/Cove/exec}",
        '`subprocess.run(["bash", "-c", "true"])`: {tools/bare machine/exec}; llm-sandbox: {tools/llm-sandbox/exec}',
    ),
    (
        "a command in a session",
        "{tools/Cove/session}",
        "a bare resident bash: {tools/bare machine/session}; swe-rex: {tools/swe-rex/session}",
    ),
    (
        "the same, with a timeout",
        "{tools/Cove/timed_session}",
        "a bare resident bash: {tools/bare machine/timed_session}; swe-rex: {tools/swe-rex/timed_session}",
    ),
    (
        "50 sessions at once",
        "{tools/Cove/sessions}",
        "bare resident bashes: {tools/bare machine/sessions}; swe-rex: {tools/swe-rex/sessions}",
    ),
    (
        "a code cell",
        "{tools/Cove/cell}",
        "jupyter: {tools/jupyter/cell}; llm-sandbox: {tools/llm-sandbox/cell}",
    ),
    (
        "a key and its echo",
        "{tools/Cove/key}",
        "a bare pty: {tools/bare machine/key}; openai-agents: {tools/openai-agents/key}",
    ),
    (
        "a copy of 200 MB in 5 000 files, and a command in it",
        "{copies/Cove/copy}",
        "`git worktree`: {copies/git worktree/copy}; `cp -a`: {copies/cp -a/copy}",
    ),
    (
        "memory of each of 200 idle sandboxes",
        "{tools/Cove/density}",
        "a bash in a bare bubblewrap: {tools/bare bwrap/density}; on a server: {clients/Cove's client/density}",
    ),
    (
        "a command on a server, by the client of E2B",
        "{clients/E2B's client/exec}",
        "by Cove's own: {clients/Cove's client/exec}",
    ),
)


def print_tables(groups: Sequence[Group], measured: Measured) -> None:
    """One table a group; in brackets, how many times better Cove is."""
    for group in groups:
        table = Table(title=f"{group.title}: p50, p95, and how many times better Cove is")
        table.add_column("")
        for column in group.columns:
            table.add_column(column.name, justify="right")
        found = measured.get(group.key, {})
        ours = found.get(group.columns[0].name, {})
        for figure in group.figures:
            spreads = [found.get(column.name, {}).get(figure.key) for column in group.columns]
            table.add_row(figure.label, *(_cell(spread, ours.get(figure.key), figure) for spread in spreads))
        Console(width=180).print(table)


def _cell(spread: Spread | None, ours: Spread | None, figure: Figure) -> str:
    if spread is None:
        return "-"
    text = _both(spread, figure)
    if ours is None or spread is ours or text == NOTHING or not ours["p50"]:
        return text
    ratio = spread["p50"] / ours["p50"] if figure.less_is_better else ours["p50"] / spread["p50"]
    return f"{text} ({ratio:.2g} x)" if ratio < 10 else f"{text} ({ratio:.0f} x)"


def _both(spread: Spread, figure: Figure) -> str:
    middle = show(spread["p50"], figure.unit)
    if "p95" not in spread or middle == NOTHING:
        return middle
    return f"{middle}, {show(spread['p95'], figure.unit)}"


def markdown(groups: Sequence[Group], measured: Measured) -> str:
    """The tables of docs/benchmarks.md."""
    return "\n\n".join(_group_markdown(group, measured.get(group.key, {})) for group in groups if group.key in measured)


def _group_markdown(group: Group, found: dict[str, dict[str, Spread]]) -> str:
    names = [column.name for column in group.columns]
    lines = [f"| {group.title} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for figure in group.figures:
        cells = [_both(found[name][figure.key], figure) if figure.key in found.get(name, {}) else "" for name in names]
        if any(cells):
            lines.append(f"| {figure.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def readme_table(measured: Measured) -> str:
    """The table of README: p50 only. A row of which something was not measured is left out."""
    units = {f"{group.key}/{figure.key}": figure.unit for group in GROUPS for figure in group.figures}

    def value(match: re.Match[str]) -> str:
        group, name, figure = match[1].split("/")
        return show(measured[group][name][figure]["p50"], units[f"{group}/{figure}"])

    lines = ["| | Cove | beside |", "|---|---|---|"]
    for row in _README:
        with suppress(KeyError):
            lines.append(f"| {' | '.join(_PLACE.sub(value, cell) for cell in row)} |")
    return "\n".join(lines)


def replace_between(text: str, table: str) -> str:
    """Put the table between the marks of a document."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"
