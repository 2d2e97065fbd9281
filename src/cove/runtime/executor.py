"""A living executor: a process that runs code and says on a channel what came of it.

Theory of operation. Code goes out on a socket; results come back on it; what the code prints comes through
the process's pipes. The frame `done` ends a run: exactly the bytes then in the pipes still belong to it. What is
printed between two runs (by threads) belongs to the next one.
"""

import asyncio
import codecs
import signal
import socket
from collections import deque
from collections.abc import AsyncGenerator

from cove.agent.protocol import ProtocolError
from cove.core.executor_protocol import Finished, FrameDecoder, Raised, Ready, Returned, Said, Shown, weigh
from cove.core.output_log import STREAMS
from cove.model import CodeEvent, Display, Done, Failure, Outcome, ProcessExit, Text
from cove.runtime.change import Change
from cove.runtime.supervised import Supervised

# What may wait for a slow reader of events, in characters; beyond it, text and results are dropped and counted.
_MOST_WAITING = 32 << 20
_READ_BYTES = 262144
# How long an executor may outlive its end of the channel.
_REPORT_SECONDS = 0.5


class ExecutorEnded(Exception):
    """The executor is gone."""

    def __init__(self, end: ProcessExit) -> None:
        super().__init__(f"the executor ended: {end.outcome} {end.exit_code}")
        self.end = end


class Executor:
    """Owns the process and its channel. One run at a time: the context sees to that."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._frames = FrameDecoder()
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in STREAMS]
        self._events: deque[tuple[CodeEvent, int]] = deque()
        self._waiting = 0
        self._interruption: asyncio.Future[int] | None = None
        self._unsent = b""
        self._change = Change()
        self._is_running = False
        self.dropped = 0
        self.process: Supervised
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(channel, self._on_readable)

    def expect(self, process: Supervised) -> None:
        """Be this process, which is about to be started."""
        self.process = process
        process.end_if_stopped()

    def attach(self, process: Supervised) -> None:
        """Take over the process that has just been spawned."""
        process.ended.add_done_callback(self._on_end)

    @property
    def is_alive(self) -> bool:
        """Code can run."""
        return not self.process.ended.done()

    @property
    def is_running(self) -> bool:
        """Code runs now."""
        return self._is_running

    def start(self, request: bytes) -> None:
        """Start a run: see `encode_run`."""
        self._is_running = True
        self.dropped = 0
        self._send(request)

    async def events(self) -> AsyncGenerator[CodeEvent, None]:
        """What comes of the run, to its end. Raises ExecutorEnded when the process ends first."""
        while True:
            while self._events:
                event, size = self._events.popleft()
                self._waiting -= size
                yield event
                if isinstance(event, Done):
                    return
            if not self.is_alive:
                raise ExecutorEnded(self.process.ended.result())
            await self._change.wait()

    async def wait_idle(self, seconds: float) -> bool:
        """Wait so long for the end of the run under way, or of the executor."""
        try:
            async with asyncio.timeout(seconds):
                while self._is_running:
                    await self._change.wait()
        except TimeoutError:
            return False
        return True

    async def settle(self) -> None:
        """Wait until the run under way is over, and forget what came of it."""
        async for _ in self.events():
            pass

    def interrupt(self, scope: bytes = b"main") -> None:
        """SIGINT for the executor itself, or for the tree: what it started, its own code decides about."""
        launcher = self.process.launcher
        if launcher is not None and self._is_running:
            self._interruption = launcher.signal(signal.SIGINT, scope)

    async def interrupted(self) -> None:
        """Until the last interruption has been sent: it can then not be meant for a run that comes later."""
        if self._interruption is not None:
            await asyncio.wait([self._interruption])
            self._interruption = None

    def take(self, stream: int, data: bytes) -> None:
        """What the code prints."""
        text = self._decoders[stream].decode(data)
        if text:
            self._put_bounded(Text(STREAMS[stream], text), len(text))

    def close(self) -> None:
        """Close the channel. Idempotent."""
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self._on_writable()
        if self._unsent:
            self._loop.add_writer(self._channel, self._on_writable)

    def _on_writable(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""  # it has ended, and `_on_end` says so
        self._loop.remove_writer(self._channel)

    def _on_readable(self) -> None:
        try:
            data = self._channel.recv(_READ_BYTES)
            for said in self._frames.feed(data):
                self._take_frame(said)
        except BlockingIOError:
            return
        except ProtocolError:
            self._loop.remove_reader(self._channel)
            self.process.end(Outcome.KILLED, 0)
            return
        except OSError:
            data = b""
        if not data:
            # Most likely it has ended: then its launcher is about to say how.
            self._loop.remove_reader(self._channel)
            self._loop.call_later(_REPORT_SECONDS, self.process.end, Outcome.KILLED, 0)

    def _take_frame(self, said: Said) -> None:
        match said:
            case Ready() if not self.ready.done():
                self.ready.set_result(None)
            case Shown() | Returned():
                result = said.result()
                self._put_bounded(Display(result), weigh(result))
            case Raised():
                self._put(Failure(said.error()))
            case Finished() if self._is_running:
                self.process.take_waiting()
                self._is_running = False
                self._put(Done(said.count, Outcome.EXITED, self.dropped > 0))
            case _:
                raise ProtocolError("out of turn")

    def _put_bounded(self, event: CodeEvent, size: int) -> None:
        if self._waiting + size > _MOST_WAITING:
            self.dropped += size
        else:
            self._put(event, size)

    def _put(self, event: CodeEvent, size: int = 0) -> None:
        self._waiting += size
        self._events.append((event, size))
        self._change.announce()

    def _on_end(self, ended: "asyncio.Future[ProcessExit]") -> None:
        self._is_running = False
        if not self.ready.done():
            self.ready.set_exception(ExecutorEnded(ended.result()))
            self.ready.exception()
        self._change.announce()


def executor_channel() -> tuple[socket.socket, socket.socket]:
    """Our end, non-blocking, and the executor's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    return ours, theirs
