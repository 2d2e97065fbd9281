"""Run one measurement in a fresh interpreter, where nothing else has used memory or descriptors."""

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path

from bench.loops import run_in_loop

Value = float | int | str | None


def run_fresh(module: str, function: str, *arguments: int | str, loop: str) -> dict[str, Value]:
    """Call an async function of a module of `bench` in a new process; it answers with a flat dictionary."""
    command = [sys.executable, "-m", "bench.fresh", loop, module, function, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parent.parent)
    answer: dict[str, Value] = json.loads(done.stdout)
    return answer


async def run_fresh_beside(module: str, function: str, *arguments: int | str) -> dict[str, Value]:
    """The same from a running event loop, with a loop of the same kind."""
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    return await asyncio.to_thread(run_fresh, module, function, *arguments, loop=loop)


def main() -> None:
    loop, module, function, arguments = sys.argv[1:]
    work = getattr(importlib.import_module(module), function)
    json.dump(run_in_loop(loop, work(*json.loads(arguments))), sys.stdout)


if __name__ == "__main__":
    main()
