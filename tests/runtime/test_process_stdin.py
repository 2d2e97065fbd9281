"""What is written to a process's standard input arrives whole, in order, and never waits for ever."""

import asyncio
import hashlib
import os

import pytest
from support.cancellation import cancel_after

from cove import AsyncSandbox
from cove.api import Process
from cove.errors import ProcessExitedBeforeReady, ValidationFailed
from cove.local.pipe import Stdin
from cove.model import ProcessStatus

pytestmark = pytest.mark.anyio

# More than any pipe holds.
LARGE = 3_000_000


async def test_text_and_bytes_arrive_as_they_were_written() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("cat", stdin=True)
        await process.write_stdin("grüße\n")
        await process.write_stdin(b"\0\xff\r\n")
        await process.write_stdin(b"")
        await process.close_stdin()
        assert (await process.output()).stdout_bytes == "grüße\n".encode() + b"\0\xff\r\n"


async def test_standard_input_can_be_opened_by_name() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("cat /dev/stdin", stdin=True)
        await process.write_stdin("by name")
        await process.close_stdin()
        result = await process.output()
        assert (result.stdout, result.stderr) == ("by name", "")


async def test_a_large_write_waits_for_the_reader_and_loses_nothing() -> None:
    data = bytes(range(256)) * (LARGE // 256)
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("until [ -e go ]; do sleep 0.01; done; sha256sum", stdin=True)
        write = asyncio.ensure_future(process.write_stdin(data))
        assert (await sandbox.exec("echo the loop goes on")).ok
        assert not write.done()
        await sandbox.exec("touch go")
        await write
        await process.close_stdin()
        assert (await process.output()).stdout.split()[0] == hashlib.sha256(data).hexdigest()


async def test_writers_take_turns_and_no_write_is_torn() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("cat", stdin=True)
        words = [bytes([65 + number]) * 200_000 for number in range(10)]
        await asyncio.gather(*(process.write_stdin(word) for word in words))
        await process.close_stdin()
        assert (await process.output()).stdout_bytes == b"".join(words)


async def test_close_is_the_end_of_file_and_can_be_repeated() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("cat; echo end", stdin=True)
        await process.close_stdin()
        await process.close_stdin()
        assert (await process.output()).stdout == "end\n"
        await process.close_stdin()
        with pytest.raises(ValidationFailed, match="closed"):
            await process.write_stdin("x")


async def test_a_write_after_close_is_refused_while_the_process_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("sleep 1000", stdin=True)
        await process.close_stdin()
        with pytest.raises(ValidationFailed, match="closed"):
            await process.write_stdin("x")
        assert process.status is ProcessStatus.RUNNING


async def test_a_process_that_closed_its_input_is_told_to_the_writer() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("exec <&-; echo closed; sleep 1000", stdin=True)
        await process.wait_for_log("closed")
        with pytest.raises(ValidationFailed, match="no longer reads"):
            await process.write_stdin("x" * LARGE)


@pytest.mark.parametrize("how", ["kill", "close", "destroy", "exit"])
async def test_a_writer_that_waits_is_let_go_when_nobody_will_read(how: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("until [ -e go ]; do sleep 0.01; done", stdin=True)
        writes = [asyncio.ensure_future(process.write_stdin(b"x" * LARGE)) for _ in range(3)]
        assert (await sandbox.exec("true")).ok
        assert not any(write.done() for write in writes)
        if how == "kill":
            await process.kill("KILL")
        elif how == "close":
            await process.close_stdin()
        elif how == "destroy":
            await sandbox.destroy()
        else:
            await sandbox.exec("touch go")
        async with asyncio.timeout(30):
            for answer in await asyncio.gather(*writes, return_exceptions=True):
                assert isinstance(answer, ValidationFailed if how == "close" else ProcessExitedBeforeReady)


async def write_on(process: Process) -> None:
    while True:
        await process.write_stdin("x")
        await asyncio.sleep(0)


async def test_a_writer_whose_process_is_killed_from_inside_is_told_how_it_ended() -> None:
    async with AsyncSandbox.create() as sandbox:
        for _ in range(10):
            process = await sandbox.start_process("sleep 1000", stdin=True)
            killing = asyncio.ensure_future(sandbox.exec("kill -9 -1"))
            with pytest.raises(ProcessExitedBeforeReady, match="signaled, exit code 137") as caught:
                await write_on(process)
            assert caught.value.exit_code == 137
            await killing


async def test_a_cancelled_writer_leaves_its_turn_to_the_next() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("until [ -e go ]; do sleep 0.01; done; tail -c 4", stdin=True)
        for turns in range(6):
            assert await cancel_after(turns, process.write_stdin(b"x" * LARGE))
        await sandbox.exec("touch go")
        await process.write_stdin("last")
        await process.close_stdin()
        assert (await process.output()).stdout == "last"


async def test_closing_at_any_moment_of_a_write_harms_nobody_else() -> None:
    """The descriptor's number is used again at once: nothing may still listen on it."""
    async with AsyncSandbox.create() as sandbox:
        for turns in range(12):
            process = await sandbox.start_process("cat > /dev/null", stdin=True)
            write = asyncio.ensure_future(process.write_stdin(b"x" * LARGE))
            for _ in range(turns):
                await asyncio.sleep(0)
            await process.close_stdin()
            other = await sandbox.start_process("cat", stdin=True)
            await asyncio.wait([write])
            assert write.exception() is None or isinstance(write.exception(), ValidationFailed)
            await other.write_stdin("fine")
            await other.close_stdin()
            assert (await other.output(timeout=30)).stdout == "fine"
            assert (await process.wait(timeout=30)).exit_code == 0


@pytest.mark.parametrize("data", [None, 7, ["x"], "\ud800"])
async def test_only_bytes_and_text_can_be_written(data: object) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("cat", stdin=True)
        with pytest.raises(ValidationFailed):
            await process.write_stdin(data)  # type: ignore[arg-type]
        assert process.status is ProcessStatus.RUNNING


async def test_a_process_without_standard_input_says_how_to_get_one() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("sleep 1000")
        for refused in (process.write_stdin("x"), process.close_stdin()):
            with pytest.raises(ValidationFailed, match="stdin=True"):
                await refused


async def test_a_pipe_closed_just_when_it_has_room_again_is_listened_on_no_longer() -> None:
    read, write = os.pipe()
    loop = asyncio.get_running_loop()
    stdin = Stdin(write)
    writing = asyncio.ensure_future(stdin.write(b"x" * LARGE))
    await asyncio.sleep(0)
    stdin._on_writable()
    stdin.close()
    assert not loop.remove_writer(write)
    with pytest.raises(ValidationFailed):
        await writing
    os.close(read)
