"""The process service: commands and terminals by the pid that they have inside."""

import asyncio
import signal as signals
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from cove.errors import FileNotFound, NotDirectory, ValidationFailed
from cove.http import Request, Response
from cove.model import Exit, Outcome, Output, ProcessExit, Ready
from cove.runtime.process import Process
from cove.runtime.sandbox import Sandbox
from cove.runtime.terminal import Terminal
from cove.server.e2b.homes import home_of
from cove.server.e2b.protocol import resolve
from cove.server.e2b.rpc import (
    KEEPALIVE,
    Caller,
    Events,
    Message,
    Stream,
    Unary,
    Wire,
    answer_input,
    base64_of,
    decode,
    until,
)
from cove.wire.connect import Code, ConnectError

SERVICE: Final = "/process.Process/"
KEEPALIVE_EVENT: Final[Message] = {"event": KEEPALIVE}
_REMEMBERED_SECONDS: Final = 30.0
_MOST_REMEMBERED: Final = 1000
_SIGNALS: Final[Mapping[str, int]] = {
    "SIGNAL_SIGKILL": signals.SIGKILL,
    "SIGNAL_SIGTERM": signals.SIGTERM,
    "9": signals.SIGKILL,
    "15": signals.SIGTERM,
}


class _Config(Wire):
    cmd: str = ""
    args: list[str] = msgspec.field(default_factory=list)
    envs: dict[str, str] = msgspec.field(default_factory=dict)
    cwd: str | None = None


class _Selector(Wire):
    pid: int | None = None
    tag: str | None = None


class _Size(Wire):
    cols: int = 80
    rows: int = 24


class _Pty(Wire):
    size: _Size = msgspec.field(default_factory=_Size)


class _Start(Wire):
    process: _Config = msgspec.field(default_factory=_Config)
    pty: _Pty | None = None
    tag: str | None = None
    stdin: bool = True


class _Chosen(Wire):
    process: _Selector = msgspec.field(default_factory=_Selector)


class _Input(Wire):
    stdin: bytes | None = None
    pty: bytes | None = None


class _SendInput(_Chosen):
    input: _Input = msgspec.field(default_factory=_Input)


class _SendSignal(_Chosen):
    signal: str | int = ""


class _Update(_Chosen):
    pty: _Pty | None = None


class _InputStart(Wire):
    process: _Selector = msgspec.field(default_factory=_Selector)


class _InputData(Wire):
    input: _Input = msgspec.field(default_factory=_Input)


class _StreamInput(Wire):
    start: _InputStart | None = None
    data: _InputData | None = None


@dataclass(slots=True, eq=False)
class _Started:
    """A command or a terminal; `ended_at` is when it was seen to have ended."""

    thing: Process | Terminal
    config: _Config
    tag: str | None
    ended_at: float | None = None
    timer: asyncio.TimerHandle | None = None
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def pid(self) -> int:
        return self.thing.supervised.pid

    @property
    def end(self) -> ProcessExit | None:
        ended = self.thing.supervised.ended
        return ended.result() if ended.done() else None

    def describe(self) -> Message:
        config: dict[str, object] = {"cmd": self.config.cmd, "args": self.config.args, "envs": self.config.envs}
        if self.config.cwd is not None:
            config["cwd"] = self.config.cwd
        described: dict[str, object] = {"pid": self.pid, "config": config}
        return described if self.tag is None else {**described, "tag": self.tag}


