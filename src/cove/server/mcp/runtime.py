"""The runtime's half of `/mcp`: one toolset for the sandbox, and the end of a sandbox whose session is over.

A sandbox that was made for a session has a label with its idle time. It ends when its session does: by DELETE, when the
request that made it began none, or when nobody has used it for that long. Its snapshots go with it.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING

from cove.errors import CoveError, SandboxNotFound
from cove.http import Answer, Body, Handler, Request, Response
from cove.http.deadline import Deadline
from cove.local.threads import in_thread
from cove.runtime.sandbox import Sandbox
from cove.server.mcp.protocol import BELOW, IDLE_LABEL, SESSION_HEADER, serves
from cove.tasks import Tasks
from cove.tools import Toolset

if TYPE_CHECKING:
    from cove.mcp.http import HttpEndpoint

_AT_ONCE = 0.001
# Seconds until a session in a named sandbox is forgotten that nobody uses; the sandbox stays.
_FORGOTTEN = 1800.0


class McpRuntime:
    """Answers for one sandbox what a gateway has let pass. The endpoint is made when it is first used."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._idle_seconds = _idle_seconds(sandbox)
        self._endpoint: HttpEndpoint | None = None
        self._opening = asyncio.Lock()
        self._requests = 0
        self._tasks = Tasks()
        self._idle = Deadline(self._end)

    async def __aenter__(self) -> "McpRuntime":
        self._wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._idle.close()
        await self._tasks.aclose()
        if self._endpoint is not None:
            await self._endpoint.close()

    def before(self, handler: Handler) -> Handler:
        """Answer the protocol's paths, and leave all others to that handler."""

        def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
            return self._answer(request) if serves(request.path) else handler(request)

        return handle

    async def _answer(self, request: Request) -> Answer:
        if request.path.startswith(BELOW) and request.path.removeprefix(BELOW) != self._sandbox.id:
            raise SandboxNotFound("the sandbox with this id is not here any more")
        self._begin()
        try:
            response = await (await self._open()).answer(request)
        except BaseException:
            self._finish(is_over=SESSION_HEADER not in request.headers)
            raise
        is_over = _ends_session(request, response)
        if isinstance(response.body, bytes):
            self._finish(is_over=is_over)
            return response
        return Response(response.status, response.headers, self._counted(response.body), response.ping)

    async def _counted(self, body: Body) -> Body:
        try:
            async with aclosing(body):
                async for data in body:
                    yield data
        finally:
            self._finish(is_over=False)

    async def _open(self) -> "HttpEndpoint":
        async with self._opening:
            if self._endpoint is None:
                endpoint_of = await in_thread(_load)  # it takes a while to import
                endpoint = endpoint_of(Toolset(self._sandbox), _FORGOTTEN if self._idle_seconds is None else None)
                await endpoint.open()
                self._endpoint = endpoint
            return self._endpoint

    def _begin(self) -> None:
        self._requests += 1
        self._idle.clear()

    def _finish(self, *, is_over: bool) -> None:
        self._requests -= 1
        if is_over and self._idle_seconds is not None:
            self._end()
        elif not self._requests:
            self._wait()

    def _wait(self) -> None:
        if self._idle_seconds is not None:
            self._idle.set(self._idle_seconds)

    def _end(self) -> None:
        if not self._tasks.closed:
            self._tasks.start(self._end_sandbox())

    async def _end_sandbox(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()
        with suppress(CoveError):  # it has ended by itself
            await self._sandbox.set_lifetime(_AT_ONCE)


def _load() -> "type[HttpEndpoint]":
    from cove.mcp.http import HttpEndpoint

    return HttpEndpoint


def _idle_seconds(sandbox: Sandbox) -> float | None:
    """Return how long it may be unused; None for a sandbox that belongs to no session."""
    try:
        return float(sandbox.spec.labels[IDLE_LABEL])
    except (KeyError, ValueError):
        return None


def _ends_session(request: Request, response: Response) -> bool:
    if request.method == "DELETE":
        return response.status < 300
    return SESSION_HEADER not in request.headers and response.status >= 400
