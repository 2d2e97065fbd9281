"""What was done, so that a failure can be read and replayed."""

import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field

_MOST_STEPS = 4000
_SHOWN = 60


@dataclass
class History:
    """The last steps of all, and every failure with the steps before it."""

    seed: int
    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _steps: deque[tuple[float, str, int, str]] = field(default_factory=lambda: deque(maxlen=_MOST_STEPS))
    _began: float = field(default_factory=time.monotonic)

    def note(self, who: str, step: int, what: str) -> None:
        """Something is done, or was found."""
        self._steps.append((time.monotonic() - self._began, who, step, what))

    def fail(self, who: str, step: int, error: str) -> None:
        """Something that must be true was not: it is told at once."""
        place = who.partition("/")[0]
        before = [entry for entry in self._steps if entry[1].partition("/")[0] in (place, "all")]
        lines = [f"{at:9.3f} {name} step {number}: {what}" for at, name, number, what in before[-_SHOWN:]]
        failure = f"FAILURE in {who} at step {step}, seed {self.seed}: {error}\n  " + "\n  ".join(lines)
        self.failures.append(failure)
        print(failure, file=sys.stderr, flush=True)
