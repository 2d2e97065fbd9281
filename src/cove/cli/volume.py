"""`cove volume`: named volumes, which outlive sandboxes."""

from typing import Annotated

import typer

from cove import AsyncVolume
from cove.cli.commands import make_program
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import show
from cove.cli.options import JsonOption, parse_size
from cove.cli.signals import finish
from cove.cli.table import print_json, print_table
from cove.model import VolumeInfo

volume = make_program("Named volumes, which outlive sandboxes.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the volume.")]


@volume.command()
def create(
    name: NameArgument,
    size: Annotated[str | None, typer.Option(metavar="SIZE", help="At most so much, as 512M or 2G.")] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make a volume."""
    finish(_create(Server.named(url, api_key), name, None if size is None else parse_size("--size", size)))


@volume.command("ls")
def list_volumes(as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """List the volumes."""
    finish(_list(Server.named(url, api_key), as_json=as_json))


@volume.command()
def rm(name: NameArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Remove a volume with all that is in it."""
    finish(_remove(Server.named(url, api_key), name))


async def _create(server: Server, name: str, size: int | None) -> int:
    made = await AsyncVolume.create(name, size=size, url=server.url, api_key=server.api_key)
    show(made.name)
    return 0


async def _list(server: Server, *, as_json: bool) -> int:
    found = await AsyncVolume.list(url=server.url, api_key=server.api_key)
    if as_json:
        print_json(found)
    else:
        print_table(("NAME", "SIZE", "CREATED"), [_row(each) for each in found])
    return 0


def _row(info: VolumeInfo) -> tuple[str, str, str]:
    size = "" if info.size is None else str(info.size)
    return info.name, size, f"{info.created_at.astimezone():%Y-%m-%d %H:%M}"


async def _remove(server: Server, name: str) -> int:
    found = await AsyncVolume.get(name, url=server.url, api_key=server.api_key)
    await found.delete()
    return 0
