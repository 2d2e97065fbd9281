"""What is kept of the logs, and what they cost: memory, disk, a full disk."""

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.leaks import descriptors

from cove import AsyncSandbox
from cove.api import Process
from cove.model import Exit, Gap, LogEvent, Output, ProcessStatus
from cove.runtime import log, processes

pytestmark = [pytest.mark.anyio, pytest.mark.pure]


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LIMIT_BYTES", 200_000)
    monkeypatch.setattr(log, "WINDOW_BYTES", 10_000)
    monkeypatch.setattr(log, "SEGMENT_BYTES", 20_000)


async def all_events(process: Process) -> list[LogEvent]:
    return [event async for event in process.logs()]


def sizes(events: list[LogEvent]) -> tuple[int, int]:
    """How many bytes were missed, how many were seen."""
    missed = sum(event.bytes for event in events if isinstance(event, Gap))
    return missed, sum(len(event.data) for event in events if isinstance(event, Output))


def segment_files() -> list[str]:
    return [name for name in descriptors().values() if "/logs/" in name]


async def settled(*all_processes: Process) -> None:
    """What has to leave memory has left it."""
    async with asyncio.timeout(30):
        while any(process.log._is_flushing for process in all_processes):  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)


async def no_segment_files() -> None:
    """Files are closed in a thread, soon."""
    async with asyncio.timeout(30):
        while segment_files():
            await asyncio.sleep(0.001)


@pytest.mark.usefixtures("small_logs")
async def test_a_log_keeps_its_share_of_the_newest_bytes_and_says_what_is_gone() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("seq 1000000")
        await process.wait()
        await settled(process)
        events = await all_events(process)
        missed, seen = sizes(events)
        wanted = b"".join(b"%d\n" % number for number in range(1, 1_000_001))
        assert isinstance(events[0], Gap)
        assert missed + seen == len(wanted)
        assert seen >= 190_000
        assert b"".join(event.data for event in events if isinstance(event, Output)) == wanted[missed:]
        result = await process.output()
        assert result.truncated
        assert result.stdout_bytes == wanted[missed:]


@pytest.mark.usefixtures("small_logs")
async def test_a_reader_that_stays_away_gets_one_gap_and_then_the_rest() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo first; read; head -c 10000000 /dev/zero; echo last >&2", stdin=True)
        reader = process.logs()
        assert await anext(reader) == Output("stdout", b"first\n", "6")
        await process.close_stdin()
        await process.wait()
        await settled(process)
        events = [event async for event in reader]
        assert [type(event) for event in events].count(Gap) == 1
        assert isinstance(events[0], Gap)
        assert sum(sizes(events)) == 10_000_005
        assert isinstance(events[-1], Exit)


@pytest.mark.usefixtures("small_logs")
async def test_over_the_sandboxs_share_the_output_of_ended_processes_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 300_000)
    async with AsyncSandbox.create() as sandbox:
        running = await sandbox.start_process("head -c 99996 /dev/zero; echo end; sleep 1000")
        await running.wait_for_log("end")
        ended = []
        for _ in range(5):
            ended.append(await sandbox.start_process("head -c 100000 /dev/zero"))
            await ended[-1].wait()
        everyone = [running, *ended]
        await settled(*everyone)
        assert sum(process.log.disk_bytes for process in everyone) <= 300_000  # type: ignore[attr-defined]
        assert sizes([event async for event in running.logs(follow=False)]) == (0, 100_000)
        kept = [sizes(await all_events(process)) for process in ended]
        assert [sum(pair) for pair in kept] == [100_000] * 5
        assert kept[0][0] > 50_000
        assert kept[-1] == (0, 100_000)


@pytest.mark.usefixtures("small_logs")
async def test_one_process_over_the_sandboxs_share_loses_its_oldest_output_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 50_000)
    async with AsyncSandbox.create() as sandbox:
        started = [await sandbox.start_process("read; head -c 3000000 /dev/zero", stdin=True) for _ in range(3)]
        readers = [asyncio.ensure_future(all_events(process)) for process in started]
        late = [process.logs() for process in started]
        for process in started:
            await process.close_stdin()
        for events in await asyncio.gather(*readers):
            assert sum(sizes(events)) == 3_000_000
        for reader in late:
            assert sum(sizes([event async for event in reader])) == 3_000_000


@pytest.mark.usefixtures("small_logs")
async def test_forgotten_processes_keep_no_file_open() -> None:
    async with AsyncSandbox.create() as sandbox:
        for _ in range(5):
            process = await sandbox.start_process("head -c 100000 /dev/zero")
            await process.output()
        assert segment_files()
        assert await sandbox.cleanup_processes() == 5
        await no_segment_files()


