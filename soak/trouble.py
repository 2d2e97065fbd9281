"""Kill parts of Cove that no single sandbox owns, while all of them are used."""

import asyncio
import os
import random
import signal
import time
from contextlib import suppress

from soak.faults import Fault
from soak.server import Server
from soak.subject import Where, children_of, command_of, name_of

_LOOK_SECONDS = 2.0
_PAUSE = 0.001
_LONGEST_OUTAGE = 3.0
_ROLES = {Fault.WORKER_KILLED: "worker", Fault.ZYGOTE_KILLED: "zygote"}


async def strike(where: Where, choose: random.Random) -> None:
    """One fault for all, from its beginning to its end."""
    weights = {Fault.ATTACH_KILLED: 2.0}
    if where.is_served:
        weights |= {Fault.WORKER_KILLED: 3, Fault.ZYGOTE_KILLED: 2, Fault.SERVER_KILLED: 1}
    if where.is_cluster:
        weights[Fault.NODE_KILLED] = 2
    fault = choose.choices(list(weights), list(weights.values()))[0]
    began = where.weather.begin(fault, None, _now())
    where.history.note("all/", 0, f"!! {fault}")
    if fault is Fault.ATTACH_KILLED:
        await asyncio.to_thread(_kill_helper, [os.getpid()] if not where.servers else [s.pid for s in where.servers])
    else:
        await _strike_server(where, choose, fault)
    began.ended = _now()
    where.history.note("all/", 0, f"over: {fault}")


async def _strike_server(where: Where, choose: random.Random, fault: Fault) -> None:
    server = choose.choice(where.servers)
    if fault in _ROLES:
        await server.kill_child(_ROLES[fault], choose.randrange(100))
        return
    if fault is Fault.SERVER_KILLED:
        await asyncio.to_thread(server.kill)
    else:
        await _kill_node(where, server)
        await asyncio.sleep(choose.random() * _LONGEST_OUTAGE)
    await asyncio.to_thread(server.start)


async def _kill_node(where: Where, server: Server) -> None:
    """All that its sandboxes run ends with it; also of those that are brought back before it has ended."""
    where.has_leftovers = True
    await _lose_all(where, server)
    await asyncio.to_thread(server.kill_all)
    await _lose_all(where, server)


async def _lose_all(where: Where, server: Server) -> None:
    for subject in list(where.subjects.values()):
        if subject.is_made and await asyncio.to_thread(server.has, subject.sandbox.id):
            subject.lose(Fault.RUNTIME_KILLED)


def _kill_helper(roots: list[int]) -> None:
    """SIGKILL for the first helper that enters a jail, or forks such, as soon as one is there. Blocks."""
    until = time.monotonic() + _LOOK_SECONDS
    while time.monotonic() < until:
        for root in roots:
            for pid in (*children_of(root), *(pid for child in children_of(root) for pid in children_of(child))):
                if name_of(pid) == "cove-attach" or b"/attach" in command_of(pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    return
        time.sleep(_PAUSE)  # nothing tells that one has begun


def _now() -> float:
    return asyncio.get_running_loop().time()
