"""`cove watch`: print what changes in a directory of a sandbox."""

from contextlib import aclosing
from typing import Annotated

import typer

from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import BROKEN_PIPE, STDOUT, printable, say
from cove.cli.options import SandboxArgument
from cove.cli.signals import finish
from cove.cli.streams import Streams
from cove.cli.table import json_line
from cove.model import FileEvent, FileEventKind

_DEFAULT_EXCLUDE = (".git", "node_modules")


def watch(
    id: SandboxArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory or a file inside.")] = ".",
    recursive: Annotated[bool, typer.Option(help="Also what is in directories below.")] = True,
    include: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Only what matches. Repeatable.")] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Not what matches; .git and node_modules by default. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on each line.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Print what changes in a directory, a line for each change, until Ctrl-C or until it is removed.

    The first line says `watching`: from then on nothing is missed.

    cove watch my-sandbox src --include '*.py'
    """
    patterns = tuple(include or ()), _DEFAULT_EXCLUDE if exclude is None else tuple(exclude)
    finish(_watch(Server.named(url, api_key), id, path, patterns, recursive=recursive, as_json=as_json))


async def _watch(
    server: Server,
    id: str,
    path: str,
    patterns: tuple[tuple[str, ...], tuple[str, ...]],
    *,
    recursive: bool,
    as_json: bool,
) -> int:
    include, exclude = patterns
    streams = Streams()
    async with server.sandbox(id) as sandbox:
        changes = sandbox.files.watch(path, recursive=recursive, include=include, exclude=exclude)
        try:
            async with aclosing(changes) as events:
                async for event in events:
                    await streams.write(STDOUT, json_line(event) if as_json else _line(event))
        except BrokenPipeError:
            return BROKEN_PIPE
    say(f"{path} is no longer there")
    return 0


def _line(event: FileEvent) -> bytes:
    path = event.path + ("/" if event.is_directory else "")
    if event.kind is FileEventKind.MOVE and event.old_path is not None:
        path = f"{event.old_path} -> {path}"
    return f"{event.kind:<9} {printable(path)}\n".encode()
