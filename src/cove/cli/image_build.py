"""`cove image build`: make an image from a directory with a Dockerfile, or from one of Cove's own recipes."""

import os
import sys
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from cove import AsyncImage
from cove.cli.connection import KeyOption
from cove.cli.descriptors import printable, show
from cove.cli.image_place import UrlOption, place
from cove.cli.options import (
    AllowOption,
    CpusOption,
    DiskOption,
    MemoryOption,
    NetworkOption,
    PidsOption,
    choose_network,
    parse_size,
    parse_variables,
)
from cove.cli.signals import finish
from cove.errors import ValidationFailed
from cove.model import BuildEvent, BuildOutput, BuildStep, Limits

_WIDTH = 100


def build(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The directory that COPY copies from.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option("--tag", "-t", metavar="NAME", help="Its name here.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="The Dockerfile; DIR/Dockerfile by default.")
    ] = None,
    build_arg: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set an ARG of the Dockerfile. Repeatable.")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="STAGE", help="Build this stage; the last by default.")] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="PRESET", help="Build a recipe of Cove's: python, node or data.")
    ] = None,
    base: Annotated[
        str | None, typer.Option("--from", metavar="IMAGE", help="With --preset: the Debian image to stand on.")
    ] = None,
    network: NetworkOption = None,
    allow: AllowOption = None,
    memory: MemoryOption = None,
    cpus: CpusOption = None,
    pids: PidsOption = None,
    disk: DiskOption = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Give up when the build has taken so many seconds.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do every step again.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show neither steps nor what they print.")] = False,
) -> None:
    """Build an image from a Dockerfile and print its name.

    RUN reaches no network unless --allow or --network says so.

    cove image build -t tools --allow packages .

    cove image build --preset python
    """
    limits = Limits(memory=parse_size("--memory", memory), cpus=cpus, pids=pids, disk=parse_size("--disk", disk))
    if directory is None and preset is None:
        raise ValidationFailed("name the directory to build, as in `cove image build -t NAME .`, or a --preset")
    if name is None and preset is None:
        raise ValidationFailed("give the image a name: -t NAME")
    dockerfile = "Dockerfile" if file is None else os.path.abspath(file)

    async def run() -> int:
        made = await AsyncImage.build(
            None if directory is None else str(directory),
            name=name,
            dockerfile=dockerfile,
            build_args=parse_variables(build_arg, "--build-arg"),
            target=target,
            preset=preset,
            base=base,
            network=choose_network(network, allow) if network or allow else None,
            limits=limits,
            timeout=timeout,
            cache=not no_cache,
            progress=None if quiet else _print,
            **await place(url, api_key),
        )
        show(made.name)
        return 0

    finish(run())


def _print(event: BuildEvent) -> None:
    """Print on standard error: steps as lines, and output as it is."""
    match event:
        case BuildStep():
            cached = "CACHED " if event.is_cached else ""
            instruction = printable(shorten(event.instruction, _WIDTH, placeholder=" ..."))
            _write(f"[{event.number}/{event.total}] {cached}{instruction}\n".encode("utf-8", "replace"))
        case BuildOutput():
            _write(event.data)


def _write(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()
