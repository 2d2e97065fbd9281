"""A living executor: a process that runs code and reports on a channel.

Theory of operation. Code goes out on a socket; results come back on it; what the code prints comes through
the process's pipes. The frame `done` ends a run: exactly the bytes then in the pipes still belong to it. What is
printed between two runs (by threads) belongs to the next one.

Whatever the other end sends, one callback does little: it takes some frames, or queues some bytes; whoever reads the
events decodes them, and lets others in between. What waits is bounded, and every kind of event counts.
"""

import asyncio
import codecs
import os
import signal
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cove.agent.protocol import ProtocolError
from cove.core.executor_protocol import (
    EVENT_BYTES,
    Finished,
    Forked,
    FrameDecoder,
    Raised,
    Ready,
    Said,
    Shown,
    Unforked,
    UsesPackages,
    encode_run,
)
from cove.core.output_log import STREAMS
from cove.model import CodeEvent, Display, Done, Failure, Outcome, ProcessExit, Text
from cove.runtime.notify import Notify
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import Supervised

CHANNEL, _INTERRUPTIONS = 3, 4
# Bytes of events that may wait for a slow reader; beyond them, text and results are dropped, and that is flagged.
_MOST_WAITING = 32 << 20
_READ_BYTES = 65536
# Small pieces of text that wait are put together up to this size; what is printed at once is decoded up to that.
_MERGED_BYTES, _DECODED_BYTES = 4096, 262144
# How much a reader of events is given before others have their turn.
_TURN_BYTES = 262144
# How long an executor may outlive its end of the channel.
_REPORT_SECONDS = 0.5


# An event, and about how many bytes it takes.
Weighed = tuple[CodeEvent, int]


class ExecutorEnded(Exception):
    """The executor is gone."""

    def __init__(self, end: ProcessExit) -> None:
        super().__init__(f"the executor ended: {end.outcome} {end.exit_code}")
        self.end = end


@dataclass(slots=True)
class _Printed:
    """Printed output that waits to be read."""

    stream: int
    data: bytearray


