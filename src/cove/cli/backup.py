"""`cove backup`: save directories of sandboxes, and restore them."""

from typing import Annotated

import typer

from cove.cli.commands import make_program
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import show
from cove.cli.options import JsonOption, SandboxArgument
from cove.cli.signals import finish
from cove.cli.table import age, print_json, print_table

backup = make_program("Directories of sandboxes, kept to be restored.")
BackupArgument = Annotated[str, typer.Argument(metavar="BACKUP", help="The id of a backup.", show_default=False)]


@backup.command()
def create(
    id: SandboxArgument,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The directory inside.", show_default=False)] = ".",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What it is, for people.")] = None,
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long it is kept; for ever by default.")
    ] = None,
    gitignore: Annotated[bool, typer.Option("--gitignore", help="Leave out what Git ignores.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Save a directory, by default the working directory, and print the backup's id."""
    finish(_create(Server.named(url, api_key), id, directory, name, ttl, gitignore, as_json=as_json))


@backup.command("ls")
def list_backups(
    id: SandboxArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None
) -> None:
    """List the backups that a sandbox can restore: those of all sandboxes."""
    finish(_list(Server.named(url, api_key), id, as_json=as_json))


@backup.command()
def restore(
    id: SandboxArgument,
    backup: BackupArgument,
    directory: Annotated[
        str | None, typer.Argument(metavar="DIR", help="Where to; where it was by default.", show_default=False)
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make a directory what a backup has; what else is in it is removed."""
    finish(_restore(Server.named(url, api_key), id, backup, directory))


@backup.command()
def rm(id: SandboxArgument, backup: BackupArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Remove a backup."""
    finish(_remove(Server.named(url, api_key), id, backup))


async def _create(
    server: Server,
    id: str,
    directory: str,
    name: str | None,
    ttl: float | None,
    gitignore: bool,
    *,
    as_json: bool,
) -> int:
    async with server.sandbox(id) as sandbox:
        made = await sandbox.backups.create(directory, name, ttl, gitignore)
    if as_json:
        print_json(made)
    else:
        show(made.id)
    return 0


async def _list(server: Server, id: str, *, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        found = await sandbox.backups.list()
    if as_json:
        print_json(found)
        return 0
    rows = [(each.id, age(each.created_at), str(each.size), each.sandbox, each.dir, each.name or "") for each in found]
    print_table(("BACKUP", "AGE", "BYTES", "SANDBOX", "DIR", "NAME"), rows)
    return 0


async def _restore(server: Server, id: str, backup: str, directory: str | None) -> int:
    async with server.sandbox(id) as sandbox:
        await sandbox.backups.restore(backup, directory)
    return 0


async def _remove(server: Server, id: str, backup: str) -> int:
    async with server.sandbox(id) as sandbox:
        await sandbox.backups.delete(backup)
    return 0
