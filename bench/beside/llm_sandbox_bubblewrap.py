"""llm-sandbox with its bubblewrap backend: a jail per command, and at most 8 MiB of output."""

import asyncio

from llm_sandbox import SandboxBackend, SandboxSession

from bench.beside.contender import Contender, Work


class Unit(Contender):
    """A session; all its calls block."""

    is_sandbox = True

    async def open(self) -> None:
        self._session = SandboxSession(backend=SandboxBackend.BUBBLEWRAP, lang="python")
        await asyncio.to_thread(self._session.open)

    async def close(self) -> None:
        await asyncio.to_thread(self._session.close)

    async def first(self) -> None:
        assert (await asyncio.to_thread(self._session.execute_command, "echo hi")).stdout == "hi\n"

    async def exec(self) -> None:
        assert self._session.execute_command("true").exit_code == 0

    async def cells(self) -> Work:
        async def cell() -> None:
            assert self._session.run("print(1 + 1)").stdout == "2\n"

        return cell
