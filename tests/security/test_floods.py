"""Whatever a channel from inside is flooded with, no callback takes more than 10 ms of the loop's thread."""

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from pathlib import Path

import pytest
from support.fake_agent import Peer
from support.loop_time import bounded_callbacks
from support.stage import Stage

from cove import AsyncSandbox
from cove.agent.protocol import LIMIT, MAX_DESCRIPTORS
from cove.errors import CoveError
from cove.linux.packets import socket_pair
from cove.local.threads import close_in_thread
from cove.runtime.link import Link

pytestmark = pytest.mark.anyio

LARGE_BYTES = 300 << 20
# What a flood may cost beyond what is there already: some packets, a scroll-back, the buffers of a connection.
MEMORY_BYTES = 32 << 20
FLOOD_SECONDS = 0.4


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def bounded() -> Iterator[AbstractContextManager[None]]:
    """Callbacks and memory stay within their budgets."""
    return map(within_memory, bounded_callbacks())


@contextmanager
def within_memory(attempt: AbstractContextManager[None]) -> Iterator[None]:
    before = memory_bytes()
    with attempt:
        yield
    assert memory_bytes() < before + MEMORY_BYTES


@contextmanager
def flooding(sock: socket.socket, make: Callable[[int], tuple[bytes, list[int]]]) -> Iterator[None]:
    """Send one packet after the other as fast as the socket takes them, from another thread."""
    sock.settimeout(None)

    def send(number: int) -> None:
        drop_requests(sock)
        packet, descriptors = make(number)
        try:
            Peer(sock).send(packet, descriptors=tuple(descriptors))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def flood() -> None:
        with suppress(OSError):  # the runtime has closed its end: it has had enough
            for number in itertools.count(1):
                send(number)

    first = threading.Thread(target=send, args=(0,))
    first.start()
    first.join()  # so the loop is certainly the last one to hold what was sent
    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        thread.join()


def drop_requests(sock: socket.socket) -> None:
    with suppress(BlockingIOError):
        while sock.recv(LIMIT, socket.MSG_DONTWAIT):
            pass


def says(packet: bytes) -> Callable[[int], tuple[bytes, list[int]]]:
    return lambda _: (packet, [])


def large_file() -> int:
    """A file in memory that whoever closes it last has to free."""
    descriptor = os.memfd_create("large")
    os.posix_fallocate(descriptor, 0, LARGE_BYTES)
    return descriptor


def with_large_files(packet: bytes, count: int) -> Callable[[int], tuple[bytes, list[int]]]:
    def make(_: int) -> tuple[bytes, list[int]]:
        first = large_file()
        return packet, [first, *(os.dup(first) for _ in range(count - 1))]

    return make


LAUNCHER_FLOODS = {
    "stops": says(b"stopped"),
    "separators": says(b"\0" * LIMIT),
    "large messages": says(b"started\0" + b"1" * (LIMIT - 8)),
    "replies": says(b"signaled\x001"),
    "exits": says(b"exit\x000\x000\x000\x000\x000"),
    "descriptors": with_large_files(b"stopped", MAX_DESCRIPTORS),
    "more descriptors than agreed": with_large_files(b"stopped", 253),
    "descriptors alone": with_large_files(b"", 1),
}


@pytest.mark.parametrize("name", LAUNCHER_FLOODS)
async def test_a_launcher_floods(name: str) -> None:
    for attempt in bounded():
        async with Stage() as stage:
            with attempt:
                with flooding(stage.peer.sock, LAUNCHER_FLOODS[name]):
                    await asyncio.sleep(FLOOD_SECONDS)
                stage.launcher.close()
                await asyncio.sleep(0)


async def test_a_launcher_that_reports_stops_without_end_is_heard_once() -> None:
    for attempt in bounded():
        async with Stage() as stage:
            stops: list[None] = []
            stage.process.when_stopped(lambda stops=stops: stops.append(None))  # type: ignore[misc]  # bound here
            with attempt, flooding(stage.peer.sock, says(b"stopped")):
                await asyncio.sleep(FLOOD_SECONDS)
            assert len(stops) == 1


