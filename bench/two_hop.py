"""The floor of everything over HTTP: a gateway, a unix socket, and behind it answers that do nothing.

`python -m bench.two_hop behind SOCKET` and `python -m bench.two_hop before SOCKET` are the two processes; the second
prints its port.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

import uvloop

from cove.http import HttpServer, Request, Response, Upgrade
from cove.http.websocket import WebSocket, accept
from cove.server.gateway.relay import SocketRelay
from cove.server.gateway.upstream import Upstreams

_CHUNK = bytes(64 << 10)


@contextmanager
def two_hop() -> Generator[str, None, None]:
    """The address of the first hop."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "socket")
        with _program("behind", path), _program("before", path) as (process, line):
            yield f"http://127.0.0.1:{line}"
            assert process.poll() is None


@contextmanager
def _program(role: str, path: str) -> Generator[tuple[subprocess.Popen[str], str], None, None]:
    command = [sys.executable, "-m", "bench.two_hop", role, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def _answer(request: Request) -> Response | Upgrade:
    if request.path == "/stream":
        return Response(200, (), _stream(int(request.query)))
    if request.path == "/echo":
        return accept(request, _echo)
    return Response(200, (), b"")


async def _stream(size: int) -> AsyncGenerator[bytes, None]:
    for _ in range(size // len(_CHUNK)):
        yield _CHUNK


async def _echo(websocket: WebSocket) -> None:
    while (message := await websocket.receive()) is not None:
        await websocket.send(message)


async def _serve(role: str, path: str) -> None:
    if role == "behind":
        behind = socket.socket(socket.AF_UNIX)
        behind.bind(path)
        async with HttpServer(_answer, [behind]):
            print("ready", flush=True)
            await asyncio.Event().wait()
    else:
        upstreams = Upstreams()
        before = socket.create_server(("127.0.0.1", 0))
        async with HttpServer(lambda _: SocketRelay(upstreams, path), [before]):
            print(before.getsockname()[1], flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1], sys.argv[2]))
