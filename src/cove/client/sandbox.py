"""Client of a sandbox."""

import builtins
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import cast

from cove import api
from cove.client.calls import Calls
from cove.client.code_context import CodeContext
from cove.client.command import environment, exec_request, start_request, words
from cove.client.files import Files
from cove.client.git import Git
from cove.client.ports import Ports
from cove.client.process import Process, remove_process
from cove.client.session import Session
from cove.client.terminal import Terminal
from cove.client.transport import Transport, fill
from cove.core.command import check_timeout
from cove.errors import SandboxNotFound
from cove.model import CodeContextInfo, CodeEvent, ExecResult, Execution, SandboxInfo, SessionInfo, TerminalInfo, Usage
from cove.wire import operations, requests
from cove.wire.coding import decode_json
from cove.wire.replies import CodeContextReply, Count, ExecReply, ProcessReply, SessionReply, TerminalReply


class Sandbox(api.AsyncSandbox):
    """Holds nothing but its id and a share in the connections to its server."""

    def __init__(self, transport: Transport, id: str) -> None:
        self.id = id
        self._transport = transport
        self._calls = Calls(transport, id)
        self._is_held = True
        transport.acquire()
        self.files = Files(self._calls)
        self.git = Git(self._calls)
        self.ports = Ports(self._calls)

    async def detach(self) -> None:
        if self._is_held:
            self._is_held = False
            await self._transport.release()

    async def info(self) -> SandboxInfo:
        data = await self._transport.call(operations.INFO, fill(operations.INFO, self.id))
        return decode_json(data, SandboxInfo)

    async def destroy(self) -> None:
        try:
            await self._transport.call(operations.DESTROY, fill(operations.DESTROY, self.id))
        except SandboxNotFound:
            pass  # destroyed before
        finally:
            await self.detach()

    async def restart(self) -> None:
        await self._transport.call(operations.RESTART, fill(operations.RESTART, self.id))

    async def usage(self) -> Usage:
        return await self._calls.get(operations.USAGE, Usage)

    async def set_env(self, env: Mapping[str, str | None]) -> None:
        await self._calls.do(operations.SET_ENV, request=requests.SetEnv(env=environment(env) or {}))

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
        return (await self._calls.get(operations.EXEC, ExecReply, request=request)).result()

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
        return Process(
            self._calls,
            await self._calls.make(operations.START_PROCESS, ProcessReply, request=request, remove=remove),
        )

    async def get_process(self, id: str) -> Process:
        return Process(self._calls, await self._calls.get(operations.GET_PROCESS, ProcessReply, id))

    async def list_processes(self) -> builtins.list[api.Process]:
        replies = await self._calls.get(operations.LIST_PROCESSES, list[ProcessReply])
        return [Process(self._calls, reply) for reply in replies]

    async def kill_process(self, id: str, signal: int | str = "TERM") -> None:
        await self._calls.do(operations.KILL_PROCESS, id, request=requests.Kill(signal=signal))

    async def kill_all_processes(self, signal: int | str = "TERM") -> int:
        request = requests.Kill(signal=signal)
        return (await self._calls.get(operations.KILL_ALL_PROCESSES, Count, request=request)).count

    async def cleanup_processes(self) -> int:
        return (await self._calls.get(operations.CLEANUP_PROCESSES, Count)).count

    async def create_session(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
    ) -> Session:
        request = requests.CreateSession(id=id, cwd=cwd, env=environment(env), timeout=check_timeout(timeout))
        reply = await self._calls.make(
            operations.CREATE_SESSION, SessionReply, request=request, remove=self._remove_session
        )
        return Session(self._calls, reply.id)

    async def _remove_session(self, made: SessionReply) -> None:
        await Session(self._calls, made.id).delete()

    async def get_session(self, id: str) -> Session:
        return Session(self._calls, (await self._calls.get(operations.GET_SESSION, SessionReply, id)).id)

    async def list_sessions(self) -> builtins.list[SessionInfo]:
        return await self._calls.get(operations.LIST_SESSIONS, list[SessionInfo])

    async def delete_session(self, id: str) -> None:
        await self._calls.do(operations.DELETE_SESSION, id)

    async def terminal(
        self,
        *,
        id: str | None = None,
        shell: str | Sequence[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        cols: int = 80,
        rows: int = 24,
    ) -> Terminal:
        request = requests.OpenTerminal(
            id=id,
            shell=None if shell is None else words(shell),
            cwd=cwd,
            env=environment(env),
            cols=cols,
            rows=rows,
        )
        # One with an id may have been there before, and others may use it.
        remove = self._remove_terminal if id is None else None
        reply = await self._calls.make(operations.TERMINAL, TerminalReply, request=request, remove=remove)
        return Terminal(self._calls, reply)

    async def _remove_terminal(self, made: TerminalReply) -> None:
        await Terminal(self._calls, made).destroy()

    async def get_terminal(self, id: str) -> Terminal:
        return Terminal(self._calls, await self._calls.get(operations.GET_TERMINAL, TerminalReply, id))

    async def list_terminals(self) -> builtins.list[TerminalInfo]:
        return await self._calls.get(operations.LIST_TERMINALS, list[TerminalInfo])

    async def create_code_context(
        self,
        language: str = "python",
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
    ) -> CodeContext:
        request = requests.CreateCodeContext(
            language=language,
            id=id,
            cwd=cwd,
            env=environment(env),
            timeout=check_timeout(timeout),
        )
        reply = await self._calls.make(
            operations.CREATE_CONTEXT, CodeContextReply, request=request, remove=self._remove_code_context
        )
        return CodeContext(self._calls, reply)

    async def _remove_code_context(self, made: CodeContextReply) -> None:
        await CodeContext(self._calls, made).delete()

    async def get_code_context(self, id: str) -> CodeContext:
        return CodeContext(self._calls, await self._calls.get(operations.GET_CONTEXT, CodeContextReply, id))

    async def list_code_contexts(self) -> builtins.list[CodeContextInfo]:
        return await self._calls.get(operations.LIST_CONTEXTS, list[CodeContextInfo])

    async def delete_code_context(self, id: str) -> None:
        await self._calls.do(operations.DELETE_CONTEXT, id)

    async def run_code(
        self,
        code: str,
        *,
        context: api.CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> Execution:
        request = _run_request(code, context, language, timeout)
        return await self._calls.get(operations.RUN_CODE, Execution, request=request)

    async def stream_code(
        self,
        code: str,
        *,
        context: api.CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> AsyncGenerator[CodeEvent, None]:
        request = _run_request(code, context, language, timeout)
        async with aclosing(self._calls.events(operations.STREAM_CODE, request=request)) as events:
            async for event in events:
                yield cast(CodeEvent, event)


def _run_request(
    code: str, context: api.CodeContext | str | None, language: str, timeout: float | None
) -> requests.RunCode:
    return requests.RunCode(
        code=code,
        context=context.id if isinstance(context, api.CodeContext) else context,
        language=language,
        timeout=check_timeout(timeout),
    )
