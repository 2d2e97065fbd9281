"""Attempts on the agent: to read it, to end it, to speak in its name."""

import asyncio
import subprocess

from cove import AsyncSandbox
from cove.errors import CoveError
from cove.local.threads import in_thread
from cove.tasks import together
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
# Stops every agent process but PID 1 and its own launcher; with an argument, again and again.
_STOP_LAUNCHERS = """
import os, signal, sys
spared = {1, os.getpid(), os.getppid()}
while True:
    stopped = 0
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
        try:
            if pid not in spared and 'init.pyc' in open(f'/proc/{pid}/cmdline').read():
                os.kill(pid, signal.SIGSTOP)
                stopped += 1
        except OSError:
            continue
    print('stopped', stopped, flush=True)
    if not sys.argv[1:]:
        break
"""
# Tells each process that it can look into, other than itself and its parent, until it is ended.
_WATCH = """
import os, sys
told = {os.getpid(), os.getppid()}
print('watching', flush=True)
while True:
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
        try:
            if pid not in told:
                open(f'/proc/{pid}/mem', 'rb').close()
                told.add(pid)
                print('opened', open(f'/proc/{pid}/cmdline').read().replace(chr(0), ' ')[:200], flush=True)
        except OSError:
            continue
"""
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


@outside_probe(AREA, "what starts commands can be stopped for good", is_own_control=True)
async def stop_the_launchers(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await together(sandbox.exec("true") for _ in range(4))
    if not (await _stop_launchers(sandbox)).rpartition(" ")[2].strip("0"):
        raise NothingToSee("there was none to stop")
    for each in (sandbox, neighbour):
        if (failure := await _first_failure(each)) is not None:
            return failure
    raise Blocked("others take their place")


async def _stop_launchers(sandbox: AsyncSandbox, *arguments: str) -> str:
    stopper = await sandbox.start_process(["/usr/bin/python3", "-I", "-c", _STOP_LAUNCHERS, *arguments])
    return (await stopper.wait_for_log("stopped", timeout=20)).line


async def _first_failure(sandbox: AsyncSandbox) -> str | None:
    try:
        async with asyncio.timeout(20):
            session = await sandbox.create_session()
            await session.exec("true")
            await sandbox.files.list(".", recursive=True)
            result = await sandbox.exec("true", timeout=10)
    except (TimeoutError, CoveError) as error:
        return f"a call failed: {error or 'it did not return'}"
    return None if result.ok else f"a command ended: {result.outcome}"


@outside_probe(AREA, "stopping what starts commands, all the time, keeps a call for ever", is_own_control=True)
async def stop_launchers_all_the_time(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await _stop_launchers(sandbox, "again")
    try:
        async with asyncio.timeout(10):
            await sandbox.exec("sleep 100", timeout=1)
    except TimeoutError:
        return "a call with a timeout of one second took ten"
    except CoveError as error:
        if (failure := await _first_failure(neighbour)) is None:
            raise Blocked(f"the call returned: {error}") from None
        return failure
    if (failure := await _first_failure(neighbour)) is not None:
        return failure
    raise Blocked("the call returned, and the neighbour is not disturbed")


@outside_probe(AREA, "a helper that enters the sandbox, to change its mounts, can be looked into", is_own_control=True)
async def look_into_a_helper(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    """Watch for processes while a snapshot is made, which needs one inside the mount namespace."""
    watcher = await sandbox.start_process(["/usr/bin/python3", "-I", "-c", _WATCH])
    try:
        await watcher.wait_for_log("watching", timeout=20)
        await sandbox.start_process(["sleep", "1000"])
        await watcher.wait_for_log("opened sleep 1000", timeout=20)
        for _ in range(3):
            await (await sandbox.snapshot()).delete()
        await watcher.kill("KILL")
        opened = (await watcher.output()).stdout.splitlines()
    except CoveError as error:
        raise NothingToSee(str(error)) from None
    if others := [line for line in opened if line not in ("watching", "opened sleep 1000 ")]:
        return "; ".join(others)
    raise Blocked("none was seen")


@outside_probe(AREA, "descriptors of the program outside are inherited", is_own_control=True)
async def inherit_descriptors(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    """Start a program without care: it has the canary open: it was left inheritable on purpose."""
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
