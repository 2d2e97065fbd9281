"""Every reader of a process's log sees exactly the bytes after its cursor, or is told how many are gone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.programs import run_program

from cove import AsyncSandbox
from cove.api import Process
from cove.errors import ValidationFailed
from cove.model import Exit, Gap, LogEvent, Output
from cove.runtime import log

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

# Told "stream size" a line, writes as many bytes of a known sequence to that stream.
WRITER = """
import os, sys
at = [0, 0]
for line in sys.stdin:
    stream, size = map(int, line.split())
    data = bytes((at[stream] + i) % 251 for i in range(size))
    at[stream] += size
    while data:
        data = data[os.write(stream + 1, data):]
"""


@dataclass
class Truth:
    """What the log was given, in its order."""

    streams: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)

    def append(self, stream: int, data: bytes) -> None:
        self.streams += bytes([stream]) * len(data)
        self.data += data

    def of(self, stream: int) -> bytes:
        return bytes(byte for at, byte in zip(self.streams, self.data, strict=True) if at == stream)


@dataclass
class Reader:
    """Someone who reads, goes away, and comes back with the last cursor."""

    process: Process
    cursor: int
    pace: int
    events: list[LogEvent] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None

    def connect(self) -> None:
        if self.task is None:
            self.task = asyncio.ensure_future(self._read())

    async def disconnect(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
            self.task = None

    async def _read(self) -> None:
        since = self.events[-1].cursor if self.events else str(self.cursor)
        async with aclosing(self.process.logs(since=since)) as events:
            async for event in events:
                self.events.append(event)
                for _ in range(self.pace):
                    await asyncio.sleep(0)

    def check(self, truth: Truth) -> int:
        """How many bytes it missed."""
        at, missed = self.cursor, 0
        for event in self.events:
            start, at = at, int(event.cursor)
            if isinstance(event, Output):
                assert at - start == len(event.data) > 0
                assert event.data == truth.data[start:at]
                assert set(truth.streams[start:at]) == {0 if event.stream == "stdout" else 1}
            elif isinstance(event, Gap):
                assert at - start == event.bytes > 0
                missed += event.bytes
            else:
                assert at == start == len(truth.data)
                assert event is self.events[-1]
        return missed


WRITES = st.tuples(st.just("write"), st.sampled_from([0, 1]), st.integers(1, 6000), st.integers(1, 8))
ACTIONS = st.one_of(
    WRITES,
    WRITES,
    st.tuples(st.just("arrive"), st.floats(0, 1), st.integers(0, 40)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("return"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.integers(0, 60)),
    st.tuples(st.just("settle")),
)


@pytest.mark.parametrize("limit", [8_000, 1 << 20])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, min_size=5, max_size=30))
async def test_every_reader_sees_the_bytes_after_its_cursor_or_a_gap_that_accounts_for_them(
    limit: int, actions: list[tuple[object, ...]]
) -> None:
    truth = Truth()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"LIMIT_BYTES": limit, "WINDOW_BYTES": 2000, "SEGMENT_BYTES": 3000}.items():
            patch.setattr(log, name, value)
        patch.setattr(log, "ENDED_WINDOW_BYTES", 500)
        take = log.Log.append

        def append(self: log.Log, stream: int, data: bytes) -> None:
            truth.append(stream, data)
            take(self, stream, data)

        patch.setattr(log.Log, "append", append)
        async with AsyncSandbox.create() as sandbox:
            process = await sandbox.start_process(["python3", "-ISc", WRITER], stdin=True)
            written = [0, 0]
            readers = [Reader(process, 0, 0)]
            for action in actions:
                await act(action, process, readers, written, truth)
            await process.close_stdin()
            for reader in readers:
                reader.connect()
            late = Reader(process, 0, 0)
            late.connect()
            async with asyncio.timeout(60):
                await asyncio.gather(*(reader.task for reader in [*readers, late] if reader.task is not None))
    for stream in (0, 1):
        assert truth.of(stream) == bytes(at % 251 for at in range(written[stream]))
    for reader in [*readers, late]:
        missed = reader.check(truth)
        assert isinstance(reader.events[-1], Exit)
        if limit > len(truth.data) * 6:
            assert missed == 0


async def act(
    action: tuple[object, ...], process: Process, readers: list[Reader], written: list[int], truth: Truth
) -> None:
    match action:
        case ("write", int(stream), int(size), int(times)):
            for _ in range(times):
                written[stream] += size
                await process.write_stdin(f"{stream} {size}\n")
        case ("arrive", float(share), int(pace)):
            readers.append(Reader(process, int(len(truth.data) * share), pace))
            readers[-1].connect()
        case ("leave", int(choice)):
            await readers[choice % len(readers)].disconnect()
        case ("return", int(choice)):
            readers[choice % len(readers)].connect()
        case ("wait", int(turns)):
            for _ in range(turns):
                await asyncio.sleep(0)
        case _:
            async with asyncio.timeout(60):
                while len(truth.data) < sum(written):
                    await asyncio.sleep(0)


async def text(events: AsyncGenerator[LogEvent, None]) -> bytes:
    return b"".join([event.data async for event in events if isinstance(event, Output)])


async def test_a_log_is_readable_any_number_of_times_after_the_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo out; echo err >&2; exit 3")
        await process.wait()
        first = [event async for event in process.logs()]
        assert sorted(event.data for event in first if isinstance(event, Output)) == [b"err\n", b"out\n"]
        assert first[-1] == Exit(process.outcome, 3, None, "8")  # type: ignore[arg-type]
        assert [event async for event in process.logs(follow=False)] == first
        assert [event async for event in (await sandbox.get_process(process.id)).logs(since="8")] == [first[-1]]


async def test_output_comes_while_the_process_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("while read line; do echo $line; done", stdin=True)
        async with aclosing(process.logs()) as events:
            for number in range(20):
                await process.write_stdin(f"{number}\n")
                assert await anext(events) == Output(
                    "stdout", b"%d\n" % number, str(len("".join(f"{n}\n" for n in range(number + 1))))
                )


async def test_without_follow_a_reader_gets_what_is_there_and_leaves() -> None:
    async with AsyncSandbox.create() as sandbox:
        quiet = await sandbox.start_process("echo here; sleep 1000")
        await quiet.wait_for_log("here")
        assert [event async for event in quiet.logs(follow=False)] == [Output("stdout", b"here\n", "5")]
        assert [event async for event in quiet.logs(since="5", follow=False)] == []
        busy = await sandbox.start_process("yes")
        await busy.wait_for_log("y")
        async with asyncio.timeout(30):
            async for event in busy.logs(follow=False):
                assert not isinstance(event, Exit)
                await (await sandbox.start_process("true")).wait()


@pytest.mark.parametrize("cursor", ["-1", "abc", "1.5", "", " 1", "6", "9" * 30, 1, b"1"])
async def test_a_cursor_that_no_event_carried_is_refused(cursor: object) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo here")
        await process.wait()
        with pytest.raises(ValidationFailed):
            await anext(process.logs(since=cursor))  # type: ignore[arg-type]


async def test_a_reader_may_come_back_between_any_two_bytes() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("printf 0123456789; sleep 1000")
        await process.wait_for_log("9")
        for cursor in range(11):
            assert await text(process.logs(since=str(cursor), follow=False)) == b"0123456789"[cursor:]


async def test_neither_a_slow_nor_a_vanished_reader_holds_anybody_up() -> None:
    size = 20_000_000
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(f"head -c {size} /dev/zero")
        slow = process.logs()
        first = await anext(slow)
        vanished = asyncio.ensure_future(text(process.logs()))
        await asyncio.sleep(0)
        vanished.cancel()
        async with asyncio.timeout(60):
            lengths = [len(data) for data in await asyncio.gather(*(text(process.logs()) for _ in range(5)))]
            await process.wait()
        assert lengths == [size] * 5
        assert isinstance(first, Output)
        assert len(first.data) + len(await text(slow)) == size


async def test_a_hundred_readers_see_the_same() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("read; seq 20000", stdin=True)
        readers = [asyncio.ensure_future(text(process.logs())) for _ in range(100)]
        await asyncio.sleep(0)
        await process.close_stdin()
        wanted = b"".join(b"%d\n" % number for number in range(1, 20001))
        assert all(data == wanted for data in await asyncio.gather(*readers))


async def test_bytes_of_any_kind_come_through_unchanged() -> None:
    every = bytes(range(256)) * 4000
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("tee /dev/stderr", stdin=True)
        writing = asyncio.ensure_future(process.write_stdin(every))
        await writing
        await process.close_stdin()
        result = await process.output()
        assert (result.stdout_bytes, result.stderr_bytes) == (every, every)


async def test_lines_and_no_lines_of_a_hundred_megabytes_come_through_whole() -> None:
    async with AsyncSandbox.create() as sandbox:
        for command in ("head -c 100000000 /dev/zero", "yes 'a line as programs print them' | head -c 100000000"):
            process = await sandbox.start_process(command, keep=False)
            total = 0
            async for event in process.logs():
                assert not isinstance(event, Gap)
                total += len(getattr(event, "data", b""))
            assert total == 100_000_000


async def test_uvloop_streams_as_well(other_home: Path) -> None:
    program = """
        import asyncio, uvloop
        from cove import AsyncSandbox

        async def size(events):
            return sum([len(event.data) async for event in events if hasattr(event, "data")])

        async def main():
            async with AsyncSandbox.create() as sandbox:
                process = await sandbox.start_process("head -c 30000000 /dev/zero; wc -c", stdin=True)
                reader = asyncio.ensure_future(size(process.logs()))
                await process.write_stdin("x" * 1000000)
                await process.close_stdin()
                print(await reader, await size(process.logs(since="29000000")), process.exit_code)

        uvloop.run(main())
    """
    answer = await asyncio.to_thread(run_program, program, other_home)
    assert answer == "30000008 1000008 0"
