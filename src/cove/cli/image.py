"""`cove image`: images, which sandboxes can have as their system."""

from pathlib import Path
from typing import Annotated

import typer

from cove import AsyncImage
from cove.cli.commands import make_program
from cove.cli.descriptors import show
from cove.cli.options import JsonOption
from cove.cli.signals import finish
from cove.cli.table import print_json, print_table
from cove.model import ImageInfo

image = make_program("Images on this machine, which sandboxes can have as their system.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the image.")]


@image.command()
def load(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="An archive of an image, or of a root file system.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Its name here.")] = None,
) -> None:
    """Load an image from an archive and print its name.

    cove image load --name debian root.tar
    """
    finish(_load(path, name))


@image.command()
def pull(reference: Annotated[str, typer.Argument(metavar="HOST/NAME:TAG", help="The image in a registry.")]) -> None:
    """Pull an image from a registry and print its name."""
    finish(_pull(reference))


@image.command("ls")
def list_images(as_json: JsonOption = False) -> None:
    """List the images."""
    finish(_list(as_json=as_json))


@image.command()
def inspect(name: NameArgument) -> None:
    """Print what an image is, as JSON."""
    finish(_inspect(name))


@image.command()
def rm(name: NameArgument) -> None:
    """Forget an image; sandboxes that stand on it go on."""
    finish(_remove(name))


async def _load(path: Path, name: str | None) -> int:
    show((await AsyncImage.load(str(path), name=name)).name)
    return 0


async def _pull(reference: str) -> int:
    show((await AsyncImage.pull(reference)).name)
    return 0


async def _list(*, as_json: bool) -> int:
    found = await AsyncImage.list()
    if as_json:
        print_json(found)
    else:
        print_table(("NAME", "SIZE", "LAYERS", "CREATED"), [_row(each) for each in found])
    return 0


def _row(info: ImageInfo) -> tuple[str, str, str, str]:
    return info.name, str(info.size), str(info.layers), f"{info.created_at.astimezone():%Y-%m-%d %H:%M}"


async def _inspect(name: str) -> int:
    print_json(await (await AsyncImage.get(name)).info())
    return 0


async def _remove(name: str) -> int:
    await (await AsyncImage.get(name)).delete()
    return 0
