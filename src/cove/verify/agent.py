"""Attempts on the agent: to read it, to end it, to speak in its name."""

import asyncio
import subprocess

from cove import AsyncSandbox
from cove.errors import CoveError
from cove.runtime.threads import in_thread
from cove.verify.inside.harness import Blocked
from cove.verify.outside import Facts, NothingToSee, outside_probe

AREA = "agent"

# The agent is the topmost of our parents that is an agent: on a host without isolation there may be others.
_FIND = """
import ctypes, os, signal, sys
def is_agent(pid):
    return b'init.pyc' in open(f'/proc/{pid}/cmdline', 'rb').read()
def parent(pid):
    return int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])
pid = os.getppid()
while parent(pid) and is_agent(parent(pid)):
    pid = parent(pid)
if not is_agent(pid):
    sys.exit('no agent')
"""
_READ = _FIND + "open(f'/proc/{pid}/mem', 'rb')\n"
_ENVIRONMENT = _FIND + "open(f'/proc/{pid}/environ', 'rb').read()\n"
_STEAL = (
    _FIND
    + """
call = ctypes.CDLL(None, use_errno=True).syscall
if call(438, os.pidfd_open(pid), 3, 0) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
"""
)
_END = _FIND + "os.kill(pid, signal.SIGKILL)\n"
_STOP = _FIND + "os.kill(pid, signal.SIGSTOP)\n"


# Succeeds when a descriptor of its own leads to the file with that device and inode.
_LOOK = """
import os, sys
for number in range(1024):
    try:
        found = os.fstat(number)
    except OSError:
        continue
    if f'{found.st_dev}:{found.st_ino}' == sys.argv[1]:
        sys.exit(0)
sys.exit(1)
"""


async def _run(sandbox: AsyncSandbox, code: str, reached: str) -> str:
    result = await sandbox.exec(["/usr/bin/python3", "-I", "-c", code], timeout=20)
    if not result.ok:
        raise Blocked(result.stderr.strip().splitlines()[-1] if result.stderr else str(result.outcome))
    return reached


@outside_probe(AREA, "the agent's memory can be opened")
async def read_the_agents_memory(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return await _run(sandbox, _READ, "it was opened")


@outside_probe(AREA, "the agent's environment can be read")
async def read_the_agents_environment(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return await _run(sandbox, _ENVIRONMENT, "it was read")


@outside_probe(AREA, "the agent's control socket can be taken, to speak in its name")
async def steal_the_agents_socket(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return await _run(sandbox, _STEAL, "it was taken")


@outside_probe(AREA, "the agent can be ended")
async def end_the_agent(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await sandbox.exec(["/usr/bin/python3", "-I", "-c", _END], timeout=20)
    return await _is_gone(sandbox)


@outside_probe(AREA, "the agent can be stopped")
async def stop_the_agent(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await sandbox.exec(["/usr/bin/python3", "-I", "-c", _STOP], timeout=5)
    return await _is_gone(sandbox)


@outside_probe(AREA, "descriptors of the program outside are inherited", is_own_control=True)
async def inherit_descriptors(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    """A program that is started without care has the canary open: it was left inheritable on purpose."""
    look = ["/usr/bin/python3", "-I", "-c", _LOOK, facts["canary_inode"]]
    control = await in_thread(subprocess.run, look, close_fds=False, check=False)
    if control.returncode:
        raise NothingToSee("the canary is not inherited even without care")
    if not (await sandbox.exec(look)).ok:
        raise Blocked("none leads to the canary")
    return "the canary is open inside"


async def _is_gone(sandbox: AsyncSandbox) -> str:
    """Ask for something that only the agent itself can give."""
    try:
        async with asyncio.timeout(3):
            await sandbox.files.exists("/tmp")
    except TimeoutError:
        return "it does not answer"
    except CoveError as error:
        return f"it is lost: {error}"
    raise Blocked("it answers")
