import asyncio
import re

import pytest

from cove import AsyncSandbox, Limits
from cove.linux.cgroup import find_hierarchies
from cove.model import SandboxStatus, Usage
from cove.runtime.groups import find_groups
from cove.runtime.usage import measure_processes
from cove.server.gateway.metrics import render_metrics

pytestmark = pytest.mark.anyio


def test_every_line_is_a_comment_or_a_sample() -> None:
    usages = {"a-1": Usage(memory_bytes=5, cpu_seconds=0.5, pids=2), "b": Usage(memory_kills=1)}
    text = render_metrics([SandboxStatus.RUNNING, SandboxStatus.RUNNING, SandboxStatus.LOST], usages).decode()
    assert text.endswith("\n")
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+\{\w+="[\w-]+"\} [\d.]+', line), line
    assert 'cove_sandboxes{status="running"} 2\n' in text
    assert 'cove_sandboxes{status="stopped"} 0\n' in text
    assert 'cove_sandbox_memory_bytes{sandbox="a-1"} 5\n' in text
    assert 'cove_sandbox_memory_bytes{sandbox="b"}' not in text
    assert 'cove_sandbox_memory_kills_total{sandbox="b"} 1\n' in text


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
