"""Run attempts one by one, each in a process of its own, and report what became of each.

An attempt is a function that gets facts about the host and returns what it reached; one that fails with an OSError or
with Blocked was stopped. An attempt must do no harm where it succeeds: as the control it runs without any isolation.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SECONDS = 10
OPEN, BLOCKED, BROKEN = "open", "blocked", "broken"

Facts = Mapping[str, str]
Try = Callable[[Facts], str]


class Blocked(Exception):
    """The attempt was stopped; the message says by what."""


@dataclass(frozen=True)
class Probe:
    """One attempt, and what it would mean if it succeeded."""

    area: str
    name: str
    what: str
    attempt: Try


PROBES: dict[str, Probe] = {}

_library = ctypes.CDLL(None, use_errno=True)


def probe(area: str, what: str) -> Callable[[Try], Try]:
    """Enter the function under its own name."""

    def enter(attempt: Try) -> Try:
        add(area, attempt.__name__, what, attempt)
        return attempt

    return enter


def add(area: str, name: str, what: str, attempt: Try) -> None:
    """Enter an attempt that is made from data."""
    PROBES[name] = Probe(area, name, what, attempt)


def call_library(name: str, *arguments: object) -> None:
    """Call a function of the C library, with the OSError that it reports."""
    if getattr(_library, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def run_all(facts: Facts) -> None:
    """Print one JSON object for each probe of the areas that are asked for, in order."""
    areas = facts["areas"].split(",")
    for each in PROBES.values():
        if each.area not in areas:
            continue
        verdict, why = _run(each, facts)
        line = {"area": each.area, "name": each.name, "what": each.what, "verdict": verdict, "why": why}
        print(json.dumps(line), flush=True)


def _run(each: Probe, facts: Facts) -> tuple[str, str]:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        _attempt(each, facts, write)
    os.close(write)
    said = _read(read)
    os.close(read)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if said:
        verdict, _, why = said.partition(" ")
        return verdict, why
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return BROKEN, f"the attempt was ended by signal {number}" if number else "the attempt said nothing"


def _read(descriptor: int) -> str:
    readable, _, _ = select.select([descriptor], [], [], SECONDS)
    return os.read(descriptor, 4096).decode("utf-8", "replace") if readable else ""


def _attempt(each: Probe, facts: Facts, write: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        said = f"{OPEN} {each.attempt(facts)}"
    except (OSError, Blocked) as error:
        said = f"{BLOCKED} {error}"
    except Exception as error:  # noqa: BLE001  # a broken attempt is told, and must not end the others
        said = f"{BROKEN} {type(error).__name__}: {error}"
    os.write(write, said.encode()[:4000])
    os._exit(0)


def main() -> None:
    """Run the attempts. The facts come as one JSON object on the standard input."""
    run_all(json.load(sys.stdin))