INIT_FLOODS = {
    "answers": lambda number: (b"ok\0%d\0" % (number + 1) + b"x" * 60000, []),
    "answers of separators": lambda number: (b"ok\0%d" % (number + 1) + b"\0" * 60000, []),
    "errors": lambda number: (b"error\0%d\x002" % (number + 1), []),
    "separators": says(b"\0" * LIMIT),
    "hellos": says(b"hello"),
    "descriptors": with_large_files(b"ok\x001", MAX_DESCRIPTORS),
    "more descriptors than agreed": with_large_files(b"ok\x001", 253),
    "descriptors alone": with_large_files(b"", 1),
    "a descriptor that nobody waits for": with_large_files(b"ok\x001\0", 1),
}


@pytest.mark.parametrize("name", INIT_FLOODS)
async def test_init_floods(name: str) -> None:
    for attempt in bounded():
        ours, theirs = socket_pair()
        lost: list[str] = []
        link = Link(ours, lost.append)
        Peer(theirs).send(b"hello")
        await link.hello
        requests = [asyncio.ensure_future(link.request_content(b"read", b"%d" % n, subject="x")) for n in range(200)]
        with attempt:
            await asyncio.sleep(0)
            requests[0].cancel()
            with flooding(theirs, INIT_FLOODS[name]):
                await asyncio.sleep(FLOOD_SECONDS)
            link.close()
            await asyncio.gather(*requests, return_exceptions=True)
        await close_in_thread([])
        theirs.close()


# What is printed, and how much of it is looked at.
TERMINAL_FLOODS = {
    "lines": ("yes", 20 << 20),
    "one line": ("tr '\\0' x < /dev/zero", 20 << 20),
    "escape sequences": ("tr '\\0' '\\033' < /dev/zero", 20 << 20),
    "binary": ("cat /dev/urandom", 20 << 20),
    "single bytes": ("while :; do printf x; done", 100 << 10),
}


@pytest.mark.parametrize("name", TERMINAL_FLOODS)
async def test_a_terminal_floods(name: str) -> None:
    command, most = TERMINAL_FLOODS[name]
    async with AsyncSandbox.create() as sandbox:
        for attempt in bounded():
            terminal = await sandbox.terminal(shell=["bash", "-c", command])
            async with terminal.connect() as connection, aclosing(connection.events()) as events:
                with attempt:
                    async for event in events:
                        if int(event.cursor) > most:
                            break
                    await terminal.destroy()


SERVER = """
import socket, sys
server = socket.create_server(('127.0.0.1', 3000))
print('up', flush=True)
data = bytes(1 << 20) if sys.argv[1] == 'bytes' else b'HTTP/1.1 200 OK\\r\\nx: ' + b'y' * (1 << 20)
while True:
    connection, _ = server.accept()
    try:
        while True:
            connection.sendall(data)
    except OSError:
        connection.close()
"""


@pytest.mark.parametrize("kind", ["bytes", "a line without an end"])
async def test_a_port_floods(kind: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        server = await sandbox.start_process(["python3", "-I", "-c", SERVER, kind])
        await server.wait_for_log("up", timeout=30)
        for attempt in bounded():
            with attempt:
                async with sandbox.ports.connect(3000) as connection:
                    seen = 0
                    while seen < 200 << 20:
                        seen += len(await connection.read(1 << 20))
                with suppress(CoveError):
                    await server.wait_for_port(3000, timeout=1)


async def test_what_a_process_prints_floods() -> None:
    async with AsyncSandbox.create() as sandbox:
        for attempt in bounded():
            with attempt:
                process = await sandbox.start_process("yes | tr -d '\\n'", keep=False)
                async with aclosing(process.logs()) as events:
                    async for event in events:
                        if int(event.cursor) > 100 << 20:
                            break
                await process.kill("KILL")
