"""Processes whose output is known before they print it."""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from cove.api import Process
from cove.errors import ProcessNotFound, ProcessWaitTimeout
from cove.model import Exit, Gap, Outcome, Output, ProcessExit
from soak.hand import Hand, Step, Surface
from soak.model import OutputModel, TypedModel, check
from soak.possible import Violation

_MOST = 4
_MOST_CURSORS = 8
_LONG = 20.0
_FLOOD_BYTES = 72 << 20


@dataclass
class _Known:
    """A process, what it prints, and how it ends if nobody ends it."""

    process: Process
    output: OutputModel
    exit_code: int
    is_killed: bool = False
    cursors: list[tuple[str | None, int]] = field(default_factory=lambda: [(None, 0)])

    def check_end(self, outcome: Outcome, exit_code: int | None) -> None:
        is_own = (outcome, exit_code) == (Outcome.EXITED, self.exit_code)
        is_killed = self.is_killed and outcome in (Outcome.KILLED, Outcome.SIGNALED)
        check(f"the end of {self.process.id}", is_own or is_killed, (outcome, exit_code, self.exit_code))


@dataclass
class _Echo:
    """A `cat`: what is written comes back."""

    process: Process
    output: TypedModel


class Processes(Surface):
    """Started, read by cursor, waited for, killed."""

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        self._known: list[_Known] = []
        self._echo: _Echo | None = None

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        some = len(self._known) > 0
        return {
            self._start: 2 if len(self._known) < _MOST else 0,
            self._read: 5 * some,
            self._wait: 2 * some,
            self._kill: 1 * some,
            self._list: 0.5,
            self._start_echo: 0.3 if self._echo is None else 0,
            self._write: 1 if self._echo else 0,
            self._close: 0.2 if self._echo else 0,
            self._not_kept: 0.5,
            self._flood: 0.1,
        }

    def forget(self) -> None:
        """See Surface."""
        self._known.clear()
        self._echo = None

    def _plan(self) -> tuple[str, bytes, int]:
        """A command, what it prints, and its exit code."""
        choose, tag = self.hand.random, f"line-{self.hand.number()}"
        count, code = choose.choice((0, 1, 50, 400)), choose.randrange(4)
        printed = "".join(f"{tag}-{line}\n" for line in range(1, count + 1)).encode()
        if choose.random() < 0.5:
            count = choose.choice((3, 20, 60))
            printed = "".join(f"{tag}-{line}\n" for line in range(1, count + 1)).encode()
            return f"for n in $(seq {count}); do echo {tag}-$n; sleep 0.03; done; exit {code}", printed, code
        return f"seq -f {tag}-%.0f 1 {count}; exit {code}", printed, code

    async def _start(self) -> None:
        command, printed, code = self._plan()
        id = self.hand.new_id("process")
        answer = await self.hand.call(f"start {id} {command[:40]}", self.hand.sandbox.start_process(command, id=id))
        if answer.is_done:
            self._known.append(_Known(answer.get(), OutputModel(printed), code))

    async def _read(self) -> None:
        """From a cursor on, perhaps not to the end."""
        known = self.hand.random.choice(self._known)
        since, offset = self.hand.random.choice(known.cursors)
        follow, most = self.hand.random.random() < 0.5, self.hand.random.choice((1, 3, 1000))
        reading = _read(known.process, since, follow=follow, most=most)
        answer = await self.hand.call(f"logs {known.process.id} from {offset}", reading)
        if not answer.is_done:
            return
        data, cursor, end = answer.get()
        known.output.is_cut |= self.hand.is_disturbed
        known.output.observe(offset, data, is_end=end is not None)
        if cursor is not None:
            known.cursors.append((cursor, offset + len(data)))
            del known.cursors[1:-_MOST_CURSORS]
        if end is not None and not self.hand.is_disturbed:
            known.check_end(end.outcome, end.exit_code)

    async def _wait(self) -> None:
        known = self.hand.random.choice(self._known)
        timeout = self.hand.random.choice((0.0, 0.2, _LONG))
        answer = await self.hand.call(
            f"wait {known.process.id} {timeout}", known.process.wait(timeout=timeout), ProcessWaitTimeout
        )
        if answer.is_done:
            known.check_end(answer.get().outcome, answer.get().exit_code)
        elif answer.is_certain and timeout == _LONG:
            raise Violation(f"process {known.process.id} did not end in {_LONG} seconds")

    async def _kill(self) -> None:
        known = self.hand.random.choice(self._known)
        known.is_killed = known.output.is_cut = True
        signal = self.hand.random.choice(("KILL", "TERM"))
        kill = known.process.kill(signal) if self.hand.random.random() < 0.7 else known.process.terminate(grace=1.0)
        answer = await self.hand.call(f"kill {known.process.id} {signal}", kill)
        if answer.is_certain:
            await self._check_killed(known)

    async def _check_killed(self, known: _Known) -> None:
        answer = await self.hand.call(f"wait {known.process.id} killed", known.process.wait(timeout=_LONG))
        if answer.is_done:
            known.check_end(answer.get().outcome, answer.get().exit_code)
            self._known.remove(known)

    async def _list(self) -> None:
        answer = await self.hand.call("list-processes", self.hand.sandbox.list_processes())
        if answer.is_done:
            listed = {process.id for process in answer.get()}
            missing = {known.process.id for known in self._known} - listed
            check("every process is listed", not missing, missing)

    async def _start_echo(self) -> None:
        started = self.hand.sandbox.start_process(["cat"], id=self.hand.new_id("cat"), stdin=True)
        answer = await self.hand.call("start cat", started)
        if answer.is_done:
            self._echo = _Echo(answer.get(), TypedModel(b""))

    async def _write(self) -> None:
        assert self._echo is not None
        piece = f"<{self.hand.number()}>".encode()
        answer = await self.hand.call(f"write-stdin {piece!r}", self._echo.process.write_stdin(piece))
        self._echo.output.type(piece, is_certain=answer.is_done)

    async def _close(self) -> None:
        assert self._echo is not None
        echo, self._echo = self._echo, None
        answer = await self.hand.call("close-stdin", echo.process.close_stdin(), is_steady=True)
        if not answer.is_done:
            return
        read = await self.hand.call("logs cat", _read(echo.process, None, follow=True, most=1_000_000), is_steady=True)
        if read.is_done:
            data, _, end = read.get()
            if self.hand.is_disturbed:
                return
            echo.output.observe(data)
            check("cat ends with 0", end is not None and end.exit_code == 0, end)

    async def _not_kept(self) -> None:
        """A process that is forgotten at its end, read without loss."""
        tag = self.hand.new_id("fleeting")
        answer = await self.hand.call(f"start {tag}", self._run_and_read(f"seq -f {tag}-%.0f 1 100", tag))
        if answer.is_done and not self.hand.is_disturbed:
            expected = "".join(f"{tag}-{line}\n" for line in range(1, 101)).encode()
            check("all of a fleeting process's output", answer.get()[0] == expected, answer.value)

    async def _run_and_read(self, command: str, id: str) -> tuple[bytes, str | None, Exit | None]:
        process = await self.hand.sandbox.start_process(command, id=id, keep=False)
        try:
            return await _read(process, None, follow=True, most=1_000_000)
        except ProcessNotFound:
            # Nobody had come to read before it ended: it is forgotten as promised.
            return "".join(f"{id}-{line}\n" for line in range(1, 101)).encode(), None, None

    async def _flood(self) -> None:
        """More than a log keeps: what is not read is counted."""
        id = self.hand.new_id("flood")
        started = self.hand.sandbox.start_process(["head", "-c", str(_FLOOD_BYTES), "/dev/zero"], id=id, keep=False)
        answer = await self.hand.call(f"start {id}", started)
        if answer.is_done:
            counted = await self.hand.call(f"logs {id}", _count(answer.get()), ProcessNotFound)
            if counted.is_done and not self.hand.is_disturbed:
                check("every byte is read or counted as gone", counted.get() == _FLOOD_BYTES, counted.value)

    async def verify(self) -> None:
        """All of the output of all, and their ends."""
        for known in list(self._known):
            reading = _read(known.process, None, follow=True, most=1_000_000)
            answer = await self.hand.call(f"logs {known.process.id} whole", reading, is_steady=True)
            if answer.is_done:
                data, _, end = answer.get()
                known.output.is_cut |= self.hand.is_disturbed
                known.output.observe(0, data, is_end=end is not None)
                check("a followed log ends with the process", end is not None, known.process.id)
            end_answer = await self.hand.call(f"wait {known.process.id}", known.process.wait(), is_steady=True)
            if end_answer.is_done:
                record: ProcessExit = end_answer.get()
                known.check_end(record.outcome, record.exit_code)

    async def empty(self) -> None:
        """See Surface."""
        sandbox = self.hand.sandbox
        for work in (sandbox.kill_all_processes("KILL"), sandbox.cleanup_processes()):
            await self.hand.call("kill-all", work, is_steady=True)
        self.forget()


async def _count(process: Process) -> int:
    count = 0
    async with aclosing(process.logs()) as events:
        async for event in events:
            count += len(event.data) if isinstance(event, Output) else event.bytes if isinstance(event, Gap) else 0
    return count


async def _read(
    process: Process, since: str | None, *, follow: bool, most: int
) -> tuple[bytes, str | None, Exit | None]:
    """Standard output after the cursor, the cursor reached, and the end if it was reached; at most so many events."""
    data, cursor = bytearray(), since
    async with aclosing(process.logs(since=since, follow=follow)) as events:
        async for event in events:
            if isinstance(event, Gap):
                raise Violation(f"a gap of {event.bytes} bytes in the log of {process.id}")
            cursor = event.cursor
            if isinstance(event, Exit):
                return bytes(data), cursor, event
            assert isinstance(event, Output)
            data += event.data
            most -= 1
            if most <= 0:
                break
    return bytes(data), cursor, None
