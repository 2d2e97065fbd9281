"""Start the agent: `python -m cove.server.ray_agent PARENT SETTINGS`, as `cove serve` does."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from cove.errors import CoveError
from cove.linux.forking import end_with_parent, name_process
from cove.server.cluster.agent_protocol import AgentSettings, agent_socket
from cove.server.ray_agent.agent import Agent
from cove.server.ray_agent.agent_process import AgentProcess
from cove.server.ray_agent.engine import EngineFailed
from cove.server.ray_agent.ray_engine import RayEngine, ray_version
from cove.server.sandboxes.directory import Directory

_CONNECT_SECONDS = 60


def main() -> int:
    """Connect to Ray and serve; returns the exit code."""
    end_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    name_process("cove-agent")
    settings = msgspec.json.decode(sys.argv[2], type=AgentSettings)
    logging.basicConfig(format="cove-agent: %(message)s")
    signal.alarm(_CONNECT_SECONDS)  # a driver that cannot connect is ended, and started again
    slot = {"CPU": settings.slot_cpus, "memory": float(settings.slot_memory)}
    engine = RayEngine(
        settings.engine_address, settings.engine_ip, {name: amount for name, amount in slot.items() if amount}
    )
    signal.alarm(0)
    known = msgspec.structs.replace(settings, engine_version=ray_version(), engine_address=engine.address)
    agent = Agent(known, engine)
    return asyncio.run(_serve(agent, agent_socket(Directory(Path(settings.home)).server), settings.block_slots))


async def _serve(agent: Agent, path: Path, block_slots: int) -> int:
    return await AgentProcess(agent, path, block_slots).run()


if __name__ == "__main__":
    try:
        code = main()
    except (EngineFailed, CoveError) as error:
        logging.getLogger("cove.cluster").error("%s", error)
        code = 1
    sys.stderr.flush()
    os._exit(code)  # a thread may still wait for Ray, whose own end can take long