class ProcessService:
    """The processes of one sandbox that clients of this protocol have started."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._started: dict[int, _Started] = {}
        self.streams: Mapping[str, Stream] = {"Start": self._start, "Connect": self._connect}
        self.calls: Mapping[str, Unary] = {
            "List": self._list,
            "SendInput": self._send_input,
            "CloseStdin": self._close_stdin,
            "SendSignal": self._send_signal,
            "Update": self._update,
        }

    async def stream_input(self, request: Request) -> Response:
        """`StreamInput`: what comes is typed, for as long as the client likes."""
        chosen: list[_Started] = []

        async def take(message: bytes) -> None:
            wanted = decode(message, _StreamInput)
            if wanted.start is not None:
                chosen[:] = [self._find(wanted.start.process)]
            elif wanted.data is not None:
                if not chosen:
                    raise ConnectError(Code.INVALID_ARGUMENT, "the first message must say which process")
                await _write(chosen[0], wanted.data.input)

        return await answer_input(take, request)

    async def _start(self, body: bytes, caller: Caller) -> Events:
        wanted = decode(body, _Start)
        if not wanted.process.cmd:
            raise ConnectError(Code.INVALID_ARGUMENT, "there is no command to run")
        started = await self._begin(wanted, caller)
        yield {"event": {"start": {"pid": started.pid}}}
        async with aclosing(_follow(started, from_start=True)) as events:
            async for event in events:
                yield event

    async def _begin(self, wanted: _Start, caller: Caller) -> _Started:
        config = wanted.process
        home = await home_of(self._sandbox, caller.user)
        cwd = resolve(config.cwd or "", home)
        await self._check_directory(cwd, caller.user)
        argv = [config.cmd, *config.args]
        thing: Process | Terminal
        if wanted.pty is None:
            process = await self._sandbox.start_process(
                argv,
                cwd=cwd,
                env=config.envs,
                timeout=caller.timeout,
                stdin=wanted.stdin,
                keep=False,
                lossless=True,
                user=caller.user,
            )
            assert isinstance(process, Process)
            thing = process
        else:
            size = wanted.pty.size
            terminal = await self._sandbox.terminal(
                shell=argv, cwd=cwd, env=config.envs, cols=size.cols, rows=size.rows, user=caller.user
            )
            assert isinstance(terminal, Terminal)
            thing = terminal
        return self._remember(_Started(thing, config, wanted.tag), caller.timeout)

    async def _check_directory(self, path: str, user: str | None) -> None:
        try:
            found = await self._sandbox.files.stat_owned(path, follow=True, user=user)
        except (FileNotFound, NotDirectory):
            found = None
        if found is None or not found.is_directory:
            raise ConnectError(Code.INVALID_ARGUMENT, f"cwd {path!r} does not exist, or is not a directory")

    def _remember(self, started: _Started, timeout: float | None) -> _Started:
        self._forget_old()
        self._started.pop(started.pid, None)
        self._started[started.pid] = started
        if isinstance(started.thing, Terminal) and timeout is not None:
            loop = asyncio.get_running_loop()
            started.timer = loop.call_later(timeout, started.thing.supervised.signal, signals.SIGKILL)
        started.thing.supervised.ended.add_done_callback(lambda _: _note_end(started))
        return started

    def _forget_old(self) -> None:
        now = time.monotonic()
        ended = [each for each in self._started.values() if each.ended_at is not None]
        for at, each in enumerate(ended):
            is_old = each.ended_at is not None and now - each.ended_at > _REMEMBERED_SECONDS
            if is_old or at < len(ended) - _MOST_REMEMBERED:
                del self._started[each.pid]

    def _find(self, selector: _Selector, *, running: bool = True) -> _Started:
        self._forget_old()
        found = self._started.get(selector.pid or 0)
        if selector.tag is not None:
            found = next((each for each in reversed(self._started.values()) if each.tag == selector.tag), None)
        if found is None or (running and found.end is not None):
            named = f"tag {selector.tag!r}" if selector.tag is not None else f"pid {selector.pid}"
            raise ConnectError(Code.NOT_FOUND, f"no process with {named} runs")
        return found

    async def _connect(self, body: bytes, caller: Caller) -> Events:
        started = self._find(decode(body, _Chosen).process, running=False)
        async with aclosing(until(self._follow_from_now(started), caller.timeout)) as events:
            async for event in events:
                yield event

    async def _follow_from_now(self, started: _Started) -> Events:
        yield {"event": {"start": {"pid": started.pid}}}
        async with aclosing(_follow(started, from_start=False)) as events:
            async for event in events:
                yield event

    async def _list(self, body: bytes, caller: Caller) -> Message:
        self._forget_old()
        return {"processes": [each.describe() for each in self._started.values() if each.end is None]}

    async def _send_input(self, body: bytes, caller: Caller) -> Message:
        wanted = decode(body, _SendInput)
        await _write(self._find(wanted.process), wanted.input)
        return {}

    async def _close_stdin(self, body: bytes, caller: Caller) -> Message:
        started = self._find(decode(body, _Chosen).process)
        if isinstance(started.thing, Terminal):
            raise ConnectError(
                Code.FAILED_PRECONDITION, "a terminal's input is not closed: send Ctrl-D, which is \\x04"
            )
        with _told_as_internal():
            await started.thing.close_stdin()
        return {}

    async def _send_signal(self, body: bytes, caller: Caller) -> Message:
        wanted = decode(body, _SendSignal)
        number = _SIGNALS.get(str(wanted.signal))
        if number is None:
            raise ConnectError(Code.INVALID_ARGUMENT, f"the signal {wanted.signal!r} cannot be sent: KILL and TERM can")
        started = self._find(wanted.process)
        await self._sandbox.life.ready()
        started.thing.supervised.signal(number)
        if number == signals.SIGKILL:
            await asyncio.wait([started.thing.supervised.ended])
        return {}

    async def _update(self, body: bytes, caller: Caller) -> Message:
        wanted = decode(body, _Update)
        started = self._find(wanted.process)
        if not isinstance(started.thing, Terminal):
            raise ConnectError(Code.FAILED_PRECONDITION, "this process is not on a terminal")
        if wanted.pty is not None:
            await started.thing.resize(wanted.pty.size.cols, wanted.pty.size.rows)
        return {}


@contextmanager
def _told_as_internal() -> Iterator[None]:
    """Turn what a process without an input says into the code that clients know."""
    try:
        yield
    except ValidationFailed as error:
        raise ConnectError(Code.INTERNAL, error.message) from None


async def _write(started: _Started, given: _Input) -> None:
    """Type; those who do it at once take turns."""
    async with started.writing:
        if isinstance(started.thing, Process):
            if given.stdin is None:
                raise ConnectError(Code.INVALID_ARGUMENT, "this process is not on a terminal: send `stdin`")
            with _told_as_internal():
                await started.thing.write_stdin(given.stdin)
            return
        if given.pty is None:
            raise ConnectError(Code.INVALID_ARGUMENT, "this process is on a terminal: send `pty`")
        await started.thing.input.write(given.pty)


async def _follow(started: _Started, *, from_start: bool) -> Events:
    """Follow the output, to the end."""
    thing = started.thing
    source = _follow_terminal(thing, from_start) if isinstance(thing, Terminal) else _follow_process(thing, from_start)
    async with aclosing(source) as events:
        async for event in events:
            yield event
    end = started.end
    assert end is not None
    if end.outcome is Outcome.TIMED_OUT and from_start:
        raise ConnectError(Code.DEADLINE_EXCEEDED, "the process was killed: its time was over")
    if end.outcome is Outcome.LOST or end.outcome is Outcome.STOPPED:
        raise ConnectError(Code.UNAVAILABLE, "the sandbox ended while the process ran")
    yield {"event": {"end": describe_end(end)}}


async def _follow_process(process: Process, from_start: bool) -> Events:
    since = None if from_start else process.log.cursor
    async with aclosing(process.logs(since=since, lossless=True)) as events:
        async for event in events:
            if isinstance(event, Output):
                yield {"event": {"data": {event.stream: base64_of(event.data)}}}
            elif isinstance(event, Exit):
                return


async def _follow_terminal(terminal: Terminal, from_start: bool) -> Events:
    is_shown = from_start
    async with terminal.connect(lossless=True) as connection, aclosing(connection.events()) as events:
        async for event in events:
            if isinstance(event, Ready):
                is_shown = True
            elif isinstance(event, Output) and is_shown:
                yield {"event": {"data": {"pty": base64_of(event.data)}}}
            elif isinstance(event, Exit):
                return


def describe_end(end: ProcessExit) -> Message:
    """Return how a process ended, as Go's standard library says it."""
    if end.outcome is Outcome.EXITED and end.exit_code is not None:
        status = f"exit status {end.exit_code}"
        described: dict[str, object] = {"exitCode": end.exit_code, "exited": True, "status": status}
        return described if end.exit_code == 0 else {**described, "error": status}
    status = f"signal: {signal_name(end.signal or signals.SIGKILL)}"
    return {"exitCode": -1, "exited": False, "status": status, "error": status}


def signal_name(number: int) -> str:
    """Return the words for a signal."""
    try:
        return (signals.strsignal(number) or f"signal {number}").lower()
    except ValueError:
        return f"signal {number}"


def _note_end(started: _Started) -> None:
    started.ended_at = time.monotonic()
    started.config = _Config()  # nobody lists it any more, and it may be large
    if started.timer is not None:
        started.timer.cancel()
