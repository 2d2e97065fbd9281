"""A gateway that is killed and started again is no event for those who follow what a sandbox prints."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.servers import Server, serving
from support.viewers import watch

from cove import AsyncSandbox, ConnectionLost, Exit, Gap, Output
from cove.api import Process, Terminal
from soak.server import free_port

pytestmark = pytest.mark.anyio

COUNT = """
import sys, time
lines, batch, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
sys.stdin.readline()
for start in range(0, lines, batch):
    sys.stdout.write("".join(f"{number}\\n" for number in range(start, start + batch)))
    sys.stdout.flush()
    time.sleep(pause)
"""
LOG_LINES = 1_000_000
# A terminal keeps a megabyte: what it prints while no server is there must be less.
TERMINAL_LINES = 150_000


def counted(lines: int) -> bytes:
    return "".join(f"{number}\n" for number in range(lines)).encode()


@dataclass
class Mortal:
    """A server that can be killed and is started again at the same address."""

    home: Path
    port: int
    servers: ExitStack
    server: Server

    async def die(self) -> None:
        await asyncio.to_thread(self.server.kill_all)

    async def come_back(self) -> None:
        await asyncio.to_thread(self.start)

    def start(self) -> None:
        self.server = self.servers.enter_context(serving(self.home, "--port", str(self.port)))


@asynccontextmanager
async def mortal(home: Path) -> AsyncIterator[tuple[Mortal, AsyncSandbox]]:
    port = free_port()
    with ExitStack() as servers:
        server = servers.enter_context(serving(home, "--port", str(port)))
        sandbox = await server.create()
        yield Mortal(home, port, servers, server), sandbox
        await sandbox.destroy()


async def follow_log(process: Process, begun: asyncio.Event) -> bytes:
    seen = bytearray()
    async for event in process.logs():
        assert not isinstance(event, Gap)
        if isinstance(event, Exit):
            return bytes(seen)
        seen += event.data
        begun.set()
    raise AssertionError("the log has no end")


async def follow_terminal(terminal: Terminal, begun: asyncio.Event) -> bytes:
    seen = bytearray()
    async with watch(terminal) as viewer:
        while not isinstance(event := await viewer.next(), Exit):
            assert not isinstance(event, Gap)
            if isinstance(event, Output):
                seen += event.data
                begun.set()
    return bytes(seen)


async def test_followers_of_logs_and_terminals_lose_and_double_no_byte(other_home: Path) -> None:
    async with mortal(other_home) as (server, sandbox):
        begun = [asyncio.Event() for _ in range(3)]
        log_command = ["python3", "-c", COUNT, str(LOG_LINES), "1000", "0.005"]
        shell = f'stty raw -echo; exec python3 -c "$0" {TERMINAL_LINES} 2000 0.1'
        process = await sandbox.start_process(log_command, stdin=True)
        terminal = await sandbox.terminal(shell=["bash", "-c", shell, COUNT])
        followers = [
            asyncio.ensure_future(follow_log(process, begun[0])),
            asyncio.ensure_future(follow_log(await sandbox.get_process(process.id), begun[1])),
            asyncio.ensure_future(follow_terminal(terminal, begun[2])),
        ]
        await process.write_stdin("go\n")
        async with terminal.connect() as keyboard:
            await keyboard.write("go\n")
        for _ in range(2):
            await asyncio.gather(*(event.wait() for event in begun))
            for event in begun:
                event.clear()
            await server.die()
            await server.come_back()
        *logs, shown = await asyncio.gather(*followers)
        digests = [hashlib.sha256(seen).hexdigest() for seen in (*logs, shown.replace(b"go\r\n", b""))]
        expected = [hashlib.sha256(counted(lines)).hexdigest() for lines in (LOG_LINES, LOG_LINES, TERMINAL_LINES)]
        assert digests == expected


async def test_waits_go_on_and_a_command_under_way_is_told_to_be_uncertain(other_home: Path) -> None:
    async with mortal(other_home) as (server, sandbox):
        process = await sandbox.start_process("read line; echo got $line; exit 3", stdin=True)
        session = await sandbox.create_session()
        ending = asyncio.ensure_future(process.wait())
        matching = asyncio.ensure_future(process.wait_for_log("got more"))
        running = asyncio.ensure_future(session.exec("x=kept; touch /tmp/started; sleep 1000"))
        await sandbox.exec("until [ -e /tmp/started ]; do sleep 0.01; done", timeout=20)
        await server.die()
        with pytest.raises(ConnectionLost):
            await running
        await server.come_back()
        await process.write_stdin("more\n")
        end, match = await asyncio.gather(ending, matching)
        assert (end.exit_code, match.line) == (3, "got more")
        assert (await session.exec("echo $x", timeout=20)).stdout == "kept\n"


async def test_files_are_read_again_while_the_server_is_away(other_home: Path) -> None:
    async with mortal(other_home) as (server, sandbox):
        await sandbox.files.write("dir/file", b"kept")
        await server.die()

        async def stream() -> bytes:
            return b"".join([chunk async for chunk in sandbox.files.read_stream("dir/file", start=1)])

        async def archive() -> bytes:
            return b"".join([chunk async for chunk in sandbox.files.read_archive("dir")])

        calls = (sandbox.files.read("dir/file"), sandbox.files.read_text("dir/file"), stream(), archive())
        reading = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
        await server.come_back()
        content, text, rest, packed = await asyncio.gather(*reading)
        assert (content, text, rest) == (b"kept", "kept", b"ept")
        assert b"kept" in packed


async def test_a_read_that_is_broken_off_begins_again_and_a_stream_says_so(other_home: Path) -> None:
    size = 64 << 20
    async with mortal(other_home) as (server, sandbox):
        (await sandbox.exec(f"head -c {size} /dev/zero > file")).check()
        stream = sandbox.files.read_stream("file")
        await anext(stream)
        reading = asyncio.ensure_future(sandbox.files.read("file"))
        await asyncio.sleep(0)
        await server.die()
        with pytest.raises(ConnectionLost):
            async for _ in stream:
                pass
        await server.come_back()
        assert len(await reading) == size
