"""python -m soak [--minutes M] [--seed N] [--embedded | --server | --cluster] [--hands N] [--calm]."""

import argparse
import asyncio
import os
import random
import sys
from pathlib import Path

from cove.local.state import default_home
from soak.census import adopt_orphans, use_one_arena
from soak.history import History
from soak.run import Plan, Way, make_home, remove_home, run

_PARTS = {Way.EMBEDDED: 2, Way.SERVER: 2, Way.CLUSTER: 1}  # how the time is shared out


def main() -> int:
    """Run, report, and end with 1 if anything was not as it must be."""
    options = _parse()
    use_one_arena()
    adopt_orphans()
    os.environ.setdefault("COVE_PYTHON", str(default_home() / "python"))  # as `cove setup` has made it
    ways = [options.way] if options.way else list(Way)
    failures = 0
    for way in ways:
        part = _PARTS[way] / sum(_PARTS[each] for each in ways)
        plan = Plan(options.minutes * 60 * part, options.seed, way, options.hands, options.calm)
        failures += _run(plan, options.report)
    return int(failures > 0)


def _run(plan: Plan, report: Path | None) -> int:
    print(f"{plan.way}: {plan.seconds:.0f} s, seed {plan.seed}", file=sys.stderr, flush=True)
    history = History(plan.seed)
    home = make_home()
    os.environ["COVE_HOME"] = str(home)
    try:
        census = asyncio.run(run(plan, history, home))
    finally:
        remove_home(home)
    for name, count, size, rate in census.growth():
        print(f"{name}: {size:.1f} MiB, {rate:+.3f} MiB per minute over {count} rounds")
    print(f"{plan.way}: {history.counts.total()} calls: {dict(history.counts.most_common())}")
    print(f"{plan.way}: {len(history.failures)} failures", flush=True)
    if report is not None:
        with report.open("a") as file:
            file.write(
                "\n\n".join((f"{plan.way}, seed {plan.seed}: {len(history.failures)} failures", *history.failures, ""))
            )
    return len(history.failures)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m soak", description="Use sandboxes at random, with faults.")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long, all ways together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="to do the same again")
    parser.add_argument("--hands", type=int, default=4, help="how many use sandboxes at once")
    parser.add_argument("--calm", action="store_true", help="kill nothing of Cove, to see whether anything grows")
    parser.add_argument("--report", type=Path, metavar="FILE", help="append failures to FILE")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--embedded", dest="way", action="store_const", const=Way.EMBEDDED, help="in this program only")
    way.add_argument("--server", dest="way", action="store_const", const=Way.SERVER, help="on a server only")
    way.add_argument("--cluster", dest="way", action="store_const", const=Way.CLUSTER, help="on three nodes only")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
