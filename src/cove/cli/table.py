"""Print lists and records: aligned for people, tab-separated for pipes, as JSON."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from cove.cli.descriptors import printable
from cove.wire.coding import encode_json

_NOT_ASCII = re.compile(r"[^ -~]")
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def print_json(value: object) -> None:
    """Print one JSON document."""
    print(msgspec.json.format(json_line(value), indent=2).decode())


def json_line(value: object) -> bytes:
    """Encode as JSON in one line, in which strings hold nothing that a terminal would obey."""
    text = encode_json(value).decode()
    return (text if text.isprintable() else _NOT_ASCII.sub(_escape, text)).encode() + b"\n"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns; on a terminal the last one is cut where the window ends, elsewhere nothing is."""
    lines = [[printable(text) for text in row] for row in rows]
    if sys.stdout.isatty():
        _print_fitted(headings, lines)
        return
    widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
    for line in [headings, *lines]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_record(facts: Mapping[str, str]) -> None:
    """Names and values, one below the other."""
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {printable(value)}".rstrip())


def age(moment: datetime) -> str:
    """Format a time as an age, in the largest unit that fits."""
    seconds = max((datetime.now(UTC) - moment).total_seconds(), 0)
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{int(seconds / size)} {unit}"


def _print_fitted(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], no_wrap=True, overflow="ellipsis", ratio=1)
    for line in lines:
        table.add_row(*map(Text, line))
    Console(highlight=False).print(table)
