"""Cove, embedded."""

from collections.abc import Sequence

from bench.beside.contender import ECHO, OVERRUN, STREAM_BYTES, Contender, Work
from cove import AsyncSandbox
from cove.model import Outcome, Output


class Unit(Contender):
    """A sandbox."""

    is_sandbox = True
    is_resident = True

    async def open(self) -> None:
        self._sandbox = await self.make()

    async def make(self) -> AsyncSandbox:
        return await AsyncSandbox.create()

    async def close(self) -> None:
        await self._sandbox.destroy()

    async def first(self) -> None:
        assert (await self._sandbox.exec("echo hi")).stdout == "hi\n"

    async def exec(self) -> None:
        assert (await self._sandbox.exec("true")).ok

    async def sessions(self, count: int) -> Sequence[Work]:
        sessions = [await self._sandbox.create_session() for _ in range(count)]
        return [lambda session=session: session.exec("echo 1") for session in sessions]  # type: ignore[misc]

    async def timed_session(self) -> Work:
        session = await self._sandbox.create_session()

        async def command() -> None:
            assert (await session.exec("echo 1", timeout=10)).stdout == "1\n"

        return command

    async def overrun(self) -> Work:
        session = await self._sandbox.create_session()

        async def command() -> None:
            assert (await session.exec("sleep 100", timeout=OVERRUN)).outcome is Outcome.TIMED_OUT
            assert (await session.exec("echo 1", timeout=10)).stdout == "1\n"

        return command

    async def stream(self) -> None:
        result = await self._sandbox.exec(f"head -c {STREAM_BYTES} /dev/zero", max_output=STREAM_BYTES + 1)
        assert len(result.stdout_bytes) == STREAM_BYTES

    async def keys(self) -> Work:
        terminal = await self._sandbox.terminal(shell=ECHO)
        connection = terminal.connect()
        await connection.open()
        events = connection.events()
        while not isinstance(event := await anext(events), Output) or event.data != b"R":
            pass

        async def key() -> None:
            await connection.write(b"k")
            while not isinstance(event := await anext(events), Output) or event.data != b"k":
                pass

        return key

    async def cells(self) -> Work:
        context = await self._sandbox.create_code_context()

        async def cell() -> None:
            assert (await context.run("1 + 1")).text == "2"

        return cell
