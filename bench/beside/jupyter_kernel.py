"""ipykernel behind jupyter_client: no isolation."""

from jupyter_client.manager import start_new_async_kernel

from bench.beside.contender import Contender, Work


class Unit(Contender):
    """A kernel."""

    is_resident = True

    async def open(self) -> None:
        self._manager, self._client = await start_new_async_kernel(kernel_name="python3")

    async def close(self) -> None:
        self._client.stop_channels()
        await self._manager.shutdown_kernel(now=True)

    async def first(self) -> None:
        await self._run("print('hi')")

    async def cells(self) -> Work:
        return lambda: self._run("1 + 1")

    async def _run(self, code: str) -> None:
        reply = await self._client.execute_interactive(code, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok"
