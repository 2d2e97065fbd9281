"""`cove image`: images, which sandboxes can have as their system."""

from pathlib import Path
from typing import Annotated

import typer

from cove import AsyncImage
from cove.cli.commands import make_program
from cove.cli.connection import KeyOption, Server
from cove.cli.connection import UrlOption as ServerUrlOption
from cove.cli.descriptors import show
from cove.cli.image_build import build
from cove.cli.image_place import UrlOption, place
from cove.cli.options import JsonOption, SandboxArgument
from cove.cli.progress import shown_progress
from cove.cli.signals import finish
from cove.cli.table import print_json, print_table
from cove.model import ImageInfo

image = make_program("Images, which sandboxes can have as their system: yours here, or those of a server.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the image.")]


@image.command()
def load(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="An archive of an image, or the archive or directory of a root.")
    ],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Its name here.")] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Load an image from an archive and print its name.

    cove image load --name debian root.tar
    """
    finish(_load(path, name, url, api_key))


@image.command()
def pull(
    reference: Annotated[str, typer.Argument(metavar="HOST/NAME:TAG", help="The image in a registry.")],
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Pull an image from a registry and print its name."""
    finish(_pull(reference, url, api_key))


@image.command()
def bootstrap(
    distribution: Annotated[str, typer.Argument(metavar="DISTRIBUTION", help="Only debian.")] = "debian",
    suite: Annotated[str, typer.Option(metavar="SUITE", help="Its version.")] = "bookworm",
    include: Annotated[str, typer.Option(metavar="PACKAGE,...", help="More packages.")] = "",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Its name; debian:SUITE by default.")] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make a small image of Debian by mmdebstrap on this machine, from the sources of its apt, and print its name."""
    finish(_bootstrap(distribution, suite, [each for each in include.split(",") if each], name, url, api_key))


@image.command()
def save(
    name: NameArgument,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where the archive goes.")],
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Write an image as an OCI archive, which `load` and other tools take."""
    finish(_save(name, path, url, api_key))


image.command()(build)


@image.command("ls")
def list_images(as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """List the images."""
    finish(_list(url, api_key, as_json=as_json))


@image.command()
def inspect(name: NameArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Print what an image is, as JSON."""
    finish(_inspect(name, url, api_key))


@image.command()
def rm(
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", "-f", help="Also one that is used: only its name goes.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Forget an image that no sandbox and no snapshot stands on."""
    finish(_remove(name, url, api_key, force=force))


@image.command()
def prune(
    all: Annotated[bool, typer.Option("--all", "-a", help="Also images that no sandbox and no snapshot uses.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Remove the build cache and what pulls have left; with --all also unused images, and print their names."""
    finish(_prune(url, api_key, all=all))


def commit(id: SandboxArgument, name: NameArgument, url: ServerUrlOption = None, api_key: KeyOption = None) -> None:
    """Make an image of a sandbox on an image as it is now, and print its name."""
    finish(_commit(Server.named(url, api_key), id, name))


async def _load(path: Path, name: str | None, url: str | None, api_key: str | None) -> int:
    where = await place(url, api_key)
    with shown_progress() as progress:
        loaded = await AsyncImage.load(path, name=name, progress=progress, **where)
    show(loaded.name)
    return 0


async def _commit(server: Server, id: str, name: str) -> int:
    async with server.sandbox(id) as sandbox:
        show((await sandbox.commit(name)).name)
    return 0


async def _pull(reference: str, url: str | None, api_key: str | None) -> int:
    where = await place(url, api_key)
    with shown_progress() as progress:
        pulled = await AsyncImage.pull(reference, progress=progress, **where)
    show(pulled.name)
    return 0


async def _bootstrap(
    distribution: str, suite: str, include: list[str], name: str | None, url: str | None, api_key: str | None
) -> int:
    where = await place(url, api_key)
    show((await AsyncImage.bootstrap(distribution, suite=suite, include=include, name=name, **where)).name)
    return 0


async def _save(name: str, path: Path, url: str | None, api_key: str | None) -> int:
    found = await AsyncImage.get(name, **await place(url, api_key))
    with shown_progress(by_lines=False) as progress:
        await found.save(path, progress=progress)
    return 0


async def _list(url: str | None, api_key: str | None, *, as_json: bool) -> int:
    found = await AsyncImage.list(**await place(url, api_key))
    if as_json:
        print_json(found)
    else:
        print_table(("NAME", "SIZE", "LAYERS", "CREATED"), [_row(each) for each in found])
    return 0


def _row(info: ImageInfo) -> tuple[str, str, str, str]:
    return info.name, str(info.size), str(info.layers), f"{info.created_at.astimezone():%Y-%m-%d %H:%M}"


async def _inspect(name: str, url: str | None, api_key: str | None) -> int:
    print_json(await (await AsyncImage.get(name, **await place(url, api_key))).info())
    return 0


async def _remove(name: str, url: str | None, api_key: str | None, *, force: bool) -> int:
    await (await AsyncImage.get(name, **await place(url, api_key))).delete(force=force)
    return 0


async def _prune(url: str | None, api_key: str | None, *, all: bool) -> int:
    for name in await AsyncImage.prune(all=all, **await place(url, api_key)):
        show(name)
    return 0
