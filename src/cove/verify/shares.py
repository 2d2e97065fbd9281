"""Attempts at denial of service: exhaust what all sandboxes share. Others and the host must still get some."""

import ctypes
import os
import re
import socket
from collections.abc import Callable

from cove import AsyncSandbox
from cove.verify.inside.harness import Blocked
from cove.verify.outside import Facts, NothingToSee, outside_probe

AREA = "shares"
_SECONDS = 60

# Takes one after the other until it is refused, or has as many as no single sandbox should get; holds them.
_TAKE = """
import ctypes, os, resource, signal, socket, sys
most, library, held, given = int(sys.argv[1]), ctypes.CDLL(None), [], 0
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
null = os.open('/dev/null', os.O_RDONLY)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
def demand(answer):
    if answer < 0: raise OSError('refused')
def terminal(): held.append(os.openpty())
def inotify(): demand(library.inotify_init())
def descriptor():
    if given % 2024 == 0: held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    socket.send_fds(held[-1][0], [b'x'], [null] * 253)
def waiting_signal(): demand(library.sigqueue(os.getpid(), signal.SIGRTMIN, 0))
def file(): os.close(os.open('/dev/shm/.cove-verify-%d' % given, os.O_CREAT | os.O_WRONLY))
try:
    while given < most:
        {take}()
        given += {step}
    print('all', given, flush=True)
except OSError:
    print('refused', given, flush=True)
sys.stdin.read()
"""


async def _share(
    sandbox: AsyncSandbox, neighbour: AsyncSandbox, take: str, most: int, host: Callable[[], object], step: int = 1
) -> str:
    """Measure what a single sandbox gets of it, and whether the neighbour and we still get some."""
    code = _TAKE.replace("{take}", take).replace("{step}", str(step))
    greedy = await sandbox.start_process(["/usr/bin/python3", "-I", "-c", code, str(most)], stdin=True)
    line = (await greedy.wait_for_log(re.compile(r"(all|refused) \d+"), timeout=_SECONDS)).line
    word, given = line.split()
    if word == "all":
        return f"{given} were given, and nothing says that this was all"
    if given == "0":
        raise NothingToSee("not even one was given")
    result = await neighbour.exec(["/usr/bin/python3", "-I", "-c", code, str(step)], timeout=_SECONDS)
    if not result.stdout.startswith("all"):
        return f"after {given} the neighbour gets none: {result.stdout or result.stderr}"
    try:
        host()
    except OSError as error:
        return f"after {given} the host gets none: {error}"
    raise Blocked(f"{given} were given; the neighbour and the host still have theirs")


def _take_terminal() -> None:
    for descriptor in os.openpty():
        os.close(descriptor)


def _take_inotify() -> None:
    descriptor = ctypes.CDLL(None).inotify_init()
    if descriptor < 0:
        raise OSError("inotify_init was refused")
    os.close(descriptor)


def _send_descriptor() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [0])


@outside_probe(AREA, "one sandbox can take all terminals", is_own_control=True)
async def take_all_terminals(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return await _share(sandbox, neighbour, "terminal", 1000, _take_terminal)


@outside_probe(AREA, "one sandbox can take all instances of inotify", is_own_control=True)
async def take_all_of_inotify(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return await _share(sandbox, neighbour, "inotify", 5000, _take_inotify)


@outside_probe(
    AREA, "one sandbox can have so many descriptors on their way that nobody can pass one", is_own_control=True
)
async def take_all_descriptors_on_their_way(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    """Code in the neighbour shares the count with all of a plain user's: what works there is what is ours."""
    code = _TAKE.replace("{take}", "descriptor").replace("{step}", "253")
    greedy = await sandbox.start_process(["/usr/bin/python3", "-I", "-c", code, str(3 << 20)], stdin=True)
    line = (await greedy.wait_for_log(re.compile(r"(all|refused) \d+"), timeout=_SECONDS)).line
    if line.startswith("all"):
        return f"{line.split()[1]} are on their way"
    await neighbour.files.write("large", b"x" * (1 << 20))
    await neighbour.files.read("large")
    await neighbour.terminal()
    async with AsyncSandbox.create() as another:
        await another.exec("true")
    _send_descriptor()
    raise Blocked(f"{line.split()[1]} are on their way; sandboxes are used and made as before")


@outside_probe(AREA, "one sandbox can have so many signals waiting that no other gets one", is_own_control=True)
async def take_all_waiting_signals(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return await _share(sandbox, neighbour, "waiting_signal", 1 << 20, lambda: None)


@outside_probe(AREA, "the kernel's memory can be used up by empty files in /dev/shm", is_own_control=True)
async def fill_memory_with_empty_files(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return await _share(sandbox, neighbour, "file", 50_000, lambda: None)
