"""What Ray costs a node: how fast it grants blocks of room beside others that it holds, and the memory of it all.

`python -m bench.cluster_ray ADDRESS MOST` is the driver: it measures beside 1, 100, … blocks, up to so many.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import Figure, Plan, Unit, single, summarize
from bench.proc import descendants, memory_of
from cove.server.cluster.agent_protocol import agent_socket
from cove.server.cluster.ray_node import ray_environment

if TYPE_CHECKING:
    from cove.server.ray_agent.ray_engine import RayEngine

_BLOCK = 16
_HELD = (1, 100, 1000)
_TIMES = 30
_READY_SECONDS = 120.0
_LIMIT = 600.0


def measure(plan: Plan) -> list[Figure]:
    """Start a node with Ray, if it is installed, and measure; without it there is nothing to measure."""
    if importlib.util.find_spec("ray") is None:
        return []
    with _node() as (home, address, pid):
        memory = memory_of(descendants(pid)).pss or 0
        command = [sys.executable, "-m", "bench.cluster_ray", address, str(plan.times(_HELD[-1], _HELD[1]))]
        environment = ray_environment(str(home / "cluster-token"))
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=_LIMIT)
    figures = [
        Figure(
            name=f"cluster on Ray: grant a block beside {held}",
            unit=Unit.SECONDS,
            subject=summarize(seconds),
            facts={"rate": f"{len(seconds) / sum(seconds):.0f}/s"},
        )
        for held, seconds in json.loads(done.stdout.splitlines()[-1]).items()
    ]
    return [*figures, Figure(name="cluster on Ray: memory of a node", unit=Unit.BYTES, subject=single(memory))]


@contextmanager
def _node() -> Generator[tuple[Path, str, int], None, None]:
    """The state directory of a head, the address of its Ray and its pid."""
    with tempfile.TemporaryDirectory(prefix="cove-", dir="/tmp") as directory, socket.socket() as free:
        os.chmod(directory, 0o711)
        free.bind(("127.0.0.1", 0))
        port, home = free.getsockname()[1], Path(directory)
        free.close()
        cove = [sys.executable, "-c", "from cove.cli import main; main()", "cluster", "start", "--port", "0"]
        options = ["--home", directory, "--ip", "127.0.0.1", "--ray-port", str(port), "--slots", str(_BLOCK * 2000)]
        with subprocess.Popen([*cove, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                _wait_for(agent_socket(home / "server"))
                yield home, f"127.0.0.1:{port}", process.pid
            finally:
                process.terminate()


def _wait_for(path: Path) -> None:
    until = time.monotonic() + _READY_SECONDS
    while not path.exists():
        assert time.monotonic() < until, "the node does not become ready"
        time.sleep(0.1)


def _drive(address: str, most: int) -> dict[int, list[float]]:
    from cove.server.ray_agent.ray_engine import RayEngine

    engine = RayEngine(address, "127.0.0.1", {})
    found: dict[int, list[float]] = {}
    held = 0
    for wanted in (size for size in _HELD if size <= most):
        for number in range(held, wanted):
            engine.make_block(f"held-{number}", _BLOCK, None)
        assert (last := engine.wait_for_block(f"held-{wanted - 1}", _LIMIT)) is not None
        assert last.node_id is not None
        held = wanted
        found[wanted] = [_grant(engine, f"one-{wanted}-{number}") for number in range(_TIMES)]
    return found


def _grant(engine: "RayEngine", name: str) -> float:
    began = time.perf_counter()
    engine.make_block(name, _BLOCK, None)
    engine.wait_for_block(name, _LIMIT)
    seconds = time.perf_counter() - began
    engine.remove_block(name)
    return seconds


if __name__ == "__main__":
    print(json.dumps(_drive(sys.argv[1], int(sys.argv[2]))), flush=True)
