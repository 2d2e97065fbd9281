"""Kill a program, or a process of a server, at any step: before the n-th change that it makes outside its memory.

Such a change is a name made, moved or removed, a process started, a packet with descriptors, or a word on a stream:
what a program does to disks, namespaces and other processes goes through one of these. `program_text` is for programs
of a test; a server's processes are armed by `crashing_runtimes` when they are forked, and `Death` says which of them
dies.
"""

import asyncio
import functools
import importlib
import inspect
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from support.programs import program, read_line

TESTS = Path(__file__).parent.parent
_WORD = "write"
_CHANGES = ("rename", "mkdir", "unlink", "rmdir", "link", "symlink")
_ARM_RUNTIMES = """
import os

def arm():
    from support.crash import arm_changes
    arm_changes(trigger=os.environ["COVE_CRASH"])

os.register_at_fork(after_in_child=arm)
"""


@dataclass(frozen=True)
class Death:
    """What is written into a trigger: the step, and the process that dies there.

    `name` is that of the process; `pid` the one that is meant, or that is not, if there is a minus before it. With
    `kind`, only changes by the function of that name are counted: words on a stream are, if they are asked for.
    """

    step: int
    name: str = ""
    pid: int = 0
    kind: str = ""

    @property
    def is_mine(self) -> bool:
        return self._has_name and (self.pid in (0, os.getpid()) or (self.pid < 0 and -self.pid != os.getpid()))

    def counts(self, kind: str) -> bool:
        return self.kind == kind if self.kind else kind != _WORD

    @property
    def _has_name(self) -> bool:
        return not self.name or Path("/proc/self/comm").read_text().strip() == self.name

    def write(self, trigger: Path) -> None:
        """Let it happen from now on."""
        trigger.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, trigger: str) -> "Death | None":
        """None when it is not there, not written yet, or another user asks."""
        with suppress(OSError, ValueError), open(trigger) as file:
            return cls(**json.load(file))
        return None


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm_step(step: str, moment: str) -> None:
    """Die before or after the first call of a function, which is named by its module and its path there."""
    module, path = step.split()
    owner: object = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    function = getattr(owner, name)

    async def awaited(*args: object, **named: object) -> object:
        if moment == "before":
            die()
        result = await function(*args, **named)
        die()
        return result

    def called(*args: object, **named: object) -> object:
        if moment == "before":
            die()
        result = function(*args, **named)
        die()
        return result

    setattr(owner, name, functools.wraps(function)(awaited if inspect.iscoroutinefunction(function) else called))


def arm_changes(last: int = 0, trigger: str | None = None) -> Callable[[], int]:
    """Die before that change; returns a function that counts those there were. 0 is none.

    With a trigger, the file of this name says who dies at which one, and changes count as soon as it is there.
    """
    guard, seen = threading.Lock(), 0

    def count(kind: str) -> None:
        nonlocal seen
        death = Death(last) if trigger is None else Death.read(trigger)
        if death is None or not death.is_mine or not death.counts(kind):
            return
        with guard:
            seen += 1
            if seen == death.step:
                if trigger is not None:
                    os.remove(trigger)  # one death is enough
                die()

    for owner, names in (
        (os, _CHANGES),
        (socket.socket, ("sendmsg",)),
        (subprocess.Popen, ("__init__",)),
        (asyncio.StreamWriter, (_WORD,)),
    ):
        for name in names:
            setattr(owner, name, _counted(getattr(owner, name), functools.partial(count, name)))
    return lambda: seen


def _counted(function: Callable[..., object], count: Callable[[], None]) -> Callable[..., object]:
    @functools.wraps(function)
    def call(*args: object, **named: object) -> object:
        count()
        return function(*args, **named)

    return call


def program_text(body: str) -> str:
    """A program that can `from support.crash import ...`."""
    return f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{body}"


def run_to_its_death(text: str, home: Path, seconds: float = 60.0) -> None:
    """Run a program that prints `ready`, reads a line, and is then killed by itself."""
    with program(program_text(text), home) as victim:
        assert read_line(victim) == "ready"
        assert victim.stdin is not None
        victim.stdin.write("\n")
        victim.stdin.flush()
        assert victim.wait(seconds) == -signal.SIGKILL, "the step was not reached"


@contextmanager
def crashing_runtimes(directory: Path) -> Iterator[Path]:
    """Let processes of servers that are started meanwhile die at the change that a file says.

    Gives the path of that file, which nobody has written yet: `Death.write`.
    """
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(_ARM_RUNTIMES)
    trigger = directory / "trigger"
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "COVE_CRASH")}
    paths = [str(directory), str(TESTS), *filter(None, [before["PYTHONPATH"]])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "COVE_CRASH": str(trigger)}
    try:
        yield trigger
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
