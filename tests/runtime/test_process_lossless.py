"""A reader that loses nothing: the process waits for it."""

from contextlib import aclosing

import pytest

from cove import AsyncSandbox, Exit, Gap, Output
from cove.errors import ProcessWaitTimeout
from cove.runtime import log

pytestmark = pytest.mark.anyio


async def test_a_process_waits_for_a_lossless_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LIMIT_BYTES", 1 << 20)
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("seq 2000000")
        size = 0
        async for event in process.logs(lossless=True):
            assert not isinstance(event, Gap)
            if isinstance(event, Output):
                size += len(event.data)
                await sandbox.exec("true")  # slower than any program that prints
            elif isinstance(event, Exit):
                assert event.exit_code == 0
        assert size == sum(len(str(number)) + 1 for number in range(1, 2000001))


async def test_a_process_started_lossless_waits_for_its_first_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LIMIT_BYTES", 1 << 20)
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("seq 2000000; echo over >&2", lossless=True)
        with pytest.raises(ProcessWaitTimeout):
            await process.wait(0.5)
        async with aclosing(process.logs()) as others:  # of somebody who does not mind a gap
            await anext(others)
        with pytest.raises(ProcessWaitTimeout):
            await process.wait(0.5)
        events = [event async for event in process.logs(lossless=True)]
        assert not any(isinstance(event, Gap) for event in events)
        printed = b"".join(event.data for event in events if isinstance(event, Output) and event.stream == "stdout")
        assert printed == b"".join(b"%d\n" % number for number in range(1, 2000001))


async def test_output_is_a_reader_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("head -c 5000000 /dev/zero", lossless=True)
        assert len((await process.output(timeout=30)).stdout_bytes) == 5000000


async def test_a_process_that_nobody_reads_ends_at_its_timeout() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("head -c 5000000 /dev/zero", lossless=True, timeout=0.5)
        assert (await process.wait(30)).outcome == "timed_out"


async def test_a_lossless_reader_that_leaves_lets_the_process_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LIMIT_BYTES", 1 << 20)
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("head -c 20000000 /dev/zero")
        async with aclosing(process.logs(lossless=True)) as events:
            await anext(events)
            assert (await process.refresh()).ended_at is None
        assert (await process.wait(30)).exit_code == 0


async def test_an_ordinary_reader_gets_a_gap_and_holds_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LIMIT_BYTES", 1 << 20)
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("head -c 50000000 /dev/zero")
        async with aclosing(process.logs()) as events:
            await anext(events)
            assert (await process.wait(30)).exit_code == 0
            assert any([isinstance(event, Gap) async for event in events])
