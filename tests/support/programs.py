"""Programs that use Cove, started as users start them, so that tests can kill them and look from outside."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.inside import is_alive
from support.leaks import processes_below


@contextmanager
def program(text: str, home: Path) -> Iterator["subprocess.Popen[str]"]:
    """A running Python program with its own COVE_HOME; it prints on a pipe and may read its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COVE_HOME": str(home)},
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def run_program(text: str, home: Path) -> str:
    """Run a program to its end and give what it printed."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "COVE_HOME": str(home)},
    ).stdout.strip()


def wait_until_gone(pids: list[int], seconds: float = 20.0) -> list[int]:
    """Those that are still alive when the time is up: the kernel, not a child of ours, ends them."""
    until = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < until:
        processes_below(os.getpid())
        time.sleep(0.005)
    return [pid for pid in pids if is_alive(pid)]


def places(home: Path) -> list[str]:
    """The sandbox directories in that state directory."""
    return sorted(path.name for path in (home / "sandboxes").iterdir())


def mounts_below(home: Path) -> list[str]:
    """Where something is mounted below a directory."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(str(home))]
