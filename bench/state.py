"""State: copies of what lives, each beside the bare call of the kernel or the shell in the same run."""

import subprocess
import time
from collections.abc import Awaitable, Callable

from bench import state_files, state_life
from bench.harness import Figure, Plan, Skipped, Unit, at_most, interleave, timed_blocking
from cove import AsyncSandbox
from cove.api import CodeContext
from cove.local.state import default_home
from cove.runtime.interpreters import find_python_environment

_ARRAY_BYTES = 500_000_000
_LOAD = f"""
import os, time
import numpy, pandas
array = numpy.ones({_ARRAY_BYTES} // 8)
frame = pandas.DataFrame({{"a": range(1000)}})
def bare_fork():
    read, write = os.pipe()
    began = time.perf_counter()
    pid = os.fork()
    if not pid:
        os.write(write, b"x")
        os._exit(0)
    os.read(read, 1)
    seconds = time.perf_counter() - began
    os.waitpid(pid, 0); os.close(read); os.close(write)
    return seconds
"""
# 1500 functions and 2 MB of variables.
_BIG_STATE = """
for ((n = 0; n < 1500; n++)); do eval "f_$n() { echo one; if true; then echo $n; fi; }"; done
for ((n = 0; n < 200; n++)); do printf -v "v_$n" '%10000s' x; done
"""
_SMALL_STATE = "x=1; list=(a b c); f() { echo f; }; cd /tmp"


async def run(plan: Plan) -> list[Figure]:
    """All parts."""
    return [
        *await _context_fork(plan),
        *await _session_fork(plan),
        *await state_life.run(plan),
        *await state_files.run(plan),
    ]


async def _context_fork(plan: Plan) -> list[Figure]:
    """A living context with 500 MB in it: until the copy is ready, and until it has run a cell."""
    if find_python_environment(default_home()) is None:
        raise Skipped("the environment for Python contexts is not there: run `cove setup`")
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        if (loaded := await context.run(_LOAD)).error is not None:
            raise Skipped(f"numpy or pandas cannot be imported: {loaded.error.message}")
        ready, first, floor = await interleave(
            [_forked(context), _forked(context, "1 + 1"), lambda: _bare_fork(context)],
            repetitions=plan.times(60, 15),
            warm_up=3,
        )
    name = "context.fork with 500 MB"
    floor_name = "os.fork there, until it answers"
    return [
        Figure(
            name=f"{name}, {until}", unit=Unit.SECONDS, subject=subject, floor=floor, floor_name=floor_name, target=goal
        )
        for until, subject, goal in (("ready", ready, at_most(2.5)), ("first result", first, at_most(5.0)))
    ]


def _forked(context: CodeContext, code: str = "") -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        began = time.perf_counter()
        (copy,) = await context.fork()
        if code:
            await copy.run(code)
        seconds = time.perf_counter() - began
        await copy.delete()
        return seconds

    return sample


async def _bare_fork(context: CodeContext) -> float:
    return float((await context.run("bare_fork()")).text or "nan")


async def _session_fork(plan: Plan) -> list[Figure]:
    """A session with a small and with a large state, beside a subshell of a bash in the same state."""
    return [
        await _fork_session(plan, "small state", _SMALL_STATE),
        await _fork_session(plan, "1500 functions, 2 MB", _BIG_STATE),
    ]


async def _fork_session(plan: Plan, name: str, state: str) -> Figure:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        (await session.exec(state)).check()

        async def sample() -> float:
            # What is measured is a fork of a state that has just changed.
            await session.exec("changed=$RANDOM")
            began = time.perf_counter()
            copy = await session.fork()
            seconds = time.perf_counter() - began
            await copy.delete()
            return seconds

        with _Subshells(state) as shell:
            subject, floor = await interleave(
                [sample, timed_blocking(shell.fork)], repetitions=plan.times(40, 10), warm_up=2
            )
    return Figure(
        name=f"session.fork, {name}",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="( … ) & in a bash",
    )


class _Subshells:
    """A bash in that state that starts a subshell when it is told to, and says when it runs."""

    def __init__(self, state: str) -> None:
        loop = "while read -r; do ( echo ready ) & done"
        self._process = subprocess.Popen(
            ["bash", "-c", f"{state}\n{loop}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def __enter__(self) -> "_Subshells":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def fork(self) -> None:
        """Start one, and wait until it says so."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdout.read(len(b"ready\n"))
