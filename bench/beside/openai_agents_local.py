"""OpenAI Agents SDK, its unix-local sandbox: no isolation on Linux."""

from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient, UnixLocalSandboxClientOptions

from bench.beside.contender import ECHO, STREAM_BYTES, Contender, Work


class Unit(Contender):
    """A session of its client."""

    async def open(self) -> None:
        self._client = UnixLocalSandboxClient()
        self._session = await self._client.create(options=UnixLocalSandboxClientOptions())
        await self._session.start()

    async def close(self) -> None:
        await self._session.pty_terminate_all()
        await self._client.delete(self._session)

    async def first(self) -> None:
        assert (await self._session.exec("echo hi")).stdout == b"hi\n"

    async def exec(self) -> None:
        assert (await self._session.exec("true")).exit_code == 0

    async def stream(self) -> None:
        result = await self._session.exec(f"head -c {STREAM_BYTES} /dev/zero")
        assert len(result.stdout) == STREAM_BYTES

    async def keys(self) -> Work:
        started = await self._session.pty_exec_start(*ECHO, shell=False, tty=True, yield_time_s=0.5)

        async def key() -> None:
            update = await self._session.pty_write_stdin(session_id=started.process_id, chars="k", yield_time_s=0.001)
            assert b"k" in update.output

        return key
