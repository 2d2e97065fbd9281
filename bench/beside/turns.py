"""Ways to do one thing, measured in turn by one program, so that noise hits all of them."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping

Way = Callable[[], Awaitable[object]]
Samples = list[float]
# By way, then by figure.
Found = dict[str, dict[str, Samples]]


async def in_turn(found: Found, figure: str, ways: Mapping[str, Way], repetitions: int, *, warm_up: int = 1) -> None:
    """Time each way as often as the others, after a turn that does not count; every other turn goes backwards."""
    for turn in range(-warm_up, repetitions):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            await ways[name]()
            took = time.perf_counter() - began
            if turn >= 0:
                found.setdefault(name, {}).setdefault(figure, []).append(took)


def print_found(found: Found) -> None:
    """Print what was measured as JSON, on one line."""
    print(json.dumps(found))
