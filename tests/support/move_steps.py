"""Kill a worker at one step of a move: for servers that tests start, by a file in their state directory."""

import os
import signal
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Final

from cove.runtime.home import Home
from cove.server.cluster import arrivals, departures
from cove.server.cluster.arrivals import Arrivals
from cove.server.cluster.departures import Departures
from cove.server.cluster.fetching import Fetching
from cove.server.cluster.peer import PeerClient

_FILE: Final = "kill-at"
# What a server runs before it begins.
ARM: Final = (
    f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); import support.move_steps as s; s.arm(); "
)
# The name of each step: whose function, and whether its worker is killed before or after it.
_SOURCE: Final = {
    "left": (departures, "_depart", True),
    "packed": (PeerClient, "send", False),
    "answered": (Departures, "_finish", False),
    "settled": (departures, "_remove", False),
    "noted": (departures, "note_gone", True),
    "freed": (Home, "remove", False),
    "removed": (Home, "remove", True),
}
_TARGET: Final = {
    "fetched": (Fetching, "fetch_layers", False),
    "begun": (arrivals, "begin_in", True),
    "unpacked": (arrivals, "unpack", True),
    "written": (Arrivals, "_take_over", False),
    "claimed": (Arrivals, "_settle", False),
    "given": (arrivals, "give_id", True),
    "taken": (Arrivals, "_settle", True),
}
AT_SOURCE, AT_TARGET = tuple(_SOURCE), tuple(_TARGET)


def kill_at(home: Path, step: str) -> None:
    """Let the next worker of that state directory that comes to the step be killed there."""
    (home / _FILE).write_text(step)


def was_killed(home: Path) -> bool:
    """Return whether one was."""
    return not (home / _FILE).exists()


def arm() -> None:
    """Look for the file at every step."""
    for step, (owner, name, is_after) in {**_SOURCE, **_TARGET}.items():
        setattr(owner, name, _armed(getattr(owner, name), step, is_after))


def _armed(function: Callable[..., object], step: str, is_after: bool) -> Callable[..., object]:
    @wraps(function)
    def call(*args: object, **named: object) -> object:
        if not is_after:
            _look(step)
        result = function(*args, **named)
        if is_after:
            _look(step)
        return result

    return call


def _look(step: str) -> None:
    path = Path(os.environ["COVE_HOME"]) / _FILE
    if path.exists() and path.read_text() == step:
        path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
