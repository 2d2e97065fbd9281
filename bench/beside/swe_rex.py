"""SWE-ReX, its local runtime: no isolation; shells driven through a pseudo-terminal."""

from collections.abc import Sequence
from itertools import count as numbers

from swerex.exceptions import CommandTimeoutError
from swerex.runtime.abstract import BashAction, BashInterruptAction, Command, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

from bench.beside.contender import OVERRUN, STREAM_BYTES, Contender, Work

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
        names = [await self._session() for _ in range(count)]
        return [
            lambda name=name: self._runtime.run_in_session(BashAction(command="echo 1", session=name))  # type: ignore[misc]
            for name in names
        ]

    async def timed_session(self) -> Work:
        name = await self._session()

        async def command() -> None:
            done = await self._runtime.run_in_session(BashAction(command="echo 1", session=name, timeout=10))
            assert done.output.strip() == "1"

        return command

    async def overrun(self) -> Work:
        """After a timeout its users interrupt the session before they go on."""
        name = await self._session()

        async def command() -> None:
            try:
                await self._runtime.run_in_session(BashAction(command="sleep 100", session=name, timeout=OVERRUN))
            except CommandTimeoutError:
                await self._runtime.run_in_session(BashInterruptAction(session=name))
            done = await self._runtime.run_in_session(BashAction(command="echo 1", session=name, timeout=10))
            assert done.output.strip() == "1"

        return command

    async def _session(self) -> str:
        name = f"session-{next(_names)}"
        await self._runtime.create_session(CreateBashSessionRequest(session=name, startup_timeout=20))
        return name

    async def stream(self) -> None:
        response = await self._runtime.execute(Command(command=f"head -c {STREAM_BYTES} /dev/zero", shell=True))
        assert len(response.stdout) == STREAM_BYTES
