"""Our HTTP core beside uvicorn and aiohttp, as a server and as a relay to a unix socket.

Every server is a process of its own on uvloop and answers an empty request; the load comes from one client that
writes prepared bytes over kept-alive connections, so that what differs is the server. `python -m bench.http NAME
SOCKET` is one of the servers.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager

from bench.harness import Figure, Plan, Skipped, Unit, at_most, interleave

_CONNECTIONS = 16
_REQUEST = b"GET /v1/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer abcdefgh\r\nAccept: */*\r\n\r\n"


async def run(plan: Plan) -> list[Figure]:
    """CPU time per request of each server, and of each relay in front of the same server."""
    try:
        import uvicorn  # noqa: F401  # only the benchmark needs it
    except ImportError:
        raise Skipped("uvicorn is not installed: pip install uvicorn") from None
    with tempfile.TemporaryDirectory() as directory:
        behind = os.path.join(directory, "behind")
        with _server("ours", behind):
            relays = await _compare(plan, "relay", ("ours-relay", "aiohttp-relay"), behind)
    return [*await _compare(plan, "server", ("ours", "uvicorn", "aiohttp"), None), *relays]


async def _compare(plan: Plan, what: str, names: tuple[str, ...], behind: str | None) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        loads = []
        for name in names:
            path = os.path.join(directory, name)
            process = stack.enter_context(_server(name, path, behind))
            loads.append(_load(path, process.pid, plan.times(4000, 1600)))
        ours, *others = await interleave(loads, repetitions=plan.times(12, 4), warm_up=1)
    name = f"http {what}: CPU time of an empty request"
    return [
        Figure(name=name, unit=Unit.SECONDS, subject=ours, floor=other, floor_name=of, target=at_most(1.0))
        for of, other in zip(names[1:], others, strict=True)
    ]


@contextmanager
def _server(name: str, path: str, behind: str | None = None) -> Generator[subprocess.Popen[bytes], None, None]:
    command = [sys.executable, "-m", "bench.http", name, path, *([behind] if behind else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def _load(path: str, pid: int, requests: int) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        began = _cpu_seconds(pid)
        await asyncio.gather(*(_ask(path, requests // _CONNECTIONS) for _ in range(_CONNECTIONS)))
        return (_cpu_seconds(pid) - began) / requests

    return sample


def _cpu_seconds(pid: int) -> float:
    """Time on a processor, as the scheduler counts it: proc(5) has ticks only."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


async def _ask(path: str, times: int) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    for _ in range(times):
        writer.write(_REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def _serve(name: str, path: str, behind: str | None) -> None:
    if name == "uvicorn":
        await _serve_uvicorn(path)
    elif name.startswith("aiohttp"):
        await _serve_aiohttp(path, behind)
    else:
        await _serve_ours(path, behind)


async def _serve_ours(path: str, behind: str | None) -> None:
    import socket

    from cove.http import Answer, HttpServer, Request, Response
    from cove.server.gateway.relay import SocketRelay
    from cove.server.gateway.upstream import Upstreams

    upstreams = Upstreams()

    def answer(request: Request) -> Answer:
        return Response(200) if behind is None else SocketRelay(upstreams, behind)

    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen(128)
        sock.setblocking(False)
        async with HttpServer(answer, [sock]):
            print("ready", flush=True)
            await asyncio.Event().wait()


async def _serve_aiohttp(path: str, behind: str | None) -> None:
    import aiohttp
    from aiohttp import web

    connector = None if behind is None else aiohttp.UnixConnector(behind, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def answer(request: web.Request) -> web.StreamResponse:
            if connector is None:
                return web.Response()
            url = f"http://localhost{request.path_qs}"
            async with session.request(request.method, url, headers=request.headers, data=request.content) as found:
                reply = web.StreamResponse(status=found.status, headers=found.headers)
                await reply.prepare(request)
                async for chunk in found.content.iter_any():
                    await reply.write(chunk)
                return reply

        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, path).start()
        print("ready", flush=True)
        await asyncio.Event().wait()


async def _serve_uvicorn(path: str) -> None:
    import uvicorn

    async def application(scope: dict[str, object], receive: object, send: Callable[..., Awaitable[None]]) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    server = uvicorn.Server(uvicorn.Config(application, uds=path, log_level="error", http="httptools", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await serving


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None))
