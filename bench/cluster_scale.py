"""What a node pays for the others, with up to a thousand of them: probes, and the tables that requests are routed by.

The others are one program that answers as a node does, under as many names: what the probing side pays is real, what
the answering side pays is measured there.
"""

import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop

from bench.harness import Figure, Plan, Unit, single, summarize
from cove.core.cluster import claim_keepers
from cove.http import HttpServer, Request, Response
from cove.model.cluster import Member, Members
from cove.server.cluster.nodes import Health, Nodes, Report
from cove.server.cluster.peer import PeerClient, PeerKey
from cove.server.sandboxes.members import write_members

_SIZES = (10, 100, 1000)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


async def simulate(plan: Plan) -> list[Figure]:
    """Each number of nodes: a round of probes, and the tables."""
    figures = []
    with _answering() as (address, pid):
        for size in _SIZES:
            figures += await _measure(plan, size, address, pid)
    return figures


async def _measure(plan: Plan, size: int, address: str, pid: int) -> list[Figure]:
    members = Members(
        node="n0",
        members=tuple(Member(name=f"n{number}", address=address, code=_code(number)) for number in range(size)),
    )
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "server").mkdir()
        write_members(home, members)
        nodes = Nodes(home, PeerClient(PeerKey("key")), lambda _: None)
        await nodes._refresh()
        return [*await _probes(plan, nodes, size, pid), *_tables(nodes, members, home, size)]


async def _probes(plan: Plan, nodes: Nodes, size: int, pid: int) -> list[Figure]:
    await nodes._probe_all()
    assert all(nodes.is_up(name) for name in nodes.members)
    rounds, seconds, answering = plan.times(5, 2), [], _cpu_of(pid)
    began = _cpu_here()
    for _ in range(rounds):
        at = time.perf_counter()
        await nodes._probe_all()
        seconds.append(time.perf_counter() - at)
    asking, answered = (_cpu_here() - began) / rounds, (_cpu_of(pid) - answering) / rounds
    return [
        Figure(
            name=f"cluster of {size}: a round of probes",
            unit=Unit.SECONDS,
            subject=summarize(seconds),
            facts={
                "CPU of who asks": f"{asking * 1e3:.1f} ms",
                "CPU of who answers": f"{answered * 1e3:.1f} ms",
                "share of a core, both": f"{(asking + answered) * 100:.1f} %",
            },
        )
    ]


def _tables(nodes: Nodes, members: Members, home: Path, size: int) -> list[Figure]:
    health = home / "server" / "nodes.json"
    last = members.members[-1].code
    facts: dict[str, float | int | str | None] = {
        "node of an id": _microseconds(lambda: nodes.by_code[last], 10_000),
        "order of candidates": _microseconds(nodes.candidates, 100),
        "keepers of a name": _microseconds(lambda: claim_keepers("name", members.members), 100),
        "members.json": f"{len(msgspec.json.encode(members)) / 1e3:.1f} kB",
        "nodes.json": f"{health.stat().st_size / 1e3:.1f} kB",
    }
    read = _seconds(lambda: msgspec.json.decode(health.read_bytes(), type=dict[str, Health]), 20)
    return [Figure(name=f"cluster of {size}: read the tables", unit=Unit.SECONDS, subject=single(read), facts=facts)]


def _code(number: int) -> str:
    digits = ""
    for _ in range(4):
        number, rest = divmod(number, len(_LETTERS))
        digits += _LETTERS[rest]
    return digits


def _seconds(work: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - began) / count


def _microseconds(work: Callable[[], object], count: int) -> str:
    return f"{_seconds(work, count) * 1e6:.2f} µs"


def _cpu_here() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _answering() -> Generator[tuple[str, int], None, None]:
    command = [sys.executable, "-m", "bench.cluster_scale"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process.pid
        finally:
            process.kill()


async def _answer() -> None:
    report = msgspec.json.encode(Report(name="n", version="0", free=100, sandboxes=16))

    def answer(_: Request) -> Response:
        return Response(200, (), report)

    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    async with HttpServer(answer, [listener]):
        print(listener.getsockname()[1], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_answer())
