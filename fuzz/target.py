"""Targets by name: what they check, what they begin with, and the inputs that are kept in the tree."""

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fuzz import targets

CORPUS = Path(__file__).parent / "corpus"
MOST_BYTES = 4096
# CPU time for one input, where every branch is counted: about three times what it takes otherwise.
MOST_SECONDS = 2.0


class TooSlow(AssertionError):
    """One input took more CPU time than any may."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parser with its properties; `check` raises for bytes that break one of them."""

    name: str
    what: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    most_bytes: int

    def check_in_time(self, data: bytes) -> None:
        """Check one input, and how long that took."""
        started = time.thread_time()
        self.check(data)
        if (taken := time.thread_time() - started) > MOST_SECONDS:
            raise TooSlow(f"{len(data)} bytes took {taken:.1f} s of CPU time")

    def kept(self) -> Iterator[tuple[str, bytes]]:
        """Give the inputs that are kept in the tree, each with its name."""
        for path in sorted((CORPUS / self.name).glob("*")):
            yield path.name, path.read_bytes()


def names() -> list[str]:
    """Return the names of all targets."""
    return sorted(module.name for module in pkgutil.iter_modules(targets.__path__))


def load(name: str) -> Target:
    """Import a target. Raises ModuleNotFoundError for a name that none has."""
    module = importlib.import_module(f"fuzz.targets.{name}")
    return Target(
        name=name,
        what=(module.__doc__ or "").partition("\n")[0],
        check=cast("Callable[[bytes], None]", module.check),
        seeds=cast("Callable[[], Iterable[bytes]]", module.seeds),
        most_bytes=cast("int", getattr(module, "MOST_BYTES", MOST_BYTES)),
    )
