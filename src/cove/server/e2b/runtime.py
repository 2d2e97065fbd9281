"""The runtime's half of E2B's protocol: route what the gateway has let pass, by the port that it is for."""

from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from cove.errors import CoveError, SandboxPaused, SandboxStopped
from cove.http import Answer, Handler, HttpError, Request, Response
from cove.runtime.sandbox import Sandbox
from cove.server.e2b import filesystem, process
from cove.server.e2b.code import CodeService
from cove.server.e2b.files import FileService
from cove.server.e2b.filesystem import FilesystemService
from cove.server.e2b.life import E2bLife
from cove.server.e2b.process import KEEPALIVE_EVENT, ProcessService
from cove.server.e2b.protocol import BELOW, CODE_PORT, CONTROL, JSON, Refusal, answer, not_running
from cove.server.e2b.rpc import KEEPALIVE, Message, Stream, Unary, answer_stream, answer_unary
from cove.server.e2b.watch import WatchService
from cove.server.error_response import describe_cove_error
from cove.tasks import Tasks
from cove.wire.connect import Code, ConnectError

_STREAM_INPUT: Final = f"{process.SERVICE}StreamInput"


class E2bRuntime:
    """Answers for one sandbox; owns its watchers and the timer of its end."""

    def __init__(self, sandbox: Sandbox, place: Path) -> None:
        self._sandbox = sandbox
        self._tasks = Tasks()
        self._life = E2bLife(sandbox, place, self._tasks)
        self._processes = ProcessService(sandbox)
        self._files = FileService(sandbox)
        self._code = CodeService(sandbox)
        entries = FilesystemService(sandbox)
        watching = WatchService(sandbox, entries, self._tasks)
        self._calls: Mapping[str, Unary] = {
            **{process.SERVICE + name: call for name, call in self._processes.calls.items()},
            **{filesystem.SERVICE + name: call for name, call in {**entries.calls, **watching.calls}.items()},
        }
        self._streams: Mapping[str, tuple[Stream, Message]] = {
            **{process.SERVICE + name: (call, KEEPALIVE_EVENT) for name, call in self._processes.streams.items()},
            **{filesystem.SERVICE + name: (call, KEEPALIVE) for name, call in watching.streams.items()},
        }

    async def __aenter__(self) -> "E2bRuntime":
        await self._life.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._life.close()
        await self._tasks.aclose()

    def before(self, handler: Handler) -> Handler:
        """Answer the protocol's paths, and leave all others to that handler."""

        def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
            return self(request) if request.path.startswith(BELOW) else handler(request)

        return handle

    async def __call__(self, request: Request) -> Answer:
        """Answer, whatever goes wrong."""
        id, port, path = split(request.path)
        if id != self._sandbox.id:
            return not_running(id)
        if port == CONTROL:
            try:
                return await self._life.answer(request, path[1:])
            except CoveError as error:
                return describe_cove_error(error)
        try:
            await self._life.wake()
            return await (self._code.answer(request, path) if port == str(CODE_PORT) else self._inside(request, path))
        except (SandboxPaused, SandboxStopped):
            return not_running(id)
        except Refusal as refusal:
            answered = refusal.response()
        except (HttpError, CoveError) as error:
            answered = Refusal.of(error).response()
        await request.discard()
        return answered

    async def _inside(self, request: Request, path: str) -> Response:
        if path in self._streams:
            _check_post(request)
            call, keepalive = self._streams[path]
            return await answer_stream(call, request, keepalive)
        if path in self._calls:
            _check_post(request)
            return await answer_unary(self._calls[path], request)
        if path == _STREAM_INPUT:
            _check_post(request)
            request.may_be_silent = True
            return await self._processes.stream_input(request)
        if path == "/files":
            return await self._files.answer(request)
        if request.method == "GET":
            match path:
                case "/health":
                    return Response(204)
                case "/metrics":
                    return answer(await self._life.measure())
                case "/envs":
                    return answer(self._sandbox.spec.env)
        if path.startswith((process.SERVICE, filesystem.SERVICE)):
            error = ConnectError(Code.UNIMPLEMENTED, f"there is no {path} here")
            return Response(error.status, JSON, error.encode())
        raise Refusal(404, f"there is nothing at {path}")


def split(path: str) -> tuple[str, str, str]:
    """Split a path of the gateway's into the sandbox's id, the port, and the path there."""
    id, _, rest = path.removeprefix(BELOW).partition("/")
    port, slash, below = rest.partition("/")
    return id, port, slash + below


def _check_post(request: Request) -> None:
    if request.method != "POST":
        raise Refusal(405, f"calls are made by POST, not {request.method}")
