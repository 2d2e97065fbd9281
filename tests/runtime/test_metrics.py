import asyncio
import os
import re
import subprocess
import sys

import pytest

from cove import AsyncSandbox, Limits
from cove.linux.cgroup import find_hierarchies
from cove.model import MemoryMeasure, SandboxStatus, Usage
from cove.runtime.cgroups import SandboxGroups, find_groups
from cove.runtime.usage import measure_processes
from cove.server.gateway.metrics import render_metrics

pytestmark = pytest.mark.anyio


def test_every_line_is_a_comment_or_a_sample() -> None:
    usages = {("", "a-1"): Usage(memory_bytes=5, cpu_seconds=0.5, pids=2), ("", "b"): Usage(memory_kills=1)}
    text = render_metrics([SandboxStatus.RUNNING, SandboxStatus.RUNNING, SandboxStatus.LOST], usages).decode()
    assert text.endswith("\n")
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+\{\w+="[\w-]+"\} [\d.]+', line), line
    assert 'cove_sandboxes{status="running"} 2\n' in text
    assert 'cove_sandboxes{status="stopped"} 0\n' in text
    assert 'cove_sandbox_memory_bytes{sandbox="a-1"} 5\n' in text
    assert 'cove_sandbox_memory_bytes{sandbox="b"}' not in text
    assert 'cove_sandbox_memory_kills_total{sandbox="b"} 1\n' in text


def test_two_owners_may_have_the_same_id() -> None:
    usages = {("", "a"): Usage(pids=1), ("team", "a"): Usage(pids=2)}
    text = render_metrics([], usages).decode()
    assert 'cove_sandbox_processes{sandbox="a"} 1\ncove_sandbox_processes{sandbox="a",owner="team"} 2\n' in text


async def test_another_process_measures_what_the_sandbox_itself_does() -> None:
    hierarchies = await asyncio.to_thread(find_hierarchies)
    if hierarchies.unified is None:
        pytest.skip("there are no control groups here")
    async with AsyncSandbox.create(limits=Limits(memory=256 << 20)) as sandbox:
        await sandbox.exec("for i in $(seq 20000); do :; done")
        await sandbox.start_process("sleep 1000")
        (key,) = re.findall(r"sandboxes/(\w+)/workspace", (await sandbox.exec("cat /proc/self/mountinfo")).stdout)
        itself = await sandbox.usage()
        groups = await asyncio.to_thread(find_groups, hierarchies, key)
        other = await asyncio.to_thread(measure_processes, groups, 0)
        assert other.pids is not None
        assert other.pids >= 2
        assert (other.memory_kills is None) == (itself.memory_kills is None)
        assert itself.cpu_seconds is not None
        assert other.cpu_seconds is not None
        assert other.cpu_seconds >= itself.cpu_seconds > 0


# Has four children that hold the same 64 MiB as it does, until its input ends.
SHARING = """
import os, sys
held = bytearray(os.urandom(64 << 20))
for _ in range(4):
    if not os.fork():
        sys.stdin.buffer.read()
        os._exit(0)
print("ready", flush=True)
sys.stdin.buffer.read()
for _ in range(4):
    os.wait()
"""


def test_without_a_control_group_memory_that_processes_share_counts_once() -> None:
    with subprocess.Popen([sys.executable, "-c", SHARING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        usage = measure_processes(SandboxGroups(None), parent.pid)
        parent.communicate()
    assert (usage.pids, usage.memory_measure) == (4, MemoryMeasure.PROCESSES)
    assert 40 << 20 < (usage.memory_bytes or 0) < 120 << 20


HOLDING = """
held = bytearray(b"x" * (64 << 20))
print("holds", flush=True)
input()
"""


async def test_usage_says_what_its_memory_is() -> None:
    async with AsyncSandbox.create(limits=Limits(memory=256 << 20)) as sandbox:
        is_counted = "memory" in (await sandbox.info()).limits_enforced and os.geteuid() == 0
        expected = MemoryMeasure.CGROUP if is_counted else MemoryMeasure.PROCESSES
        holding = await sandbox.start_process(["python3", "-c", HOLDING], stdin=True)
        await holding.wait_for_log("holds")
        usage = await sandbox.usage()
        assert usage.memory_measure is expected
        assert 64 << 20 <= (usage.memory_bytes or 0) <= 256 << 20
