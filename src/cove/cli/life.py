"""`cove stop`, `pause`, `resume` and `label`: the life of a server's sandboxes."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from cove.api import AsyncSandbox
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.options import SandboxArgument, parse_variables
from cove.cli.signals import finish


def stop(id: SandboxArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """End what runs in a sandbox and keep the rest, until `cove start ID`."""
    finish(change(Server.named(url, api_key), id, lambda sandbox: sandbox.stop()))


def pause(
    id: SandboxArgument,
    no_wake: Annotated[
        bool, typer.Option("--no-wake", help="Only `cove resume` resumes it, and no other use.")
    ] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Freeze everything in a sandbox; the next use resumes it."""
    finish(change(Server.named(url, api_key), id, lambda sandbox: sandbox.pause(wake=not no_wake)))


def resume(id: SandboxArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Let a paused sandbox go on."""
    finish(change(Server.named(url, api_key), id, lambda sandbox: sandbox.resume()))


def label(
    id: SandboxArgument,
    labels: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="All labels that it has from here on; none removes them."),
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Replace the labels of a sandbox.

    cove label my-sandbox team=a purpose=demo
    """
    wanted = parse_variables(labels, "LABEL")
    finish(change(Server.named(url, api_key), id, lambda sandbox: sandbox.set_labels(wanted)))


async def change(server: Server, id: str, call: Callable[[AsyncSandbox], Awaitable[None]]) -> int:
    """Make one call on a sandbox."""
    async with server.sandbox(id) as sandbox:
        await call(sandbox)
    return 0
