"""Clients of one server: E2B's own Python client, unchanged, beside Cove's; and what its idle sandboxes weigh."""

import asyncio
import os

import e2b
import e2b_code_interpreter

from bench.beside.contender import IDLE
from bench.beside.turns import Found, in_turn, print_found
from bench.proc import descendants, memory_of
from bench.server import server
from cove import AsyncSandbox
from cove.client.provider import find_key
from cove.local.state import default_home

_TIMES = 100
_LIVES = 10
_AT_ONCE = 8


async def measure(url: str, pid: int) -> Found:
    """Creations, commands and cells, in turn; then many idle sandboxes."""
    found: Found = {}
    await in_turn(found, "create", {"Cove's client": _live, "E2B's client": _live_of_e2b}, _LIVES)
    ours = await AsyncSandbox.create(url=url)
    theirs = await e2b_code_interpreter.AsyncSandbox.create()
    try:
        context = await ours.create_code_context()

        async def command() -> None:
            assert (await ours.exec("echo hi")).stdout == "hi\n"

        async def command_of_e2b() -> None:
            assert (await theirs.commands.run("echo hi")).stdout == "hi\n"

        async def cell() -> None:
            assert (await context.run("1 + 1")).text == "2"

        async def cell_of_e2b() -> None:
            assert (await theirs.run_code("1 + 1")).text == "2"

        await in_turn(found, "exec", {"Cove's client": command, "E2B's client": command_of_e2b}, _TIMES)
        await in_turn(found, "cell", {"Cove's client": cell, "E2B's client": cell_of_e2b}, _TIMES)
    finally:
        await theirs.kill()
        await ours.destroy()
    found["Cove's client"]["density"] = [await _density(url, pid)]
    return found


async def _live() -> None:
    sandbox = await AsyncSandbox.create(url=os.environ["E2B_API_URL"])
    assert (await sandbox.exec("echo hi")).stdout == "hi\n"
    await sandbox.destroy()


async def _live_of_e2b() -> None:
    sandbox = await e2b.AsyncSandbox.create()
    assert (await sandbox.commands.run("echo hi")).stdout == "hi\n"
    await sandbox.kill()


async def _density(url: str, pid: int) -> float:
    """The proportional share of each of many idle sandboxes: its runtime, and everything inside."""
    before = memory_of([pid, *descendants(pid)]).pss or 0
    made: list[AsyncSandbox] = []
    for _ in range(0, IDLE, _AT_ONCE):
        made += await asyncio.gather(*(AsyncSandbox.create(url=url) for _ in range(_AT_ONCE)))
    after = memory_of([pid, *descendants(pid)]).pss or 0
    for at in range(0, IDLE, _AT_ONCE):
        await asyncio.gather(*(sandbox.destroy() for sandbox in made[at : at + _AT_ONCE]))
    return (after - before) / IDLE


def main() -> None:
    """Tell the clients where the server is as its users do: by the environment."""
    os.environ.setdefault("COVE_PYTHON", str(default_home() / "python"))
    with server() as (url, home, pid):
        os.environ["COVE_HOME"] = home
        os.environ["E2B_API_URL"] = os.environ["E2B_SANDBOX_URL"] = url
        os.environ["E2B_API_KEY"] = find_key(url, None) or ""
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            del os.environ[name]
        print_found(asyncio.run(measure(url, pid)))


if __name__ == "__main__":
    main()
