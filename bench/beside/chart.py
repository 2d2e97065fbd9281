"""The comparison as an SVG: for every figure a row of bars on a logarithmic scale."""

import html
import math
from collections.abc import Mapping, Sequence

_WIDTH, _LABEL, _BAR, _GAP, _ROW = 860, 170, 12, 3, 26
_COLOURS = ("#0f766e", "#b45309", "#7c3aed", "#be123c", "#2563eb", "#94a3b8")

NOTHING = "none"
# Of what is kept where nothing runs between two calls.
_LEAST_BYTES = 100_000

Figure = tuple[str, str, str, bool]


def draw(measured: Mapping[str, Mapping[str, float]], figures: Sequence[Figure]) -> str:
    """All figures, one below the other; a shorter bar is always better."""
    names = list(measured)
    colours = dict(zip(names, _COLOURS, strict=True))
    parts, y = [_legend(names, colours)], 50
    for key, label, unit, less_is_better in figures:
        values = {name: measured[name][key] for name in names if show(measured[name].get(key, 0), unit) != NOTHING}
        part, y = _figure(label, unit, less_is_better, values, colours, y)
        parts.append(part)
    style = "text{font:12px system-ui,sans-serif;fill:#334155} .name{font-weight:600}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img">'
        f"<title>Cove beside its alternatives</title><style>{style}</style>"
        f'<rect width="{_WIDTH}" height="{y}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _legend(names: Sequence[str], colours: Mapping[str, str]) -> str:
    parts, x = [], _LABEL
    for name in names:
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{colours[name]}"/>')
        parts.append(f'<text x="{x + 17}" y="24">{html.escape(name)}</text>')
        x += 112
    note = f'<text x="{_LABEL}" y="42">logarithmic; shorter is better</text>'
    return "".join(parts) + note


def _figure(
    label: str,
    unit: str,
    less_is_better: bool,
    values: Mapping[str, float],
    colours: Mapping[str, str],
    y: int,
) -> tuple[str, int]:
    parts = [f'<text class="name" x="10" y="{y + 11}">{html.escape(label)}</text>']
    costs = {name: value if less_is_better else 1 / value for name, value in values.items()}
    least = min(costs.values())
    most = max(*costs.values(), least * 10)
    for name, cost in costs.items():
        share = 0.06 + 0.94 * math.log(cost / least) / math.log(most / least)
        width = share * (_WIDTH - _LABEL - 110)
        parts.append(f'<rect x="{_LABEL}" y="{y}" width="{width:.0f}" height="{_BAR}" fill="{colours[name]}"/>')
        parts.append(f'<text x="{_LABEL + width + 6:.0f}" y="{y + 10}">{show(values[name], unit)}</text>')
        y += _BAR + _GAP
    return "".join(parts), y + _ROW - _BAR


def show(value: float, unit: str) -> str:
    """A value as people write it."""
    match unit:
        case _ if value <= 0:
            return NOTHING
        case "s":
            return f"{value * 1000:.2f} ms"
        case "B/s":
            return f"{value / 1e6:.0f} MB/s"
        case "B":
            return f"{value / 2**20:.1f} MiB" if value > _LEAST_BYTES else NOTHING
        case _:
            return f"{value:.0f} {unit}"
