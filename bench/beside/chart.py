"""The comparison as an SVG: for every figure a row of bars on a logarithmic scale."""

import html
import math
from collections.abc import Mapping, Sequence

from bench.beside.groups import Figure, Group
from bench.beside.summary import Measured, Spread

_WIDTH, _LABEL, _BAR, _GAP, _ROW = 900, 230, 12, 3, 26
_COLOURS = ("#0f766e", "#b45309", "#7c3aed", "#be123c", "#2563eb", "#475569", "#94a3b8")

NOTHING = "none"
# Of what is kept where nothing runs between two calls.
_LEAST_BYTES = 100_000
_STYLE = "text{font:12px system-ui,sans-serif;fill:#334155}.name{font-weight:600}.title{font-size:14px;font-weight:700}"


def draw(groups: Sequence[Group], measured: Measured) -> str:
    """All groups, one below the other; a shorter bar is always better, and a thin line leads from p50 to p95."""
    parts = [f'<text x="{_LABEL}" y="20">p50, with a line to p95; logarithmic; shorter is better</text>']
    y = 44
    for group in groups:
        if found := measured.get(group.key):
            part, y = _group(group, found, y)
            parts.append(part)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img">'
        f"<title>Cove beside its alternatives</title><style>{_STYLE}</style>"
        f'<rect width="{_WIDTH}" height="{y}" rx="8" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _group(group: Group, found: Mapping[str, Mapping[str, Spread]], y: int) -> tuple[str, int]:
    names = [column.name for column in group.columns]
    colours = dict(zip(names, _COLOURS, strict=False))
    parts = [f'<text class="title" x="10" y="{y}">{html.escape(group.title)}</text>', _legend(colours, y + 12)]
    y += 40
    for figure in group.figures:
        spreads = {name: found[name][figure.key] for name in names if figure.key in found.get(name, {})}
        shown = {name: spread for name, spread in spreads.items() if show(spread["p50"], figure.unit) != NOTHING}
        if shown:
            part, y = _figure(figure, shown, colours, y)
            parts.append(part)
    return "".join(parts), y + 14


def _legend(colours: Mapping[str, str], y: int) -> str:
    parts, x = [], 10.0
    for name, colour in colours.items():
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17:.0f}" y="{y + 10}">{html.escape(name)}</text>')
        x += 40 + 7 * len(name)
    return "".join(parts)


def _figure(figure: Figure, spreads: Mapping[str, Spread], colours: Mapping[str, str], y: int) -> tuple[str, int]:
    parts = [f'<text class="name" x="10" y="{y + 11}">{html.escape(figure.label)}</text>']
    costs = {
        name: [_cost(spread.get(end, spread["p50"]), figure) for end in ("p50", "p95")]
        for name, spread in spreads.items()
    }
    least = min(cost for ends in costs.values() for cost in ends)
    most = max(least * 10, *(cost for ends in costs.values() for cost in ends))

    def reach(cost: float) -> float:
        share = 0.06 + 0.94 * math.log(cost / least) / math.log(most / least)
        return share * (_WIDTH - _LABEL - 110)

    for name, (middle, bad) in costs.items():
        end, far = reach(middle), reach(max(bad, middle))
        colour = colours[name]
        parts.append(f'<rect x="{_LABEL}" y="{y}" width="{end:.0f}" height="{_BAR}" fill="{colour}"/>')
        parts.append(f'<rect x="{_LABEL + end:.0f}" y="{y + 5}" width="{far - end:.0f}" height="2" fill="{colour}"/>')
        text = show(spreads[name]["p50"], figure.unit)
        parts.append(f'<text x="{_LABEL + far + 6:.0f}" y="{y + 10}">{text}</text>')
        y += _BAR + _GAP
    return "".join(parts), y + _ROW - _BAR


def _cost(value: float, figure: Figure) -> float:
    return value if figure.less_is_better else 1 / value


def show(value: float, unit: str) -> str:
    """A value as people write it: three digits, or fewer."""
    match unit:
        case _ if value <= 0:
            return NOTHING
        case "s":
            return f"{_digits(value * 1000)} ms" if value < 1 else f"{_digits(value)} s"
        case "B/s":
            return f"{value / 1e6:.0f} MB/s"
        case "B":
            return f"{value / 2**20:.1f} MiB" if value > _LEAST_BYTES else NOTHING
        case _:
            return f"{_digits(value)} {unit}"


def _digits(value: float) -> str:
    decimals = max(0, min(2, 1 - math.floor(math.log10(value))))
    return f"{value:.{decimals}f}"
