"""Sessions that come and go leave nothing behind."""

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

def measure(sandbox):
    memory = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
    files = sum(len(names) + len(folders) for _, folders, names in os.walk(sandbox._place.shell))
    counts = [len(descriptors()), threading.active_count(), len(processes_below(os.getpid()))]
    return [*counts, files, len(asyncio.all_tasks()), memory]

async def use(sandbox, number):
    session = await sandbox.create_session()
    result = await session.exec(f"x={number}; echo $x; sleep 100 &")
    wrong = result.stdout != f"{number}\\n"
    await session.set_env({"A": "1"})
    if number % 10 == 0:
        await session.start_process("sleep 100", keep=False)
        await session.exec("while :; do :; done", timeout=0.005)
    await session.delete()
    return wrong

async def run(sandbox, count, lasting):
    wrong = 0
    for number in range(0, count, 5):
        wrong += sum(await asyncio.gather(*(use(sandbox, number + at) for at in range(5))))
    await asyncio.gather(*asyncio.all_tasks() - lasting)
    return wrong

async def main():
    async with AsyncSandbox.create() as sandbox:
        lasting = asyncio.all_tasks()
        await run(sandbox, 50, lasting)
        before = measure(sandbox)
        wrong = await run(sandbox, int(sys.argv[1]), lasting)
        print(json.dumps([wrong, before, measure(sandbox)]))

asyncio.run(main())
"""


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
async def test_sessions_made_and_deleted_grow_nothing(count: int) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(count), str(Path(__file__).parent.parent)]
    answer = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, check=True)
    wrong, before, after = json.loads(answer.stdout)
    assert wrong == 0
    descriptors, threads, processes, files, tasks, memory = (new - old for new, old in zip(after, before, strict=True))
    assert (files, tasks) == (0, 0)
    # Launchers are kept for reuse, and threads: up to eight.
    assert abs(threads) <= 8
    assert abs(processes) <= 8
    assert abs(descriptors) <= 8
    assert memory < 8 << 20
