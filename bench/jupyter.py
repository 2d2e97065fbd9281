"""The same with ipykernel and jupyter_client, where they are installed."""

import importlib.util
import time

from bench.harness import Figure, Plan, Unit, single, summarize


async def jupyter_figures(plan: Plan) -> list[Figure]:
    """Creation, latency and memory of a kernel; nothing when Jupyter is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("jupyter_client", "ipykernel")):
        return []
    from jupyter_client.manager import start_new_async_kernel

    began = time.perf_counter()
    manager, client = await start_new_async_kernel(kernel_name="python3")
    try:
        await _execute(client)
        created = time.perf_counter() - began
        samples = []
        for _ in range(plan.times(200, 50)):
            began = time.perf_counter()
            await _execute(client)
            samples.append(time.perf_counter() - began)
        private = _private_bytes(manager.provisioner.process.pid)
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
    return [
        Figure(name="ipykernel: create, first result", unit=Unit.SECONDS, subject=single(created)),
        Figure(name="ipykernel: 1+1", unit=Unit.SECONDS, subject=summarize(samples)),
        Figure(name="ipykernel: private memory", unit=Unit.BYTES, subject=single(private)),
    ]


async def _execute(client: object) -> None:
    await client.execute_interactive("1 + 1", output_hook=lambda message: None)  # type: ignore[attr-defined]


def _private_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_"))
