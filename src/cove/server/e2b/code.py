"""The code interpreter: runs as lines of JSON, and contexts."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from cove.core.identifier import new_identifier
from cove.errors import (
    ContextAlreadyExists,
    ContextCrashed,
    ContextNotFound,
    CoveError,
    SandboxPaused,
    SandboxStopped,
    SessionAlreadyExists,
    SessionTerminated,
    UnsupportedLanguage,
    ValidationFailed,
)
from cove.http import Ping, Request, Response
from cove.model import CodeEvent, Display, Done, Failure, Outcome, Result, SessionStatus, Text
from cove.runtime.sandbox import Sandbox
from cove.server.e2b.notebook import BASH, BashNotebook, Notebook
from cove.server.e2b.protocol import HOME, MOST_BODY_BYTES, TEXT, answer, plain, resolve
from cove.wire.coding import unquote_text

T = TypeVar("T")

_LINES: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-cache"))
_PING: Final = Ping(b'{"type":"keepalive"}\n', 5.0)
_LANGUAGES: Final = ("python", "javascript", "typescript", BASH)
_SYNONYMS: Final[Mapping[str, str]] = {
    "js": "javascript",
    "ts": "typescript",
    "py": "python",
    "python3": "python",
    "sh": BASH,
    "shell": BASH,
}
_DEFAULT_LANGUAGE: Final = "python"
_FIELDS: Final[Mapping[str, str]] = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
}
_CHART: Final = "application/vnd.cove.chart+json"
_QUOTES: Final = ("'", '"')
_MOST_CONTEXTS: Final = 256


class _Execute(msgspec.Struct):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class _Create(msgspec.Struct):
    cwd: str | None = None
    language: str | None = None


class _Refused(Exception):
    """Errors here are plain text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = Response(status, TEXT, plain(text).encode())


@dataclass(slots=True, eq=False)
class _Context:
    """A context, and what is needed to make it anew; `runs` counts what clients have run. They take turns."""

    id: str
    language: str
    cwd: str
    code: Notebook | BashNotebook
    runs: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def describe(self) -> dict[str, str]:
        return {"id": self.id, "language": self.language, "cwd": self.cwd}


