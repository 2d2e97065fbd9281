"""The bare machine, without isolation and without a library: what is left when everything is taken away."""

import asyncio
import os
import pty
import subprocess
from collections.abc import Sequence

from bench import pipes
from bench.beside.contender import ECHO, STREAM_BYTES, Contender, Work
from bench.resident_loop import ResidentLoop
from bench.shell import run_shell, run_shell_captured


class Unit(Contender):
    """Nothing."""

    def __init__(self) -> None:
        self._loops: list[ResidentLoop] = []
        self._programs: list[subprocess.Popen[bytes]] = []

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        for loop in self._loops:
            loop.__exit__(None, None, None)
        for program in self._programs:
            program.kill()
            program.wait()

    async def first(self) -> None:
        assert run_shell_captured("echo hi") == b"hi\n"

    async def exec(self) -> None:
        run_shell("true")

    async def sessions(self, count: int) -> Sequence[Work]:
        made = [ResidentLoop().__enter__() for _ in range(count)]
        self._loops += made
        return [lambda loop=loop: _now(loop) for loop in made]  # type: ignore[misc]

    async def timed_session(self) -> Work:
        loop = ResidentLoop().__enter__()
        self._loops.append(loop)

        async def command() -> None:
            assert loop.run(b"echo 1", timeout=10)[1] == b"1\n"

        return command

    async def stream(self) -> None:
        assert pipes.read_blocking(["head", "-c", str(STREAM_BYTES), "/dev/zero"]) == STREAM_BYTES

    async def keys(self) -> Work:
        master, slave = pty.openpty()
        self._programs.append(subprocess.Popen(ECHO, stdin=slave, stdout=slave, stderr=slave, start_new_session=True))
        os.close(slave)
        assert os.read(master, 100) == b"R"

        async def key() -> None:
            os.write(master, b"k")
            assert os.read(master, 100) == b"k"

        return key


async def _now(loop: ResidentLoop) -> None:
    assert loop.run(b"echo 1")[1] == b"1\n"
    await asyncio.sleep(0)
