"""`cove move`, and the moves of `cove cluster drain --move`: sandboxes that go to other nodes of a cluster."""

from typing import Annotated

import typer

from cove.api import AsyncSandbox
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import FAILURE, say, show
from cove.cli.options import SandboxArgument
from cove.cli.signals import finish
from cove.errors import CoveError, ValidationFailed
from cove.model import SandboxInfo

StopOption = Annotated[
    bool, typer.Option("--stop", help="Stop what runs, and start it again where it is then: sessions come back.")
]


def move(
    id: SandboxArgument,
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="The node that it goes to; by default that with most room.")
    ] = None,
    stop: StopOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Move a stopped sandbox to another node of the cluster, with all that it has.

    cove move my-sandbox b --stop
    """
    finish(_move(Server.named(url, api_key), id, node, stop))


async def _move(server: Server, id: str, node: str | None, stop: bool) -> int:
    async with server.sandbox(id) as sandbox:
        await move_sandbox(sandbox, node, stop=stop)
        show(f"sandbox {id} is on node {(await sandbox.info()).node}")
    return 0


async def move_sandbox(sandbox: AsyncSandbox, node: str | None, *, stop: bool) -> None:
    """Move one; with `stop` one that runs is stopped once nothing else is in the way, and started again."""
    try:
        await sandbox.move(node)
        return
    except ValidationFailed as error:
        if not stop or "status" not in error.details:  # it is not because it runs that it cannot be moved
            raise
    await sandbox.stop()
    try:
        say("it is stopped, and being moved")
        await sandbox.move(node)
    finally:
        await sandbox.start()


async def move_all(server: Server, node: str, *, stop: bool) -> int:
    """Move all sandboxes of a node to others; says of each that stays why, and returns whether any does."""
    await server.check()
    infos = await AsyncSandbox.list(url=server.url, api_key=server.api_key)
    here = [info for info in infos if info.node == node]
    failed = [info.id for info in here if not await _try(server, info, stop=stop)]
    show(f"{_count(len(here) - len(failed))} of node {node} moved" + (f", {len(failed)} stay" if failed else ""))
    return FAILURE if failed else 0


async def _try(server: Server, info: SandboxInfo, *, stop: bool) -> bool:
    try:
        async with server.sandbox(info.id) as sandbox:
            await move_sandbox(sandbox, None, stop=stop)
    except CoveError as error:
        say(f"{info.id} stays: {error.message}")
        return False
    return True


def _count(number: int) -> str:
    return f"{number} sandbox" if number == 1 else f"{number} sandboxes"
