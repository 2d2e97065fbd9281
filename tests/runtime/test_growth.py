"""Nothing grows from call to call."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.anyio

PROGRAM = """
import asyncio, json, os, sys, threading
sys.path.insert(0, sys.argv[2])
from support.leaks import descriptors, processes_below
from cove import AsyncSandbox

def measure():
    memory = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return [len(descriptors()), threading.active_count(), len(processes_below(os.getpid())), memory]

async def run(sandbox, count):
    lost = 0
    for number in range(count):
        result = await sandbox.exec(f"echo $RANDOM {number}")
        lost += not result.stdout.endswith(f" {number}\\n")
    return lost

async def main():
    async with AsyncSandbox.create() as sandbox:
        await run(sandbox, 300)
        before = measure()
        lost = await run(sandbox, int(sys.argv[1]))
        print(json.dumps([lost, before, measure()]))

asyncio.run(main())
"""


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_calls_one_after_the_other_lose_nothing_and_grow_nothing(count: int) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(count), str(Path(__file__).parent.parent)]
    answer = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, check=True)
    lost, before, after = json.loads(answer.stdout)
    assert lost == 0
    descriptors, threads, processes, memory = (new - old for new, old in zip(after, before, strict=True))
    assert (descriptors, threads, processes) == (0, 0, 0)
    assert memory < 4 << 20
