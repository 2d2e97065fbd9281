"""A pump takes exactly what is in the pipe, and never waits."""

import asyncio
import fcntl
import os

import pytest

from cove.runtime.pump import Pump

pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_pump_gives_every_chunk_and_closes_at_the_end() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    taken: list[bytes] = []
    pump = Pump(read, taken.append)
    os.write(write, b"one")
    await settle()
    os.write(write, b"two")
    os.close(write)
    await settle()
    assert (b"".join(taken), pump.is_open) == (b"onetwo", False)
    assert pump.finish() is None
    pump.close()


async def test_finish_takes_what_is_there_and_hands_the_pipe_back_while_someone_can_write() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    taken: list[bytes] = []
    pump = Pump(read, taken.append)
    os.write(write, b"before")
    assert pump.finish() == read
    os.write(write, b"after")
    await settle()
    assert (taken, pump.is_open) == ([b"before"], False)
    os.close(read)
    os.close(write)


async def test_a_paused_pump_reads_nothing_until_it_is_resumed() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    taken: list[bytes] = []
    pump = Pump(read, taken.append)
    pump.pause()
    pump.pause()
    os.write(write, b"x")
    await settle()
    assert taken == []
    pump.resume()
    pump.resume()
    await settle()
    assert taken == [b"x"]
    pump.pause()
    pump.close()
    pump.resume()
    os.close(write)


async def test_a_pipe_that_is_read_full_again_and_again_is_made_wider() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    pump = Pump(read, lambda data: None)
    before = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
    for _ in range(6):
        os.write(write, bytes(65536))
        await settle()
    assert fcntl.fcntl(write, fcntl.F_GETPIPE_SZ) > before
    pump.close()
    os.close(write)


async def test_finish_ends_when_somebody_else_empties_the_pipe() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
    taken: list[bytes] = []

    def steal(data: bytes) -> None:
        taken.append(data)
        os.read(read, 1 << 20)

    pump = Pump(read, steal)
    os.write(write, bytes(400_000))
    assert pump.finish() == read
    assert len(taken) == 1
    os.close(read)
    os.close(write)
