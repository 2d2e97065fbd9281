"""Bubblewrap by itself: a jail per command, or a jail in which a bash waits; no library around it."""

import asyncio
import subprocess

from bench.beside.contender import Contender
from bench.jails import plain_jail

_WAITING = 'while read -r line; do eval "$line"; done'


class Unit(Contender):
    """A jail with a bash that reads commands."""

    is_sandbox = True
    is_resident = True

    async def open(self) -> None:
        command = [*plain_jail(), "bash", "-c", _WAITING]
        pipe = subprocess.PIPE
        self._jail = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)

    async def close(self) -> None:
        assert self._jail.stdin is not None
        self._jail.stdin.close()
        await self._jail.wait()

    async def first(self) -> None:
        assert self._jail.stdin is not None
        assert self._jail.stdout is not None
        self._jail.stdin.write(b"echo hi\n")
        assert await self._jail.stdout.readline() == b"hi\n"

    async def exec(self) -> None:
        subprocess.run([*plain_jail(), "bash", "-c", "true"], check=True)
