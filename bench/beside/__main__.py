"""python -m bench.beside [--rounds N] [--json FILE] [--svg FILE]."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.beside.chart import NOTHING, draw, show
from bench.machine import machine_facts

ROOT = Path(__file__).parent.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cove-bench-rivals"
PACKAGES = ("swe-rex", "llm-sandbox", "openai-agents", "ipykernel", "jupyter_client")

# Module, what it is called, whether it needs the packages above.
CONTENDERS = (
    ("cove_embedded", "Cove", False),
    ("swe_rex", "swe-rex", True),
    ("llm_sandbox_bubblewrap", "llm-sandbox", True),
    ("openai_agents_local", "openai-agents", True),
    ("jupyter_kernel", "jupyter", True),
    ("bare", "bare machine", False),
)
# Key, what it is, unit, whether less is better.
FIGURES = (
    ("create", "create to first result", "s", True),
    ("exec", "exec true", "s", True),
    ("session", "session exec", "s", True),
    ("sessions", "50 sessions at once", "/s", False),
    ("stream", "50 MB of output", "B/s", False),
    ("key", "key and its echo", "s", True),
    ("cell", "code cell 1 + 1", "s", True),
    ("memory", "memory of one", "B", True),
)

_MOST_SECONDS = 180

Measured = dict[str, dict[str, float]]


def main() -> None:
    options = _parse()
    rivals = _rivals_python()
    rounds: list[Measured] = []
    for number in range(options.rounds):
        found: Measured = {}
        for module, name, is_rival in CONTENDERS:
            print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr)
            found[name] = _run(rivals if is_rival else sys.executable, module)
        rounds.append(found)
    middle = _middle(rounds)
    facts = machine_facts("asyncio")
    _print(middle)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "rounds": rounds, "median": middle}, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(draw(middle, FIGURES))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description="Cove beside its alternatives.")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the middle of the rounds to FILE")
    return parser.parse_args()


def _rivals_python() -> str:
    """An environment of their own, made once: their dependencies are not ours."""
    python = CACHE / "bin" / "python"
    if not (CACHE / "ready").exists():
        print("installing " + ", ".join(PACKAGES), file=sys.stderr)
        venv.create(CACHE, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        (CACHE / "ready").touch()
    return str(python)


def _run(python: str, module: str) -> dict[str, float]:
    command = [python, "-m", "bench.beside.contender", module]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_MOST_SECONDS)
    if done.returncode != 0:
        print(f"{module} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return {}
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _middle(rounds: list[Measured]) -> Measured:
    middle: Measured = {}
    for _, name, _ in CONTENDERS:
        series = [found[name] for found in rounds]
        keys = {key for found in series for key in found}
        middle[name] = {key: statistics.median([found[key] for found in series if key in found]) for key in keys}
    return middle


def _print(middle: Measured) -> None:
    table = Table(title="Cove beside its alternatives; in brackets: how many times better Cove is")
    table.add_column("")
    for _, name, _ in CONTENDERS:
        table.add_column(name, justify="right")
    for key, label, unit, less_is_better in FIGURES:
        ours = middle["Cove"].get(key)
        cells = [_cell(middle[name].get(key), ours, unit, less_is_better) for _, name, _ in CONTENDERS]
        table.add_row(label, *cells)
    Console(width=140).print(table)


def _cell(value: float | None, ours: float | None, unit: str, less_is_better: bool) -> str:
    if value is None:
        return "-"
    text = show(value, unit)
    if ours is None or value == ours or text == NOTHING:
        return text
    ratio = value / ours if less_is_better else ours / value
    return f"{text} ({ratio:.2g} x)" if ratio < 10 else f"{text} ({ratio:.0f} x)"


if __name__ == "__main__":
    main()
