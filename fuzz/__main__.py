"""The command line: fuzz one target, some or all, or replay an input."""

import argparse
import os
import signal
import sys
from pathlib import Path

from fuzz.run import end_all, has_engine, run_all
from fuzz.target import load, names


def main() -> int:
    """Return 1 when a property was broken."""
    signal.signal(signal.SIGTERM, end_all)
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("name", nargs="?", help="a target; all of them without one")
    parser.add_argument("inputs", nargs="*", type=Path, help="files to replay, one after the other")
    parser.add_argument("--seconds", type=int, default=600, help="how long each target runs")
    parser.add_argument("--seed", type=int, default=0, help="0 chooses one")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many run at a time")
    parser.add_argument("--list", action="store_true", help="say which targets there are")
    chosen = parser.parse_args()
    if chosen.list:
        for name in names():
            print(f"{name:<16} {load(name).what}")
        return 0
    if chosen.name is not None and chosen.name not in names():
        parser.error(f"there is no target {chosen.name}: {', '.join(names())}")
    if chosen.inputs:
        return _replay(chosen.name, chosen.inputs)
    if not has_engine():
        print("fuzzing needs atheris, which is not installed here: pip install atheris", file=sys.stderr)
        return 2
    return 0 if run_all([chosen.name] if chosen.name else names(), chosen.seconds, chosen.seed, chosen.jobs) else 1


def _replay(name: str, inputs: list[Path]) -> int:
    """Check single inputs; the first that breaks a property raises what it broke."""
    target = load(name)
    for path in inputs:
        target.check_in_time(path.read_bytes())
        print(f"{path}: every property of {name} held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
