"""Run errands: long file operations, each in a process inside the sandbox.

What an errand says is untrusted: its neighbours inside can write into its pipe. Bytes that come are only
kept, up to a bound, beyond which it waits. They are decoded in small steps, between which the event loop does
everything else, and no answer is longer than its budget.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from copy import copy
from typing import TypeVar

from cove.agent.protocol import ProtocolError
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
from cove.runtime.notify import Notify
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import Supervised
from cove.tasks import shared

T = TypeVar("T")

# An honest errand says less: see `agent.errand`.
MOST_ANSWER_BYTES = 32 << 20
_MOST_RESULT_BYTES = 1 << 16
_MOST_WAITING_BYTES = 256 << 10
_STEP_MESSAGES = 100
_KEPT_ERROR_BYTES = 2000
_GRACE_SECONDS = 2.0
_MOST_ERRNO_DIGITS = 4


class Errands:
    """Runs `agent.errand` for the file operations of one sandbox."""

    def __init__(self, spawner: Spawner, interpreter: Sequence[str], directory: str, user: bytes = b"") -> None:
        self._spawner = spawner
        self._user = user
        self._command = [word.encode() for word in (*interpreter, "-I", "-S", f"{directory}/errand.pyc", directory)]

    async def start(
        self,
        verb: str,
        *arguments: bytes,
        subject: str,
        stdin: int | None = None,
        most_bytes: int | None = _MOST_RESULT_BYTES,
    ) -> "Errand":
        """Start one; whoever calls sees to its end. Saying more than `most_bytes` ends it."""
        errand = Errand(self._spawner, subject, most_bytes)
        argv = (*self._command, verb.encode(), *arguments)
        invocation = Invocation(argv=argv, env={b"LANG": b"C.UTF-8"}, cwd=b"/", user=self._user)
        errand.process = await self._spawner.spawn(invocation, errand.hear, stdin=stdin, on_spawn=errand.expect)
        return errand

    def of_user(self, user: bytes) -> "Errands":
        """Return the same for another user."""
        other = copy(self)
        other._user = user
        return other

    async def run(self, verb: str, *arguments: bytes, subject: str, stdin: int | None = None) -> None:
        """Run one to its end. A cancelled caller's errand is killed before this returns."""
        errand = await self.start(verb, *arguments, subject=subject, stdin=stdin)
        try:
            await errand.finish()
        except asyncio.CancelledError:
            await errand.kill()
            raise

    async def stream(
        self,
        verb: str,
        *arguments: bytes,
        subject: str,
        decode: Callable[[list[bytes]], T],
        most_bytes: int | None = MOST_ANSWER_BYTES,
    ) -> AsyncGenerator[list[T], None]:
        """Stream the messages of an errand. A slow reader makes it wait (backpressure); leaving ends it."""
        errand = await self.start(verb, *arguments, subject=subject, most_bytes=most_bytes)
        try:
            errand.process.ended.add_done_callback(lambda _: errand.said.notify_all())
            while True:
                while batch := errand.take(decode):
                    yield batch
                    await asyncio.sleep(0)
                if errand.process.ended.done():
                    break
                errand.process.output.resume()
                await errand.said.wait()
            await errand.finish()
        finally:
            await errand.kill()


class Errand:
    """One errand under way. Its last message, if it is well-formed, is its result."""

    process: Supervised

    def __init__(self, spawner: Spawner, subject: str, most_bytes: int | None) -> None:
        self._spawner = spawner
        self._subject = subject
        self._most_bytes = most_bytes
        self._heard_bytes = 0
        self._reader = MessageReader()
        self._errors = b""
        self._fault = ""
        self._last: list[bytes] | None = None
        self.said = Notify()

    def expect(self, process: Supervised) -> None:
        """Attach to the process that is about to be started."""
        self.process = process
        process.end_if_stopped()

    def hear(self, stream: int, data: bytes) -> None:
        """Keep what it prints."""
        if stream != STDOUT:
            self._errors = (self._errors + data)[-_KEPT_ERROR_BYTES:]
        elif not self._fault:
            self._reader.feed(data)
            self._heard_bytes += len(data)
            if self._most_bytes is not None and self._heard_bytes > self._most_bytes:
                self._fail(f"more than {self._most_bytes} bytes")
            elif self._reader.waiting_bytes > _MOST_WAITING_BYTES:
                self.process.output.pause()
            self.said.notify_all()

    def take(self, decode: Callable[[list[bytes]], T]) -> list[T]:
        """Decode the next few messages; none when more has to come, or when the result is there."""
        found: list[T] = []
        try:
            while len(found) < _STEP_MESSAGES and not self._fault and (message := self._next()) is not None:
                found.append(decode(message))
        except (ProtocolError, ValueError) as error:
            self._fail(str(error))
        return found

    def _next(self) -> list[bytes] | None:
        """The next message but the last one, which is kept."""
        message = self._reader.take()
        if message is not None and self._last is not None:
            raise ProtocolError("words after the last")
        if message is not None and message[0] in (b"done", b"error", b"refused", b"toomany"):
            self._last = message
            return self._next()
        return message

    def _fail(self, fault: str) -> None:
        self._fault = fault
        self._reader = MessageReader()
        self.process.end(Outcome.KILLED, 0)

    async def finish(self) -> None:
        """Wait for its end; raises what it failed of."""
        end = await shared(self.process.ended)
        self.take(_refuse)
        if self._fault or self._last is None:
            raise self._lost(end)
        match self._last:
            case [b"done"]:
                return
            case [b"error", code, path] if code.isdigit() and len(code) <= _MOST_ERRNO_DIGITS:
                raise from_errno(int(code), _subject(self._subject, path))
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


def _refuse(message: list[bytes]) -> None:
    raise ProtocolError(f"an unexpected {message[0][:20]!r}")


def _subject(subject: str, path: bytes) -> str:
    named = _text(path)
    return subject if not named or named in subject else f"{subject}: {named}"


def _text(data: bytes) -> str:
    return data[:_KEPT_ERROR_BYTES].decode("utf-8", "replace")
