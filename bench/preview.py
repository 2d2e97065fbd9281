"""A page of a preview beside the same page of the same program, asked directly.

Every request comes on a connection of its own, as the preview makes one of its own to the service. The facts say how
much processor time each part of the server takes for one request, or for one MiB.
"""

import asyncio
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench.harness import Figure, Plan, Sample, Unit, interleave, rate, timed
from bench.proc import descendants
from bench.server import server
from cove import AsyncSandbox

_PORT = 3000
_SMALL = 100
_LARGE = 64 << 20
_VISITORS = 16
# Answers one after the other with as many bytes as its path says.
_SERVICE = r"""
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
print(listener.getsockname()[1], flush=True)
block = bytes(1 << 20)
while True:
    connection = listener.accept()[0]
    head = connection.recv(65536)
    left = int(head.split()[1].rpartition(b"/")[2]) if head else 0
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % left)
    while left > 0:
        connection.sendall(block[:left])
        left -= len(block)
    connection.close()
"""


async def run(plan: Plan) -> list[Figure]:
    """Latency, requests at once, and bytes."""
    with _direct() as direct, server("--warm", "0", "--workers", "1") as (url, home, pid):
        async with AsyncSandbox.create(url=url, api_key=(Path(home) / "key").read_text().strip()) as sandbox:
            process = await sandbox.start_process(["python3", "-I", "-c", _SERVICE, str(_PORT)])
            await process.wait_for_port(_PORT, mode="tcp", timeout=20)
            address = urlsplit((await sandbox.ports.expose(_PORT)).path_url)
            assert address.port is not None
            preview = (address.port, address.path)
            parts = _Parts(pid)
            return [
                await _latency(preview, direct, parts, plan),
                await _at_once(preview, direct, parts, plan),
                await _bytes(preview, direct, parts, plan),
            ]


_Place = tuple[int, str]


async def _latency(preview: _Place, direct: _Place, parts: "_Parts", plan: Plan) -> Figure:
    subject, floor = await interleave(
        [parts.counted(1, timed(lambda: _get(preview, _SMALL))), timed(lambda: _get(direct, _SMALL))],
        repetitions=plan.times(1000, 200),
        warm_up=20,
    )
    return Figure(
        name="preview: a page",
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="the service itself",
        facts=parts.facts(),
    )


async def _at_once(preview: _Place, direct: _Place, parts: "_Parts", plan: Plan) -> Figure:
    each = 20

    async def visit(place: _Place) -> None:
        for _ in range(each):
            await _get(place, _SMALL)

    async def everybody(place: _Place) -> None:
        await asyncio.gather(*(visit(place) for _ in range(_VISITORS)))

    amount = each * _VISITORS
    return await _beside(
        f"preview: pages, {_VISITORS} visitors",
        Unit.PER_SECOND,
        rate(amount, parts.counted(amount, timed(lambda: everybody(preview)))),
        rate(amount, timed(lambda: everybody(direct))),
        parts,
        plan,
    )


async def _bytes(preview: _Place, direct: _Place, parts: "_Parts", plan: Plan) -> Figure:
    return await _beside(
        f"preview: {_LARGE >> 20} MiB",
        Unit.BYTES_PER_SECOND,
        rate(_LARGE, parts.counted(_LARGE >> 20, timed(lambda: _get(preview, _LARGE)))),
        rate(_LARGE, timed(lambda: _get(direct, _LARGE))),
        parts,
        plan,
    )


async def _beside(name: str, unit: Unit, preview: Sample, direct: Sample, parts: "_Parts", plan: Plan) -> Figure:
    subject, floor = await interleave([preview, direct], repetitions=plan.times(12, 4), unit=unit)
    return Figure(
        name=name, unit=unit, subject=subject, floor=floor, floor_name="the service itself", facts=parts.facts()
    )


async def _get(place: _Place, size: int) -> None:
    port, path = place
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"GET {path}{size} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    seen = 0
    while data := await reader.read(1 << 20):
        seen += len(data)
    assert seen == size, seen
    writer.close()


@contextmanager
def _direct() -> Generator[_Place, None, None]:
    """The service as a plain program of this machine."""
    command = [sys.executable, "-I", "-c", _SERVICE, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), "/"
        finally:
            process.kill()


class _Parts:
    """The processor time of a server's parts, by name."""

    def __init__(self, pid: int) -> None:
        self._pids = {pid: name for pid in descendants(pid) if (name := _name(pid)) is not None}
        self._used: dict[str, float] = {}
        self._count = 0

    def counted(self, amount: int, sample: Sample) -> Sample:
        """The sample, with what each part takes for it."""

        async def counted() -> float:
            before = dict(self._seconds())
            value = await sample()
            for name, seconds in self._seconds():
                self._used[name] = self._used.get(name, 0.0) + seconds - before[name]
            self._count += amount
            return value

        return counted

    def facts(self) -> dict[str, float | int | str | None]:
        """Microseconds of each part, since the last time that this was asked."""
        used, count = self._used, self._count
        self._used, self._count = {}, 0
        return {name: f"{seconds / count * 1e6:.0f} µs CPU" for name, seconds in sorted(used.items())}

    def _seconds(self) -> Iterator[tuple[str, float]]:
        for pid, name in self._pids.items():
            yield name, sum(_schedstat(path) for path in Path(f"/proc/{pid}/task").iterdir())


def _schedstat(task: Path) -> float:
    return int((task / "schedstat").read_text().split()[0]) / 1e9


def _name(pid: int) -> str | None:
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return {"cove-worker": "gateway", "cove-runtime": "runtime", "cove-agent": "agent"}.get(name)
