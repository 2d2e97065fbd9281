"""`cove port`: expose ports of a sandbox."""

from typing import Annotated

import typer

from cove.cli.commands import make_program
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import show
from cove.cli.options import JsonOption, SandboxArgument
from cove.cli.signals import finish
from cove.cli.table import print_json, print_table
from cove.errors import PortAlreadyExposed, ValidationFailed

port = make_program("What listens inside a sandbox, for others to reach by a URL.")
PortArgument = Annotated[int, typer.Argument(metavar="PORT", help="The port inside.", show_default=False)]


@port.command()
def expose(
    id: SandboxArgument,
    number: PortArgument,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What it is, for people.")] = None,
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The secret part of the URL; one is made up by default.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Let whoever knows the URL reach a port, and print that URL. Nothing has to listen yet."""
    finish(_expose(Server.named(url, api_key), id, number, name, token, as_json=as_json))


@port.command("ls")
def list_ports(
    id: SandboxArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None
) -> None:
    """List the exposed ports."""
    finish(_list(Server.named(url, api_key), id, as_json=as_json))


@port.command()
def rm(id: SandboxArgument, number: PortArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Let the URL of a port lead nowhere."""
    finish(_remove(Server.named(url, api_key), id, number))


async def _expose(server: Server, id: str, number: int, name: str | None, token: str | None, *, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        try:
            exposed = await sandbox.ports.expose(number, name, token)
        except PortAlreadyExposed:
            raise ValidationFailed(f"port {number} is exposed already: `cove port ls {id}` shows its URL") from None
    if as_json:
        print_json(exposed)
    else:
        show(exposed.url)
    return 0


async def _list(server: Server, id: str, *, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        exposed = await sandbox.ports.list()
    if as_json:
        print_json(exposed)
    else:
        print_table(("PORT", "NAME", "URL"), [(str(each.port), each.name or "", each.url) for each in exposed])
    return 0


async def _remove(server: Server, id: str, number: int) -> int:
    async with server.sandbox(id) as sandbox:
        await sandbox.ports.unexpose(number)
    return 0
