"""The middle and the bad end of samples, over all rounds."""

import statistics
from collections.abc import Iterable, Mapping

from bench.beside.groups import GROUPS
from bench.beside.turns import Found

# By group, contender and figure: p50, and p95 where there are samples enough.
Spread = dict[str, float]
Measured = dict[str, dict[str, dict[str, Spread]]]

_LEAST_SAMPLES = 4
_RATES = {(group.key, figure.key) for group in GROUPS for figure in group.figures if not figure.less_is_better}


def pool(rounds: Iterable[Mapping[str, Found]]) -> dict[str, Found]:
    """The samples of all rounds together."""
    pooled: dict[str, Found] = {}
    for found in rounds:
        for group, names in found.items():
            for name, figures in names.items():
                for figure, samples in figures.items():
                    of_name = pooled.setdefault(group, {}).setdefault(name, {})
                    of_name[figure] = of_name.get(figure, []) + samples
    return pooled


def summarize(found: Mapping[str, Found]) -> Measured:
    """p50, and p95: the bad end, which of a rate is the low one."""
    return {
        group: {
            name: {figure: _spread(samples, (group, figure) in _RATES) for figure, samples in figures.items()}
            for name, figures in names.items()
        }
        for group, names in found.items()
    }


def _spread(samples: list[float], is_rate: bool) -> Spread:
    spread = {"p50": statistics.median(samples)}
    if len(samples) >= _LEAST_SAMPLES:
        ordered = sorted(samples, reverse=is_rate)
        spread["p95"] = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return spread
