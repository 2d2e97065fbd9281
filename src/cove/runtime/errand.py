"""Long file operations: each in a process inside the sandbox, started like any other."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

from cove.agent.protocol import MOST_ERRNO, ProtocolError, number
from cove.core.command import Invocation
from cove.core.errand_protocol import MessageReader
from cove.core.output_log import STDOUT
from cove.errors import (
    CoveError,
    LimitExceeded,
    ProcessExitedBeforeReady,
    SpawnFailed,
    ValidationFailed,
    from_errno,
)
from cove.model import Outcome, ProcessExit
from cove.runtime.change import Change
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import Supervised

_MOST_WAITING = 2000
_KEPT_ERROR_BYTES = 2000
_GRACE_SECONDS = 2.0

TakeMessage = Callable[[list[bytes]], None]


class Errands:
    """Runs `agent.errand` for the file operations of one sandbox."""

    def __init__(self, spawner: Spawner, interpreter: str, directory: str) -> None:
        self._spawner = spawner
        self._command = [word.encode() for word in (interpreter, "-I", "-S", f"{directory}/errand.pyc", directory)]

    async def start(self, verb: str, *arguments: bytes, subject: str, stdin: int | None = None) -> "Errand":
        """Start one; whoever calls sees to its end."""
        errand = Errand(self._spawner, subject)
        invocation = Invocation(argv=(*self._command, verb.encode(), *arguments), env={b"LANG": b"C.UTF-8"}, cwd=b"/")
        errand.process = await self._spawner.spawn(invocation, errand.hear, stdin=stdin)
        return errand

    async def run(
        self, verb: str, *arguments: bytes, subject: str, take: TakeMessage | None = None, stdin: int | None = None
    ) -> None:
        """Run one to its end. A cancelled caller's errand is killed before this returns."""
        errand = await self.start(verb, *arguments, subject=subject, stdin=stdin)
        if take is not None:
            errand.take = take
        try:
            await errand.finish()
        except asyncio.CancelledError:
            await errand.kill()
            raise

    async def stream(self, verb: str, *arguments: bytes, subject: str) -> AsyncGenerator[list[bytes], None]:
        """What one says, as it says it. A slow reader makes it wait; leaving ends it."""
        errand = await self.start(verb, *arguments, subject=subject)
        try:
            waiting: deque[list[bytes]] = deque()

            def take(message: list[bytes]) -> None:
                waiting.append(message)
                if len(waiting) > _MOST_WAITING:
                    errand.process.pause()

            errand.take = take
            errand.process.ended.add_done_callback(lambda _: errand.said.announce())
            while not errand.process.ended.done() or waiting:
                if not waiting:
                    errand.process.resume()
                    await errand.said.wait()
                while waiting:
                    yield waiting.popleft()
            await errand.finish()
        finally:
            await errand.kill()


class Errand:
    """One errand under way. Its last message, if it is well-formed, is its result."""

    process: Supervised

    def __init__(self, spawner: Spawner, subject: str) -> None:
        self._spawner = spawner
        self._subject = subject
        self._reader = MessageReader()
        self._errors = b""
        self._fault = ""
        self._last: list[bytes] | None = None
        self.take: TakeMessage = self._refuse
        self.said = Change()

    def hear(self, stream: int, data: bytes) -> None:
        """Take what it prints."""
        if stream != STDOUT:
            self._errors = (self._errors + data)[-_KEPT_ERROR_BYTES:]
        elif not self._fault:
            try:
                self._hear(data)
            except (ProtocolError, CoveError, ValueError) as error:
                self._fault = str(error)
                self.process.end(Outcome.KILLED, 0)
            self.said.announce()

    def _hear(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if self._last is not None:
                raise ProtocolError("words after the last")
            if message[0] in (b"done", b"error", b"refused", b"toomany"):
                self._last = message
            else:
                self.take(message)

    def _refuse(self, message: list[bytes]) -> None:
        raise ProtocolError(f"an unexpected {message[0][:20]!r}")

    async def finish(self) -> None:
        """Wait for its end; raises what it failed of."""
        end = await asyncio.shield(self.process.ended)
        if self._fault or self._last is None:
            raise self._lost(end)
        match self._last:
            case [b"done"]:
                return
            case [b"error", code, path]:
                raise from_errno(number(code, MOST_ERRNO), _subject(self._subject, path))
            case [b"refused", reason]:
                raise ValidationFailed(f"{self._subject}: refused: {_text(reason)}")
            case [b"toomany", reason]:
                raise LimitExceeded(f"{self._subject}: {_text(reason)}")
            case _:
                raise self._lost(end)

    async def kill(self) -> None:
        """End it, after it has removed what is half made; returns when it is gone."""
        self.process.end(Outcome.KILLED, _GRACE_SECONDS)
        while not self.process.ended.done():
            try:
                await asyncio.wait([self.process.ended])
            except asyncio.CancelledError:
                continue  # a second cancel does not leave it behind

    def _lost(self, end: ProcessExit) -> CoveError:
        if self.process.never_started:
            return SpawnFailed(f"{self._subject}: the process inside was killed before it ran. Nothing was started.")
        if self._spawner.closed:
            return self._spawner.link.explain(True)
        output = _text(self._errors).strip()
        reason = self._fault or output.rpartition("\n")[2] or f"{end.outcome}, exit code {end.exit_code}"
        return ProcessExitedBeforeReady(
            f"{self._subject}: the process inside ended before it had finished: {reason}",
            exit_code=end.exit_code,
            output=output,
        )


def _subject(subject: str, path: bytes) -> str:
    named = _text(path)
    return subject if not named or named in subject else f"{subject}: {named}"


def _text(data: bytes) -> str:
    return data[:_KEPT_ERROR_BYTES].decode("utf-8", "replace")
