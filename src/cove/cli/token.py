"""`cove token`: let others use one sandbox, for some time, without a key."""

from typing import Annotated

import typer

from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import show
from cove.cli.options import SandboxArgument, parse_time
from cove.cli.signals import finish


def token(
    id: SandboxArgument,
    allow: Annotated[
        list[str],
        typer.Argument(metavar="ALLOW...", help="What it is for: terminal, files, files.read and the like."),
    ],
    expires: Annotated[str, typer.Option(metavar="TIME", help="It holds so long, as 10m or 12h.")] = "1h",
    path: Annotated[str | None, typer.Option(metavar="PATH", help="Only this file is read or written.")] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Print a key that reaches one sandbox alone, for some operations; it ends with the sandbox.

    cove token lab terminal files.read --expires 10m
    """
    finish(_token(Server.named(url, api_key), id, allow, parse_time("--expires", expires), path))


async def _token(server: Server, id: str, allow: list[str], seconds: float, path: str | None) -> int:
    async with server.sandbox(id) as sandbox:
        show(await sandbox.token(allow, expires=seconds, path=path))
    return 0
