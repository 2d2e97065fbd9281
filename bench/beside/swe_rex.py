"""SWE-ReX, its local runtime: no isolation; shells driven through a pseudo-terminal."""

from collections.abc import Sequence
from itertools import count as numbers

from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

from bench.beside.contender import STREAM_BYTES, Contender, Work

_names = numbers()


class Unit(Contender):
    """A runtime."""

    async def open(self) -> None:
        self._runtime = LocalRuntime()

    async def close(self) -> None:
        await self._runtime.close()

    async def first(self) -> None:
        response = await self._runtime.execute(Command(command="echo hi", shell=True))
        assert response.stdout == "hi\n"

    async def exec(self) -> None:
        response = await self._runtime.execute(Command(command="true", shell=True))
        assert response.exit_code == 0

    async def sessions(self, count: int) -> Sequence[Work]:
        names = [f"session-{next(_names)}" for _ in range(count)]
        for name in names:
            await self._runtime.create_session(CreateBashSessionRequest(session=name))
        return [
            lambda name=name: self._runtime.run_in_session(BashAction(command="echo 1", session=name))  # type: ignore[misc]
            for name in names
        ]

    async def stream(self) -> None:
        response = await self._runtime.execute(Command(command=f"head -c {STREAM_BYTES} /dev/zero", shell=True))
        assert len(response.stdout) == STREAM_BYTES
