"""Freeze by signals: processes in a vfork(2), threads that outlive the first one, those that stood still before."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cove.runtime.cgroups import SandboxGroups
from cove.runtime.freeze import frozen
from cove.runtime.usage import processes_of

NO_GROUPS = SandboxGroups(tree=None)
VFORK = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
print("spawned", flush=True)
os.wait()
"""
THREAD = """
import ctypes, itertools, os, sys, threading
file = os.open(sys.argv[1], os.O_WRONLY)
def count():
    for n in itertools.count():
        os.pwrite(file, b"%020d" % n, 0)
threading.Thread(target=count).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@contextmanager
def jail(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program below another process, which stands for the first one of a jail."""
    command = ["/bin/sh", "-c", '/usr/bin/python3 -Sc "$@" & wait', "sh", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            for pid in [*processes_of(NO_GROUPS, process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def states(process: subprocess.Popen[str]) -> list[str]:
    return [state(pid) for pid in processes_of(NO_GROUPS, process.pid)]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def await_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_process_in_a_vfork_whose_child_stands_still_is_frozen(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with jail(VFORK, str(fifo)) as process:
        await_until(lambda: states(process) == ["D", "S"])
        with frozen(NO_GROUPS, process.pid):
            assert states(process) == ["D", "T"]
        await_until(lambda: states(process) == ["D", "S"])
        fifo.write_text("")
        assert process.stdout is not None
        assert process.stdout.readline() == "spawned\n"
        assert process.wait() == 0


def test_a_thread_that_outlives_the_first_one_is_frozen(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.touch()
    with jail(THREAD, str(counter)) as process:
        await_until(lambda: states(process) == ["Z"] and bool(counter.read_bytes()))
        with frozen(NO_GROUPS, process.pid):
            before = counter.read_bytes()
            for _ in range(200):
                assert counter.read_bytes() == before
        await_until(lambda: counter.read_bytes() > before)


def test_what_stood_still_before_stays_so(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with jail(VFORK, str(fifo)) as process:
        await_until(lambda: states(process) == ["D", "S"])
        child = processes_of(NO_GROUPS, process.pid)[1]
        os.kill(child, signal.SIGSTOP)
        await_until(lambda: state(child) == "T")
        with frozen(NO_GROUPS, process.pid):
            assert states(process) == ["D", "T"]
        assert state(child) == "T"
        os.kill(child, signal.SIGCONT)
        fifo.write_text("")
        assert process.wait() == 0
