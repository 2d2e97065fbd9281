"""`cove mcp`: give a sandbox of its own to a host that speaks the Model Context Protocol, over stdio."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from cove.api import AsyncSandbox
from cove.cli.connection import InOption, KeyOption, PlaceUrlOption, Workplace, choose_workplace
from cove.cli.options import Shape, shaped
from cove.cli.signals import finish
from cove.errors import InterpreterNotReady
from cove.local.extras import install_command
from cove.tasks import Tasks
from cove.tools import ToolLimits, Toolset

# A sandbox on a server whose user was killed lives so long at most.
_LEASE_SECONDS: Final = 600.0


@shaped
def mcp(
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="For a command that asks for no other; 120 by default.")
    ] = 120.0,
    inside: InOption = None,
    *,
    shape: Shape,
    url: PlaceUrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Serve the tools of a sandbox to an MCP host, which starts this command and speaks on its standard streams.

    The sandbox is new and ends with the connection; with --in it is one of a server, and stays. The same is at /mcp of
    `cove serve`. Needs the extra `mcp`.

    cove mcp --allow packages.example --mount .:/workspace/project

    cove mcp --url http://127.0.0.1:8787
    """
    if find_spec("mcp") is None:
        raise InterpreterNotReady(f"`cove mcp` needs one package more: `{install_command('mcp')}`")
    workplace = choose_workplace(inside, url, api_key, shape)
    finish(_serve(workplace, ToolLimits(timeout=timeout, max_timeout=max(timeout, ToolLimits().max_timeout))))


async def _serve(workplace: Workplace, limits: ToolLimits) -> int:
    from cove.mcp.stdio import serve_stdio

    async with workplace.open() as sandbox, _leased(workplace, sandbox), Toolset(sandbox, limits=limits) as toolset:
        await serve_stdio(toolset)
    return 0


@asynccontextmanager
async def _leased(workplace: Workplace, sandbox: AsyncSandbox) -> AsyncIterator[None]:
    """Let a sandbox of our own on a server end by itself when this process is killed."""
    if workplace.server is None or workplace.id is not None:
        yield
        return
    await sandbox.set_lifetime(_LEASE_SECONDS)
    async with Tasks(lambda _: None) as tasks:
        tasks.start(_renew(sandbox))
        yield


async def _renew(sandbox: AsyncSandbox) -> None:
    while True:
        await asyncio.sleep(_LEASE_SECONDS / 3)
        await sandbox.set_lifetime(_LEASE_SECONDS)
