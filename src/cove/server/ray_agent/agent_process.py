"""The agent as a process: refreshes in a loop, and answers on its unix socket until it is told to stop."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from cove.errors import CoveError, NoCapacity, PlacementUnavailable, ValidationFailed
from cove.local.threads import in_thread, kept_or_undone, start_in_thread
from cove.server.cluster.agent_protocol import (
    LEFT,
    MOST_BYTES,
    Answer,
    Call,
    ClaimName,
    Drain,
    FindName,
    Forget,
    FreeName,
    GrantRoom,
    Leave,
    ReleaseRoom,
    Report,
)
from cove.server.ray_agent.agent import Agent, NodeGone
from cove.server.ray_agent.engine import EngineFailed
from cove.tasks import Tasks, race, shared

_REFRESH_SECONDS = 15.0
_CALL_SECONDS = 8.0
_LINE_SECONDS = 5.0
_FAILURES = 3
_MOST_CONNECTIONS = 256
_MOST_GRANTS = 4
_MOST_TIMEOUT = 600.0
_MARGIN = 2.0

_END_SECONDS = 2.0

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("cove.cluster")


@dataclass(slots=True)
class _Pending:
    """A grant on its way, and the room in it that nobody has asked for."""

    task: "asyncio.Task[str]"
    left: int


class AgentProcess:
    """Serves one agent. `block_slots` callers at once share one block."""

    def __init__(self, agent: Agent, path: Path, block_slots: int) -> None:
        self._agent = agent
        self._path = path
        self._block_slots = block_slots
        self._tasks = Tasks(lambda _: None)
        self._pending: _Pending | None = None
        self._granting = asyncio.Semaphore(_MOST_GRANTS)
        self._connections = 0
        self._end = asyncio.Event()
        self._code = 0
        self._working: set[asyncio.Future[object]] = set()

    async def run(self) -> int:
        """Serve, and return the exit code: 0 when told to stop, 1 when the engine is lost, LEFT after `leave`."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end.set)
        if not await self._is_refreshed():
            return 1
        listener = await kept_or_undone(start_in_thread(_listen, self._path), socket.socket.close)
        server = await asyncio.start_unix_server(self._answer, sock=listener, limit=MOST_BYTES)
        try:
            await race(self._keep_refreshing(), self._keep_collecting(), self._ended())
        finally:
            server.close()
            await in_thread(self._path.unlink, missing_ok=True)
            await self._tasks.aclose()
            if self._working:
                await asyncio.wait(self._working, timeout=_END_SECONDS)
        return self._code

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what waits for Ray; whoever is cancelled leaves it alone, and the end of the service waits for it."""
        results: list[T] = []

        def work() -> object:
            results.append(function(*args, **kwargs))
            return results

        future = start_in_thread(work)
        self._working.add(future)
        future.add_done_callback(self._worked)
        await shared(future)
        return results[0]

    def _worked(self, future: "asyncio.Future[object]") -> None:
        self._working.discard(future)
        if not future.cancelled():
            future.exception()  # whoever waited has it

    async def _ended(self) -> None:
        await self._end.wait()

    # Refreshing

    async def _keep_refreshing(self) -> None:
        failures = 0
        while failures < _FAILURES:
            await asyncio.sleep(self._agent.period)
            failures = 0 if await self._is_refreshed() else failures + 1
        self._code = 1

    async def _is_refreshed(self) -> bool:
        return await self._is_done(self._agent.refresh, _REFRESH_SECONDS)

    async def _keep_collecting(self) -> None:
        """Grants are taken over sooner than all else: somebody waits for each."""
        while True:
            await asyncio.sleep(self._agent.collecting_period)
            await self._is_done(self._agent.collect, _REFRESH_SECONDS)

    async def _is_done(self, work: Callable[[], None], timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._in_thread(work)
        except NodeGone:
            log.error("this machine is not alive for Ray: the agent starts again")
            self._code = 1
            self._end.set()
            return False
        except (EngineFailed, TimeoutError, ValidationFailed, msgspec.DecodeError) as error:
            log.error("the cluster could not be looked at: %s", error)
            return False
        return True

    # Answering

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _MOST_CONNECTIONS:
                await self._answer_one(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # who asked is gone, or is not one of ours
        finally:
            self._connections -= 1
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_LINE_SECONDS):
            line = await reader.readuntil(b"\n")
        answer = await self._perform(line)
        writer.write(msgspec.json.encode(answer) + b"\n")
        async with asyncio.timeout(_LINE_SECONDS):
            await writer.drain()
        if answer == _LEFT:
            self._code = LEFT
            self._end.set()

    async def _perform(self, line: bytes) -> Answer:
        try:
            return await self._call(msgspec.json.decode(line, type=Call))
        except CoveError as error:
            return Answer(error=error.code, message=error.message)
        except msgspec.DecodeError as error:
            return Answer(error=ValidationFailed.code, message=f"this agent does not understand the call: {error}")
        except (EngineFailed, TimeoutError) as error:
            return Answer(error=PlacementUnavailable.code, message=f"Ray does not answer: {error or 'in time'}")

    async def _call(self, call: Call) -> Answer:
        if isinstance(call, GrantRoom):
            return Answer(node=await self._grant(call.slots, min(call.timeout, _MOST_TIMEOUT)))
        async with asyncio.timeout(_CALL_SECONDS):
            return await self._in_thread(_perform, self._agent, call)

    async def _grant(self, slots: int, timeout: float) -> str:
        """Several who ask at once share a block: each would otherwise get one of its own."""
        pending = self._pending
        if pending is None or pending.left < slots or pending.task.done():
            task = self._tasks.start(self._granted(slots, timeout))
            room = -(-slots // self._block_slots) * self._block_slots
            pending = self._pending = _Pending(task, room)
        pending.left -= slots
        async with asyncio.timeout(timeout + _MARGIN):
            return await shared(pending.task)

    async def _granted(self, slots: int, timeout: float) -> str:
        """Few at a time: each keeps a thread, and refreshes need one too."""
        until = time.monotonic() + timeout
        async with self._granting:
            if (left := until - time.monotonic()) <= 0:
                raise NoCapacity("too many wait for room: try again later, or add a node")
            return await self._in_thread(self._agent.grant, slots, left)


_LEFT = Answer(message="left")


def _listen(path: Path) -> socket.socket:
    """Only this user may connect, and who finds the path is taken: it has its name when all is ready, unix(7)."""
    making = path.with_suffix(".new")
    making.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(making))
    making.chmod(0o600)
    listener.listen()
    making.rename(path)
    listener.setblocking(False)
    return listener


def _perform(agent: Agent, call: Call) -> Answer:
    match call:
        case ClaimName(name=name, node=node, epoch=epoch):
            return Answer(claim=agent.claim(name, node, epoch))
        case FindName(name=name):
            return Answer(claim=agent.find(name))
        case FreeName(claim=claim):
            agent.unclaim(claim)
        case ReleaseRoom(node=node, slots=slots):
            agent.release(node, slots)
        case Drain(node=node, undo=undo):
            agent.drain(node, undo=undo)
        case Forget(node=node, undo=undo):
            return Answer(count=agent.forget(node, undo=undo))
        case Leave():
            agent.leave()
            return _LEFT
        case Report():
            return Answer(report=agent.report())
        case GrantRoom():
            raise AssertionError("granted elsewhere")
    return Answer()
