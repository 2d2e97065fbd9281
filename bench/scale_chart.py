"""How cost grows as an SVG: one small chart a series, both axes logarithmic."""

import html
import math
import re
from collections.abc import Sequence
from itertools import groupby

from bench.harness import Figure, Unit

_WIDTH, _COLUMNS, _CELL, _HEIGHT, _LEFT, _TOP, _BOTTOM = 860, 3, 286, 190, 58, 40, 34
_LINE, _BAND, _AXIS = "#0f766e", "#99f6e4", "#cbd5e1"

_NAME = re.compile(r"(?P<series>.+), (?P<number>\d+) (?P<of>\w+)")

Point = tuple[int, Figure]


def draw(figures: Sequence[Figure]) -> str:
    """All series; in each the cost of one unit by how many there are, so that linear growth is a flat line."""
    points = [_NAME.fullmatch(figure.name) for figure in figures]
    named = [(match, figure) for match, figure in zip(points, figures, strict=True) if match is not None]
    series = [
        (name, [(int(match["number"]), figure) for match, figure in group])
        for name, group in groupby(named, key=lambda pair: (pair[0]["series"], pair[0]["of"]))
    ]
    rows = -(-len(series) // _COLUMNS)
    height = rows * _HEIGHT + 40
    cells = [
        f'<g transform="translate({at % _COLUMNS * _CELL},{at // _COLUMNS * _HEIGHT + 34})">{_cell(*name, points)}</g>'
        for at, (name, points) in enumerate(series)
    ]
    style = "text{font:11px system-ui,sans-serif;fill:#334155} .name{font-weight:600}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
        f"<title>How the cost of one unit changes with their number</title><style>{style}</style>"
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
        f'<text x="12" y="22">one unit (p50, shaded p10 to p95) by how many there are; flat is linear growth</text>'
        f"{''.join(cells)}</svg>\n"
    )


def _cell(name: str, of: str, points: Sequence[Point]) -> str:
    numbers = [number for number, _ in points]
    costs = [cost for _, figure in points for cost in (figure.subject.p10, figure.subject.p95)]
    low, high = _around(min(costs), max(costs))

    def x(number: int) -> float:
        span = math.log(numbers[-1] / numbers[0]) or 1.0
        return _LEFT + (_CELL - _LEFT - 24) * math.log(number / numbers[0]) / span

    def y(cost: float) -> float:
        share = math.log(cost / low) / math.log(high / low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share

    line = " ".join(f"{x(number):.0f},{y(figure.subject.p50):.0f}" for number, figure in points)
    upper = [f"{x(number):.0f},{y(figure.subject.p95):.0f}" for number, figure in points]
    lower = [f"{x(number):.0f},{y(figure.subject.p10):.0f}" for number, figure in reversed(points)]
    base = _HEIGHT - _BOTTOM
    parts = [
        f'<text class="name" x="{_LEFT}" y="18">{html.escape(name)}</text>',
        f'<path d="M{_LEFT} {_TOP - 8}V{base}H{_CELL - 16}" fill="none" stroke="{_AXIS}"/>',
        f'<polygon points="{" ".join((*upper, *lower))}" fill="{_BAND}" opacity="0.6"/>',
        f'<polyline points="{line}" fill="none" stroke="{_LINE}" stroke-width="2"/>',
        *(_point(x(number), y(figure.subject.p50), base, number, figure) for number, figure in points),
        f'<text x="{_CELL - 16}" y="{base + 28}" text-anchor="end">{html.escape(of)}</text>',
    ]
    return "".join(parts)


def _point(x: float, y: float, base: int, number: int, figure: Figure) -> str:
    colour = "#be123c" if figure.passed is False else _LINE
    value = _value(figure.subject.p50, figure.unit)
    return (
        f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3.5" fill="{colour}"/>'
        f'<text x="{x:.0f}" y="{y - 8:.0f}" text-anchor="middle">{value}</text>'
        f'<text x="{x:.0f}" y="{base + 14}" text-anchor="middle">{_number(number)}</text>'
    )


def _around(least: float, most: float) -> tuple[float, float]:
    """At least a factor of ten, so that noise looks like noise."""
    middle = math.sqrt(least * most)
    return min(least, middle / 3.2), max(most, middle * 3.2)


def _value(value: float, unit: Unit) -> str:
    if unit is Unit.BYTES:
        return f"{value / 2**20:.1f} MiB"
    if unit is Unit.BYTES_PER_SECOND:
        return f"{value / 1e6:.3g} MB/s" if value < 1e9 else f"{value / 1e9:.3g} GB/s"
    for scale, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value / 1e-9:.2g} ns"


def _number(number: int) -> str:
    for power, name in ((30, " GiB"), (20, " MiB"), (10, " KiB")):
        if number % (1 << power) == 0:
            return f"{number >> power}{name}"
    return str(number)