class Executor:
    """Owns the process, its channel and the pipe for interruptions. One run at a time: the context sees to that."""

    def __init__(self, channel: socket.socket, interruptions: int | None, on_packages: Callable[[], None]) -> None:
        self._on_packages = on_packages
        self._channel = channel
        self._interruptions = interruptions
        self._loop = asyncio.get_running_loop()
        self._frames = FrameDecoder()
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in STREAMS]
        self._events: deque[_Printed | Weighed] = deque()
        self._waiting = 0
        self._interruption: asyncio.Future[int] | None = None
        self._unsent = memoryview(b"")
        self._change = Notify()
        self._is_running = False
        self._runs = 0
        self._has_failed = False
        self._is_cut = False
        self._uses_packages = False
        self._fork: asyncio.Future[Forked | Unforked] | None = None
        self.spawner: Spawner
        self.directory: str | None = None
        self.process: Supervised
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(channel, self._on_readable)

    def expect(self, process: Supervised, spawner: Spawner) -> None:
        """Attach to the process that is about to be started there."""
        self.process = process
        self.spawner = spawner
        process.end_if_stopped()

    def attach(self, process: Supervised) -> None:
        """Take over the process that has just been spawned."""
        process.ended.add_done_callback(self._on_end)

    @property
    def is_alive(self) -> bool:
        """Return whether code can run."""
        return not self.process.ended.done()

    @property
    def is_running(self) -> bool:
        """Return whether code runs."""
        return self._is_running

    def start(self, code: str) -> None:
        """Start a run, in `directory` if it is to enter one before."""
        request, self.directory = encode_run(code, self.directory), None
        self._is_running = True
        self._runs += 1
        self._has_failed = self._is_cut = False
        self._unsent = memoryview(request)
        self._loop.add_writer(self._channel, self._on_writable)
        self._on_writable()

    def fork(self, request: bytes, descriptors: Sequence[int]) -> "asyncio.Future[Forked | Unforked]":
        """Tell it to fork a copy that has these descriptors: see `encode_fork`. Raises ExecutorEnded."""
        self._fork = self._loop.create_future()
        if not self.is_alive:
            self._fork.set_exception(ExecutorEnded(self.process.ended.result()))
        else:
            with suppress(OSError):  # it has ended, and `_on_end` says so; or it does not read, and has a bound
                socket.send_fds(self._channel, [request], list(descriptors))
        return self._fork

    async def events(self) -> AsyncGenerator[Weighed, None]:
        """Stream the events of the run with their weights. Raises ExecutorEnded when the process ends first."""
        turn = 0
        while True:
            while self._events:
                event, size = self._next_event()
                turn += size
                if not isinstance(event, Text) or event.text:  # half a character is not said
                    yield event, size
                if isinstance(event, Done):
                    return
                if turn > _TURN_BYTES:
                    turn = 0
                    await asyncio.sleep(0)
            if not self.is_alive:
                raise ExecutorEnded(self.process.ended.result())
            await self._change.wait()

    async def wait_idle(self, seconds: float) -> bool:
        """Wait so long for the end of the run under way, or of the executor."""
        try:
            async with self.process.clock.timeout(seconds):
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
        """Interrupt the executor itself, or the whole tree: what it started, its own code decides about.

        One with a pipe for interruptions is told there which run is meant.
        """
        if not self._is_running:
            return
        if self._interruptions is not None:
            with suppress(OSError):  # it does not read, and is ended when its time is up
                os.write(self._interruptions, b"%d\n" % self._runs)
        launcher = self.process.launcher
        if launcher is not None and (self._interruptions is None or scope == b"tree"):
            self._interruption = launcher.signal(signal.SIGINT, scope)

    async def interrupted(self) -> None:
        """Wait until the last interruption has been sent: it can then not be meant for a run that comes later."""
        if self._interruption is not None:
            await asyncio.wait([self._interruption])
            self._interruption = None

    def take(self, stream: int, data: bytes) -> None:
        """Receive what the code prints."""
        last = self._events[-1] if self._events else None
        if isinstance(last, _Printed) and last.stream == stream and len(last.data) + len(data) <= _MERGED_BYTES:
            last.data += data
            self._waiting += len(data)
            return
        for at in range(0, len(data), _DECODED_BYTES):
            piece = data[at : at + _DECODED_BYTES]
            self._put_bounded(_Printed(stream, bytearray(piece)), len(piece) + EVENT_BYTES)

    def _next_event(self) -> Weighed:
        """The event that waits the longest, and its weight."""
        event = self._events.popleft()
        if isinstance(event, _Printed):
            size = len(event.data) + EVENT_BYTES
            self._waiting -= size
            return Text(STREAMS[event.stream], self._decoders[event.stream].decode(event.data)), size
        self._waiting -= event[1]
        return event

    def close(self) -> None:
        """Close the channel. Idempotent."""
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()
            if self._interruptions is not None:
                os.close(self._interruptions)

    def _on_writable(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")  # it has ended, and `_on_end` says so
        self._loop.remove_writer(self._channel)

    def _on_readable(self) -> None:
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._frames.feed(data)
            self._take_frames()
        else:
            # Most likely it has ended: then its launcher is about to say how.
            self._loop.remove_reader(self._channel)
            self.process.clock.call_later(_REPORT_SECONDS, self.process.end, Outcome.KILLED, 0)

    def _take_frames(self) -> None:
        """Take some, and the rest when others have had their turn; until then nothing more is read."""
        try:
            for said in self._frames.take():
                self._take_frame(said)
            has_more = self._frames.has_frame
        except ProtocolError:
            self._loop.remove_reader(self._channel)
            self.process.end(Outcome.KILLED, 0)
            return
        if has_more:
            self._loop.remove_reader(self._channel)
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._channel.fileno() >= 0:
            self._loop.add_reader(self._channel, self._on_readable)
            self._take_frames()

    def _take_frame(self, said: Said) -> None:
        match said:
            case Ready() if not self.ready.done():
                self.ready.set_result(None)
            case Shown():
                if said.result.is_main:  # the last that a run says: what it printed comes before it
                    self.process.output.take_waiting()
                self._put_bounded((Display(said.result), said.size), said.size)
            case Raised() if self._is_running and not self._has_failed:
                self._has_failed = True
                self.process.output.take_waiting()
                self._is_cut = self._is_cut or said.truncated
                self._put((Failure(said.error), said.size), said.size)
            case UsesPackages() if not self._uses_packages:
                self._uses_packages = True
                self._on_packages()
            case Forked() | Unforked() if self._fork is not None and not self._fork.done():
                self._fork.set_result(said)
            case Finished() if self._is_running:
                self.process.output.take_waiting()
                self._is_running = False
                self._put((Done(said.count, Outcome.EXITED, self._is_cut), EVENT_BYTES), EVENT_BYTES)
            case _:
                raise ProtocolError("out of turn")

    def _put_bounded(self, event: "_Printed | Weighed", size: int) -> None:
        if self._waiting + size > _MOST_WAITING:
            self._is_cut = True
        else:
            self._put(event, size)

    def _put(self, event: "_Printed | Weighed", size: int) -> None:
        self._waiting += size
        self._events.append(event)
        self._change.notify_all()

    def _on_end(self, ended: "asyncio.Future[ProcessExit]") -> None:
        self._is_running = False
        if not self.ready.done():
            self.ready.set_exception(ExecutorEnded(ended.result()))
            self.ready.exception()
        if self._fork is not None and not self._fork.done():
            self._fork.set_exception(ExecutorEnded(ended.result()))
            self._fork.exception()
        self._change.notify_all()


def open_executor(on_packages: Callable[[], None], *, can_be_stuck: bool) -> tuple[Executor, dict[int, int]]:
    """An executor that is to be spawned, and the descriptors that are to be passed to it, by their numbers there.

    `on_packages` is called when its code has imported one of the usual packages. One whose code can get stuck where
    no signal reaches it, as JavaScript can, gets a pipe for interruptions.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    given = {CHANNEL: theirs.detach()}
    interruptions = None
    if can_be_stuck:
        given[_INTERRUPTIONS], interruptions = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(interruptions, False)
    return Executor(ours, interruptions, on_packages), given
