"""Start of the command: what a user waits for before anything happens."""

import subprocess
import sys
from functools import partial
from pathlib import Path

from bench.harness import Figure, Plan, Unit, at_most, interleave, timed_blocking

_COVE = str(Path(sys.executable).with_name("cove"))


async def run(plan: Plan) -> list[Figure]:
    """`cove version` and `cove --help` against a bare interpreter."""
    version, help, floor = await interleave(
        [
            timed_blocking(partial(_run, _COVE, "version")),
            timed_blocking(partial(_run, _COVE, "--help")),
            timed_blocking(partial(_run, sys.executable, "-c", "pass")),
        ],
        repetitions=plan.times(60, 15),
        warm_up=3,
    )
    target = at_most(2.5)
    name = "python -c pass"
    return [
        Figure(name="cove version", unit=Unit.SECONDS, subject=version, floor=floor, floor_name=name, target=target),
        Figure(name="cove --help", unit=Unit.SECONDS, subject=help, floor=floor, floor_name=name),
    ]


def _run(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
