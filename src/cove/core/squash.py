"""Choose which layers of a long chain are merged into one, and put that in their place."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

# A chain with more layers than this is shortened beside what goes on; one with more than this waits for it.
DEEP: Final = 30
TOO_DEEP: Final = 45
# What the kernel takes as the list of one overlay: fsconfig(2) has room for 255 characters.
MOST_LAYERS: Final = 80
# So many layers become one. What is written once is copied only a few times, however long a chain becomes.
_RUN: Final = 16
_MOST_MERGES: Final = 4


class Merge(msgspec.Struct, frozen=True, kw_only=True):
    """A run of layers, bottom first, and the one that shows the same; where it `is_bottom`, with nothing below it."""

    run: tuple[str, ...]
    into: str
    is_bottom: bool


def choose_run(sizes: Sequence[int], boundaries: Sequence[int]) -> range:
    """Choose neighbouring layers that are cheap to merge, none on both sides of a boundary; the result may be empty.

    `sizes` are those of all layers, bottom first. A boundary is the number of layers below it.
    """
    edges = sorted({0, *boundaries, len(sizes)})
    begin, end = max(pairwise(edges), key=lambda part: part[1] - part[0], default=(0, 0))
    length = min(_RUN, end - begin)
    if length < 2:
        return range(0)
    return min(
        (range(at, at + length) for at in range(begin, end - length + 1)),
        key=lambda run: sum(map(sizes.__getitem__, run)),
    )


def plan_merge(run: Sequence[str], *, is_bottom: bool) -> Merge:
    """Say what a run becomes. The layer has its name from that: whoever merges the same finds it."""
    name = hashlib.sha256("\n".join((str(is_bottom), *run)).encode()).hexdigest()[:31]
    return Merge(run=tuple(run), into=f"m{name}", is_bottom=is_bottom)


def shorten(layers: tuple[str, ...], merges: Sequence[Merge]) -> tuple[str, ...]:
    """Put merged layers in the place of the runs that they were made from."""
    for merge in merges:
        length = len(merge.run)
        for at in range(1 if merge.is_bottom else len(layers) - length + 1):
            if layers[at : at + length] == merge.run:
                layers = (*layers[:at], merge.into, *layers[at + length :])
                break
    return layers


def add_merge(merges: tuple[Merge, ...], merge: Merge) -> tuple[Merge, ...]:
    """Remember the last few of them."""
    return (*(each for each in merges if each != merge), merge)[-_MOST_MERGES:]