@pytest.mark.usefixtures("small_logs")
async def test_a_process_forgotten_while_its_last_output_is_written_keeps_no_file_open() -> None:
    held = []
    async with AsyncSandbox.create() as sandbox:
        for turns in range(30):
            process = await sandbox.start_process("head -c 60000 /dev/zero", keep=turns % 2 == 0)
            held.append(process)
            await process.wait()
            for _ in range(turns // 2):
                await asyncio.sleep(0)
            await sandbox.cleanup_processes()
            assert sum(sizes(await all_events(process))) == 60_000
        await no_segment_files()


@pytest.mark.usefixtures("small_logs")
async def test_a_reader_of_a_process_that_is_forgotten_meanwhile_gets_a_gap_and_the_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("head -c 100000 /dev/zero")
        await process.output()
        reader = process.logs()
        first = await anext(reader)
        await sandbox.cleanup_processes()
        events = [first, *[event async for event in reader]]
        assert sum(sizes(events)) == 100_000
        assert isinstance(events[-1], Exit)


@pytest.mark.usefixtures("small_logs")
async def test_destroying_a_sandbox_while_its_logs_are_written_leaves_nothing() -> None:
    for turns in range(10):
        async with AsyncSandbox.create() as sandbox:
            started = [await sandbox.start_process("yes") for _ in range(3)]
            readers = [asyncio.ensure_future(all_events(process)) for process in started]
            await started[0].wait_for_log("y")
            for _ in range(turns):
                await asyncio.sleep(0)
            await sandbox.destroy()
            for events in await asyncio.gather(*readers):
                assert isinstance(events[-1], Exit)


@pytest.mark.usefixtures("small_logs")
async def test_a_write_that_fails_is_a_gap_and_the_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third write finds no space."""
    count = 0
    write = log._write_at

    def fail_sometimes(descriptor: int, position: int, chunks: list[bytes]) -> None:
        nonlocal count
        count += 1
        if count % 3 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor, position, chunks)

    monkeypatch.setattr(log, "_write_at", fail_sometimes)
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("read; head -c 1000000 /dev/zero; echo end >&2", stdin=True)
        live = asyncio.ensure_future(all_events(process))
        await asyncio.sleep(0)
        await process.close_stdin()
        assert (await process.wait(timeout=60)).exit_code == 0
        assert count >= 3
        for events in (await live, await all_events(process)):
            assert sum(sizes(events)) == 1_000_004
            assert isinstance(events[-1], Exit)
        assert (await process.output()).stderr in ("end\n", "")


@contextmanager
def tiny_disk(path: Path, size: int) -> Iterator[None]:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small filesystem cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small filesystem")
@pytest.mark.usefixtures("small_logs")
async def test_a_full_disk_is_a_gap_and_the_process_goes_on() -> None:
    async with AsyncSandbox.create() as sandbox:
        with tiny_disk(sandbox._place.logs, 65536):  # type: ignore[attr-defined]
            process = await sandbox.start_process("head -c 1000000 /dev/zero; echo end >&2; read", stdin=True)
            await process.wait_for_log("end", timeout=60)
            assert process.status is ProcessStatus.RUNNING
            await process.close_stdin()
            events = await all_events(process)
            assert isinstance(events[0], Gap)
            assert sum(sizes(events)) == 1_000_004
            assert (await sandbox.exec("echo fine")).ok
            await sandbox.cleanup_processes()


MEMORY = """
import asyncio, json, os, sys
from cove import AsyncSandbox

def reset_peak():
    open("/proc/self/clear_refs", "w").write("5")
    return peak()

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

async def slow_reader(process):
    async for event in process.logs():
        await asyncio.sleep(0.02)

async def main(size, reader):
    async with AsyncSandbox.create() as sandbox:
        await (await sandbox.start_process("echo warm")).output()
        before = reset_peak()
        process = await sandbox.start_process(f"head -c {size} /dev/zero; yes | head -c {size // 100}")
        slow = asyncio.ensure_future(slow_reader(process)) if reader else None
        end = await process.wait()
        print(json.dumps([end.exit_code, peak() - before]))
        if slow is not None:
            slow.cancel()

asyncio.run(main(int(sys.argv[1]), sys.argv[2] == "slow"))
"""


@pytest.mark.parametrize("reader", ["none", "slow"])
async def test_a_gigabyte_of_output_costs_little_memory(reader: str, other_home: Path) -> None:
    arguments = [sys.executable, "-c", MEMORY, str(10**9), reader]
    environment = {**os.environ, "COVE_HOME": str(other_home)}
    answer = await asyncio.to_thread(
        subprocess.run, arguments, stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    exit_code, growth = json.loads(answer.stdout)
    assert exit_code == 0
    assert growth < 64 << 20
