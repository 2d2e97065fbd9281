"""What tests ask about the executors of Python contexts."""

import pytest

from cove import AsyncSandbox
from cove.local.state import default_home
from cove.runtime.interpreters import find_python_environment

needs_python = pytest.mark.skipif(
    find_python_environment(default_home()) is None,
    reason="the environment for Python contexts is not there: run `cove setup`",
)

# Prints the fork servers, then the executors: both lead a session, and an executor's parent is a fork server's fork.
_LIST = r"""
import os
parents, leaders = {}, set()
for name in filter(str.isdigit, os.listdir('/proc')):
    try:
        words = open(f'/proc/{name}/cmdline', 'rb').read()
        fields = open(f'/proc/{name}/stat').read().rpartition(')')[2].split()
    except OSError:
        continue
    if b'executor/server' + b'.py' in words and fields[0] != 'Z':
        parents[int(name)] = int(fields[1])
        if fields[3] == name:
            leaders.add(int(name))
print([pid for pid in leaders if parents[pid] not in parents])
print(sorted(pid for pid in leaders if parents[pid] in parents))
"""


async def _list(sandbox: AsyncSandbox) -> list[str]:
    return (await sandbox.exec(["/usr/bin/python3", "-I", "-S", "-c", _LIST])).check().stdout.splitlines()


async def fork_servers(sandbox: AsyncSandbox) -> list[int]:
    """The warm Pythons inside."""
    return [int(pid) for pid in (await _list(sandbox))[0].strip("[]").split(",") if pid]


async def executors(sandbox: AsyncSandbox) -> list[int]:
    """The processes of Python contexts inside, and of clean executors that wait."""
    return [int(pid) for pid in (await _list(sandbox))[1].strip("[]").split(",") if pid]
