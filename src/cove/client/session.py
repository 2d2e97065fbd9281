"""Client of a session."""

from collections.abc import Mapping, Sequence
from functools import partial

from cove import api
from cove.client.calls import Calls
from cove.client.command import environment, exec_request, start_request
from cove.client.files import Files
from cove.client.process import Process, remove_process
from cove.errors import SessionNotFound
from cove.model import ExecResult
from cove.wire import operations, requests
from cove.wire.replies import Cwd, Env, ExecReply, ProcessReply


class Session(api.Session):
    """Holds nothing but its id."""

    def __init__(self, calls: Calls, id: str) -> None:
        self._calls = calls
        self.id = id
        self.files = Files(calls.of_session(id))

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        request = exec_request(command, cwd, env, timeout, stdin, max_output)
        return (await self._calls.get(operations.SESSION_EXEC, ExecReply, self.id, request=request)).result()

    async def start_process(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        keep: bool = True,
        lossless: bool = False,
    ) -> Process:
        request = start_request(command, id, cwd, env, timeout, stdin, keep, lossless)
        remove = partial(remove_process, self._calls)
        reply = await self._calls.make(
            operations.SESSION_START_PROCESS, ProcessReply, self.id, request=request, remove=remove
        )
        return Process(self._calls, reply)

    async def set_env(self, env: Mapping[str, str | None]) -> None:
        await self._calls.do(operations.SESSION_SET_ENV, self.id, request=requests.SetEnv(env=environment(env) or {}))

    async def cwd(self) -> str:
        return (await self._calls.get(operations.SESSION_CWD, Cwd, self.id)).cwd

    async def env(self) -> dict[str, str]:
        return (await self._calls.get(operations.SESSION_ENV, Env, self.id)).env

    async def delete(self) -> None:
        try:
            await self._calls.do(operations.DELETE_SESSION, self.id)
        except SessionNotFound:
            return  # deleted before
