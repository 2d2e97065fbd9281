"""Figures as a table for people and as JSON for programs."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness import Figure, Summary, Target, Unit

_FILE_COLUMNS = 150


def print_report(facts: Mapping[str, object], figures: Sequence[Figure], remarks: Sequence[str]) -> None:
    """One row a figure, then what was left out."""
    console = Console() if sys.stdout.isatty() else Console(width=_FILE_COLUMNS)
    console.print("  ".join(f"{name}={value}" for name, value in facts.items()), style="dim", highlight=False)
    table = Table("figure")
    for heading in ("p50", "p95", "floor", "p50", "p95", "ratio", "target", ""):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "floor" else "right")
    for figure in figures:
        table.add_row(*_row(figure))
    console.print(table)
    for remark in remarks:
        console.print(remark, style="yellow", highlight=False)


def write_json(path: Path, facts: Mapping[str, object], figures: Sequence[Figure], remarks: Sequence[str]) -> None:
    """Everything that was measured."""
    document = {"machine": facts, "figures": [_record(figure) for figure in figures], "remarks": list(remarks)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")


def _row(figure: Figure) -> list[str]:
    mark = (
        "[yellow]noisy" if figure.is_disturbed else {True: "[green]ok", False: "[red]MISSED", None: ""}[figure.passed]
    )
    facts = "".join(f"\n  {name}: {value}" for name, value in figure.facts.items())
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return [
        figure.name + f"[dim]{facts}",
        *_spread(figure.subject, figure.unit),
        figure.floor_name,
        *(_spread(figure.floor, figure.unit) if figure.floor else ("", "")),
        ratio,
        _target(figure.target, figure.unit),
        mark,
    ]


def _spread(summary: Summary, unit: Unit) -> tuple[str, str]:
    return _value(summary.p50, unit), _value(summary.p95, unit) if summary.count > 1 else ""


def _target(target: Target | None, unit: Unit) -> str:
    if target is None:
        return ""
    sign = "≤" if target.is_upper else "≥"
    return f"{sign} {target.limit:g}" if target.of_ratio else f"{sign} {_value(target.limit, unit)}"


def _value(value: float, unit: Unit) -> str:
    match unit:
        case Unit.SECONDS:
            return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.2f} s"
        case Unit.BYTES:
            return f"{value / (1 << 20):.2f} MiB"
        case Unit.BYTES_PER_SECOND:
            return f"{value / 1e6:.0f} MB/s"
        case Unit.PER_SECOND:
            return f"{value:.0f} /s"
        case Unit.COUNT:
            return f"{value:g}"


def _record(figure: Figure) -> dict[str, object]:
    return {
        "name": figure.name,
        "unit": figure.unit.value,
        "subject": _spread_record(figure.subject),
        "floor": figure.floor and {"name": figure.floor_name, **_spread_record(figure.floor)},
        "ratio": figure.ratio,
        "target": figure.target
        and {
            "limit": figure.target.limit,
            "bound": "at most" if figure.target.is_upper else "at least",
            "of": "ratio" if figure.target.of_ratio else "subject",
        },
        "passed": figure.passed,
        "disturbed": figure.is_disturbed,
        "facts": figure.facts,
    }


def _spread_record(summary: Summary) -> dict[str, float | int]:
    return {"p50": summary.p50, "p95": summary.p95, "count": summary.count, "p10": summary.p10}