class CodeService:
    """The contexts of one sandbox; `_defaults` are those of languages, made when they are first used."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._contexts: dict[str, _Context] = {}
        self._defaults: dict[str, str] = {}
        self._making = asyncio.Lock()

    async def answer(self, request: Request, path: str) -> Response:
        """Answer, whatever goes wrong."""
        try:
            return await self._route(request, path)
        except _Refused as refused:
            return refused.response
        except ContextNotFound as error:
            return _Refused(404, error.message).response
        except ValidationFailed as error:
            return _Refused(400, error.message).response
        except (SandboxPaused, SandboxStopped):
            raise
        except CoveError as error:
            return _Refused(500, error.message).response

    async def _route(self, request: Request, path: str) -> Response:
        match request.method, path.strip("/").split("/"):
            case "GET", ["health"]:
                return Response(200, TEXT, b"OK")
            case "POST", ["execute"]:
                return await self._execute(_read(await request.read(MOST_BODY_BYTES), _Execute))
            case "POST", ["contexts"]:
                return await self._create(_read(await request.read(MOST_BODY_BYTES) or b"{}", _Create))
            case "GET", ["contexts"]:
                await self._forget_ended()
                return answer([each.describe() for each in self._contexts.values()])
            case "POST", ["contexts", id, "restart"]:
                return await self._restart(unquote_text(id))
            case "DELETE", ["contexts", id]:
                return await self._delete(unquote_text(id))
        raise _Refused(404, f"there is nothing at {path}")

    async def _execute(self, wanted: _Execute) -> Response:
        if wanted.context_id is not None and wanted.language is not None:
            raise _Refused(400, "give a context or a language, not both")
        if wanted.context_id is not None:
            context = await self._find(wanted.context_id)
        else:
            context = await self._default(_language(wanted.language))
        events = self._run(context, wanted.code, wanted.env_vars or {})
        return Response(200, _LINES, _lines(events, context), _PING)

    async def _run(self, context: _Context, code: str, env: Mapping[str, str]) -> AsyncGenerator[CodeEvent, None]:
        async with context.turn:
            context.runs += 1
            try:
                async with aclosing(context.code.stream(code, env)) as events:
                    async for event in events:
                        yield event
            except (ContextCrashed, SessionTerminated):
                await self._drop(context)
                raise

    async def _default(self, language: str) -> _Context:
        async with self._making:
            await self._forget_ended()
            id = self._defaults.get(language)
            if id is not None and id in self._contexts:
                return self._contexts[id]
            context = await self._make(language, HOME)
            self._defaults[language] = context.id
            return context

    async def _create(self, wanted: _Create) -> Response:
        async with self._making:
            context = await self._make(_language(wanted.language), resolve(wanted.cwd or ""))
        return answer(context.describe())

    async def _make(self, language: str, cwd: str, id: str | None = None) -> _Context:
        if len(self._contexts) >= _MOST_CONTEXTS:
            raise _Refused(500, f"there are {_MOST_CONTEXTS} contexts already: remove some")
        id = id or new_identifier()
        try:
            code = await self._open(language, cwd, id)
        except UnsupportedLanguage:
            raise _Refused(500, f"there is no {plain(language[:100])} here: {', '.join(_LANGUAGES)} are") from None
        except (ContextAlreadyExists, SessionAlreadyExists) as error:
            raise _Refused(500, error.message) from None
        context = self._contexts[id] = _Context(id, language, cwd, code)
        return context

    async def _open(self, language: str, cwd: str, id: str) -> Notebook | BashNotebook:
        if language == BASH:
            return BashNotebook(await self._sandbox.create_session(id=id, cwd=cwd))
        return Notebook(await self._sandbox.create_code_context(language, id=id, cwd=cwd), language)

    async def _find(self, id: str) -> _Context:
        await self._forget_ended()
        context = self._contexts.get(id)
        if context is None:
            raise _Refused(404, f"Context {id} not found")
        return context

    async def _forget_ended(self) -> None:
        """Forget contexts that ended with the sandbox, which was stopped and started, or by themselves."""
        running = {info.id for info in await self._sandbox.list_code_contexts() if info.is_running}
        shells = await self._sandbox.list_sessions()
        running |= {info.id for info in shells if info.status is SessionStatus.RUNNING}
        for id in [id for id in self._contexts if id not in running]:
            await self._drop(self._contexts[id])

    async def _drop(self, context: _Context) -> None:
        self._contexts.pop(context.id, None)
        await context.code.delete()

    async def _restart(self, id: str) -> Response:
        async with self._making:
            old = await self._find(id)
            await self._drop(old)
            await self._make(old.language, old.cwd, id)
        return answer({})

    async def _delete(self, id: str) -> Response:
        async with self._making:
            await self._drop(await self._find(id))
        return answer({})


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Refused(400, f"the body is not valid: {error}") from None


def _language(text: str | None) -> str:
    name = (text or _DEFAULT_LANGUAGE).lower()
    return _SYNONYMS.get(name, name)


async def _lines(events: AsyncGenerator[CodeEvent, None], context: _Context) -> AsyncGenerator[bytes, None]:
    """Write a run as lines. Only ASCII: clients break lines and chunks at other characters."""
    async with aclosing(events):
        try:
            async for event in events:
                for line in _describe(event, context):
                    yield json.dumps(line).encode() + b"\n"
        except CoveError as error:
            failure = {"type": "error", "name": "UnexpectedEndOfExecution", "value": error.message, "traceback": ""}
            yield json.dumps(failure).encode() + b"\n"
    yield b'{"type":"end_of_execution"}\n'


def _describe(event: CodeEvent, context: _Context) -> list[dict[str, object]]:
    match event:
        case Text():
            return [{"type": event.stream, "text": event.text, "timestamp": time.time_ns()}]
        case Display():
            return [_describe_result(event.result)]
        case Failure():
            error = event.error
            return [{"type": "error", "name": error.name, "value": error.message, "traceback": error.traceback}]
        case Done():
            counted: dict[str, object] = {"type": "number_of_executions", "execution_count": context.runs}
            return [counted] if event.outcome is Outcome.EXITED else [_unexpected(event), counted]


def _unexpected(done: Done) -> dict[str, object]:
    value = f"the run has ended: {done.outcome}"
    return {"type": "error", "name": "UnexpectedEndOfExecution", "value": value, "traceback": ""}


def _describe_result(result: Result) -> dict[str, object]:
    line: dict[str, object] = {"type": "result", "is_main_result": result.is_main}
    extra: dict[str, object] = {}
    for mime, value in result.data.items():
        if mime == _CHART:
            line |= {"chart": value} if _is_chart(value) else {}
        elif mime in _FIELDS:
            line[_FIELDS[mime]] = value
        else:
            extra[mime] = value
    text = line.get("text")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES:
        line["text"] = text[1:-1]
    return {**line, "extra": extra} if extra else line


def _is_chart(value: object) -> bool:
    """Return whether a client can read a value as a chart: code can send anything under any name."""
    return isinstance(value, dict) and isinstance(value.get("type"), str) and isinstance(value.get("elements"), list)
