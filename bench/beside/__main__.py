"""python -m bench.beside [--rounds N] [--only GROUP…] [--json FILE] [--svg FILE] [--documents]."""

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import cast

from bench.beside.chart import draw
from bench.beside.groups import GROUPS, Group
from bench.beside.summary import Measured, pool, summarize
from bench.beside.tables import markdown, print_tables, readme_table, replace_between
from bench.beside.turns import Found
from bench.machine import machine_facts

ROOT = Path(__file__).parent.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cove-bench-rivals"
PACKAGES = ("swe-rex", "llm-sandbox", "openai-agents", "ipykernel", "jupyter_client")

_MOST_SECONDS = 600


def main() -> None:
    options = _parse()
    groups = [group for group in GROUPS if not options.only or group.key in options.only]
    rounds = [_round(groups, f"round {number + 1} of {options.rounds}") for number in range(options.rounds)]
    facts = machine_facts("asyncio")
    measured = summarize(pool(rounds))
    print_tables(groups, measured)
    if options.json:
        document = {"machine": facts, "rounds": [summarize(found) for found in rounds], "all": measured}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(draw(groups, measured))
    if options.documents:
        _write_documents(measured)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description="Cove beside its alternatives.")
    keys = [group.key for group in GROUPS]
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--only", nargs="+", choices=keys, metavar="GROUP", help="of " + ", ".join(keys))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the middle of the rounds to FILE")
    parser.add_argument("--documents", action="store_true", help="write the tables of README and docs/benchmarks.md")
    return parser.parse_args()


def _write_documents(measured: Measured) -> None:
    for path, table in (
        (ROOT / "docs" / "benchmarks.md", markdown(GROUPS, measured)),
        (ROOT / "README.md", readme_table(measured)),
    ):
        path.write_text(replace_between(path.read_text(), table))


def _round(groups: list[Group], title: str) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for group in groups:
        of_group: Found = {}
        if group.module:
            print(f"{title}: {group.title}", file=sys.stderr)
            of_group = cast("Found", _run([sys.executable, "-m", f"bench.beside.{group.module}"]))
        for column in group.columns:
            if column.module:
                print(f"{title}: {column.name}", file=sys.stderr)
                python = _rivals_python() if column.is_rival else sys.executable
                samples = _run([python, "-m", "bench.beside.contender", column.module])
                of_group[column.name] = cast("dict[str, list[float]]", samples)
        found[group.key] = of_group
    return found


def _rivals_python() -> str:
    """An environment of their own, made once: their dependencies are not ours."""
    python = CACHE / "bin" / "python"
    if not (CACHE / "ready").exists():
        print("installing " + ", ".join(PACKAGES), file=sys.stderr)
        venv.create(CACHE, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        (CACHE / "ready").touch()
    return str(python)


def _run(command: list[str]) -> object:
    """What it prints last, or nothing and a word about why."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=_MOST_SECONDS)
    except subprocess.SubprocessError as error:
        words = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        print(f"{command[-1]} failed:\n{words[-2000:]}", file=sys.stderr)
        return {}
    sys.stderr.write(done.stderr if "skipped" in done.stderr else "")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
