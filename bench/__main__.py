"""python -m bench [names…] [--json FILE] [--svg FILE] [--quick]."""

import argparse
import importlib
import sys
import time
from pathlib import Path

from bench.harness import Figure, Plan, Skipped
from bench.loops import LOOPS, run_in_loop
from bench.machine import machine_facts
from bench.report import print_report, write_json
from bench.scale_chart import draw
from cove.errors import CoveError

SUBJECTS = {
    "cli": "bench.cli",
    "start": "bench.start",
    "exec": "bench.exec",
    "output": "bench.output",
    "many": "bench.many",
    "sequence": "bench.sequence",
    "process": "bench.process",
    "session": "bench.session",
    "files": "bench.files",
    "terminal": "bench.terminal",
    "code": "bench.code",
    "state": "bench.state",
    "http": "bench.http",
    "server": "bench.server",
    "preview": "bench.preview",
    "network": "bench.network",
    "state_export": "bench.state_export",
    "images": "bench.images",
    "fleet": "bench.fleet",
    "cluster": "bench.cluster",
    "journal": "bench.journal",
    "fairness": "bench.fairness",
    "bombs": "bench.bombs",
    "console": "bench.console",
    "scale": "bench.scale",
}


def main() -> int:
    options = _parse()
    figures: list[Figure] = []
    remarks: list[str] = []
    facts = machine_facts(options.loop)
    for name in options.names or SUBJECTS:
        began = time.perf_counter()
        _measure(name, Plan(options.quick), options.loop, figures, remarks)
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    print_report(facts, figures, remarks)
    if options.json:
        write_json(options.json, facts, figures, remarks)
    if options.svg:
        options.svg.write_text(draw(figures))
    is_missed = any(figure.passed is False for figure in figures)
    return int(options.check and (is_missed or any("failed" in remark for remark in remarks)))


def _measure(name: str, plan: Plan, loop: str, figures: list[Figure], remarks: list[str]) -> None:
    subject = importlib.import_module(SUBJECTS[name])
    try:
        figures += run_in_loop(loop, subject.run(plan))
    except Skipped as reason:
        remarks.append(f"{name} skipped: {reason}")
    except CoveError as error:
        remarks.append(f"{name} failed: {error!r}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Cove beside its floors.")
    parser.add_argument("names", nargs="*", choices=[*SUBJECTS, []], metavar="name", help=", ".join(SUBJECTS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw how cost grows, as `scale` measures it")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, smaller amounts")
    parser.add_argument("--loop", choices=LOOPS, default="asyncio", help="the event loop that Cove is embedded in")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
