"""Run code as a client sees it, cell after cell: in a code context, or in a session where the language is bash."""

import json
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from cove import api
from cove.core.command import check_environment
from cove.errors import CoveError
from cove.model import CodeError, CodeEvent, Done, ExecResult, Failure, Outcome, Text
from cove.model.event import StreamName
from cove.runtime.session import Session
from cove.server.session_output import SessionOutput

BASH: Final = "bash"
_FAILED: Final = "NonZeroExit"


class Notebook:
    """A code context; variables hold for one run."""

    def __init__(self, context: api.CodeContext, language: str) -> None:
        self._context = context
        self._prepare, self._restore = _PYTHON if language == "python" else _JAVASCRIPT

    async def stream(self, code: str, env: Mapping[str, str]) -> AsyncGenerator[CodeEvent, None]:
        """Run code; it is interrupted when nobody reads any more."""
        async with self._variables(env), aclosing(self._context.stream(code)) as events:
            async for event in events:
                yield event

    async def delete(self) -> None:
        """End it. Idempotent."""
        await self._context.delete()

    @asynccontextmanager
    async def _variables(self, env: Mapping[str, str]) -> AsyncGenerator[None, None]:
        """Let variables hold for one run: what was there before is put back when it is over."""
        if not env:
            yield
            return
        check_environment(env)
        try:
            await self._context.run(self._prepare.replace("VARIABLES", json.dumps(dict(env))))
            yield
        finally:
            with suppress(CoveError):  # it has ended with what ran in it
                await self._context.run(self._restore)


class BashNotebook:
    """A session: the directory, variables and functions of one run are there in the next."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def stream(self, code: str, env: Mapping[str, str]) -> AsyncGenerator[CodeEvent, None]:
        """Run a script; an exit code other than 0 is an error."""
        output = SessionOutput()
        decoders: dict[StreamName, IncrementalDecoder] = {
            "stdout": getincrementaldecoder("utf-8")("replace"),
            "stderr": getincrementaldecoder("utf-8")("replace"),
        }
        async with aclosing(output.chunks(self._session, code, env=env)) as chunks:
            async for stream, data in chunks:
                if text := decoders[stream].decode(data):
                    yield Text(stream, text)
        result = output.result()
        for stream, decoder in decoders.items():
            if rest := decoder.decode(b"", final=True):
                yield Text(stream, rest)
        for event in _end(result):
            yield event

    async def delete(self) -> None:
        """End it. Idempotent."""
        await self._session.delete()


def _end(result: ExecResult) -> list[CodeEvent]:
    done = Done(None, result.outcome)
    if result.outcome is not Outcome.EXITED or result.exit_code == 0:
        return [done]
    text = f"the last command ended with exit code {result.exit_code}"
    return [Failure(CodeError(name=_FAILED, message=str(result.exit_code), traceback=text)), done]


_PYTHON: Final = (
    "import os as _cove_os\n"
    "_cove_kept = {name: _cove_os.environ.get(name) for name in VARIABLES}\n"
    "_cove_os.environ.update(VARIABLES)\n",
    "for _cove_name, _cove_value in _cove_kept.items():\n"
    "    _cove_os.environ.pop(_cove_name, None) if _cove_value is None "
    "else _cove_os.environ.__setitem__(_cove_name, _cove_value)\n"
    "del _cove_kept\n",
)
_JAVASCRIPT: Final = (
    "globalThis._coveKept = Object.fromEntries(Object.keys(VARIABLES).map((name) => [name, process.env[name]]));\n"
    "Object.assign(process.env, VARIABLES); undefined",
    "for (const [name, value] of Object.entries(globalThis._coveKept)) {\n"
    "  if (value === undefined) delete process.env[name]; else process.env[name] = value;\n"
    "}\n"
    "delete globalThis._coveKept; undefined",
)
