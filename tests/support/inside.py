"""What tests ask about a sandbox, from inside and from outside."""

import os
from pathlib import Path

from cove import AsyncSandbox
from support.leaks import describe, processes_below

# Prints the pid and the command of every process inside, but the agent's own and this one's.
_LIST = r"""
import os
own = os.getpid()
for pid in sorted(int(name) for name in os.listdir('/proc') if name.isdigit()):
    try:
        words = open(f'/proc/{pid}/cmdline', 'rb').read().split(b'\0')
    except OSError:
        continue
    if pid != own and words[0] and b'/run/cove/agent' not in words and not any(b'init.pyc' in word for word in words):
        print(pid, b' '.join(words).decode(errors='replace').strip().replace('\n', ' '))
"""


async def commands_inside(sandbox: AsyncSandbox) -> list[str]:
    """The commands that run in the sandbox at this moment."""
    result = await sandbox.exec(["python3", "-I", "-S", "-c", _LIST])
    return [line.partition(" ")[2] for line in result.check().stdout.splitlines()]


async def pids_of_launchers(sandbox: AsyncSandbox) -> list[int]:
    """The launchers, as the sandbox sees them."""
    result = await sandbox.exec("for p in /proc/[0-9]*; do grep -qa init.pyc $p/cmdline && echo ${p#/proc/}; done")
    return [int(line) for line in result.stdout.split() if line != "1"]


def agents_outside() -> list[int]:
    """Every agent process (init and launchers) below this program, by the host's numbers."""
    return [pid for pid in processes_below(os.getpid()) if "init.pyc" in describe(pid) and "bwrap" not in describe(pid)]


def is_alive(pid: int) -> bool:
    """A zombie is dead when its other threads are: as long as one of them lives, its files are open."""
    try:
        is_zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not is_zombie or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def init_below(program: int) -> int:
    """The host's number of the one process below the program that is number 1 inside: proc(5), NSpid."""
    (found,) = inits_below(program)
    return found


def inits_below(program: int) -> list[int]:
    """Those of several sandboxes, oldest first."""
    return sorted(pid for pid in processes_below(program) if _number_inside(pid) == "1")


def _number_inside(pid: int) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return line.split()[-1]
    return ""
