"""`cove snapshot`, `cove restore`, `cove fork`, `cove diff`: keep the files of a sandbox, and go back to them."""

from typing import Annotated

import typer

from cove.cli.commands import make_program
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import show
from cove.cli.options import JsonOption, SandboxArgument
from cove.cli.progress import shown_progress
from cove.cli.signals import finish
from cove.cli.table import age, print_json, print_table

snapshot = make_program("The files of sandboxes at one moment.")
SnapshotArgument = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="The id of a snapshot.", show_default=False)]


@snapshot.command()
def create(
    id: SandboxArgument,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What it is, for people.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label; may be given again.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Keep the files of a sandbox as they are, and print the snapshot's id."""
    labels = dict(each.partition("=")[::2] for each in label or ())
    finish(_create(Server.named(url, api_key), id, name, labels, as_json=as_json))


@snapshot.command("ls")
def list_snapshots(as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """List the snapshots."""
    finish(_list(Server.named(url, api_key), as_json=as_json))


@snapshot.command()
def rm(snapshot: SnapshotArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Remove a snapshot; what others stand on stays."""
    finish(_remove(Server.named(url, api_key), snapshot))


@snapshot.command()
def export(
    snapshot: SnapshotArgument,
    target: Annotated[
        str, typer.Argument(metavar="PATH|URL", help="A directory, a file, or s3://BUCKET/PREFIX.", show_default=False)
    ],
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Write a snapshot as compressed layers, and print what `load` takes."""
    finish(_export(Server.named(url, api_key), snapshot, target, as_json=as_json))


@snapshot.command()
def load(
    source: Annotated[str, typer.Argument(metavar="PATH|URL", help="What `export` printed.", show_default=False)],
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Load an exported snapshot, verified, and print its id."""
    finish(_load(Server.named(url, api_key), source))


def restore(id: SandboxArgument, snapshot: SnapshotArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Let a sandbox go back to a snapshot; what runs in it is ended."""
    finish(_restore(Server.named(url, api_key), id, snapshot))


def fork(
    id: SandboxArgument,
    count: Annotated[int, typer.Option("-n", "--count", metavar="COUNT", help="How many copies.")] = 1,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make copies of a sandbox as it is now, and print their ids."""
    finish(_fork(Server.named(url, api_key), id, count))


def diff(
    id: SandboxArgument,
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="Only this, and what is below.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="SNAPSHOT", help="Compare with this; by default, with its creation.")
    ] = None,
    names: Annotated[bool, typer.Option("--names", help="Print the names of files that differ, and how.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Print what has changed in a sandbox, as a patch."""
    finish(_diff(Server.named(url, api_key), id, path, since, names=names))


async def _create(server: Server, id: str, name: str | None, labels: dict[str, str], *, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        made = await sandbox.snapshot(name=name, labels=labels)
        if as_json:
            print_json(await made.info())
        else:
            show(made.id)
    return 0


async def _list(server: Server, *, as_json: bool) -> int:
    from cove.api import AsyncSnapshot

    found = await AsyncSnapshot.list(url=server.url, api_key=server.api_key)
    if as_json:
        print_json(found)
    else:
        print_table(
            ("ID", "NAME", "AGE", "BYTES", "PARENT"),
            [
                (each.id, each.name or "", age(each.created_at), str(each.size or 0), each.parent or "")
                for each in found
            ],
        )
    return 0


async def _remove(server: Server, id: str) -> int:
    from cove.api import AsyncSnapshot

    await (await AsyncSnapshot.get(id, url=server.url, api_key=server.api_key)).delete()
    return 0


async def _export(server: Server, id: str, target: str, *, as_json: bool) -> int:
    from cove.api import AsyncSnapshot

    found = await AsyncSnapshot.get(id, url=server.url, api_key=server.api_key)
    with shown_progress(by_lines=False) as progress:
        exported = await found.export(target, progress=progress)
    if as_json:
        print_json(exported)
    else:
        show(exported.location)
    return 0


async def _load(server: Server, source: str) -> int:
    from cove.api import AsyncSnapshot

    await server.check()
    with shown_progress(by_lines=False) as progress:
        loaded = await AsyncSnapshot.load(source, progress=progress, url=server.url, api_key=server.api_key)
    show(loaded.id)
    return 0


async def _restore(server: Server, id: str, snapshot: str) -> int:
    async with server.sandbox(id) as sandbox:
        await sandbox.restore(snapshot)
    return 0


async def _fork(server: Server, id: str, count: int) -> int:
    async with server.sandbox(id) as sandbox:
        for copy in await sandbox.fork(count):
            show(copy.id)
            await copy.detach()
    return 0


async def _diff(server: Server, id: str, path: str | None, since: str | None, *, names: bool) -> int:
    async with server.sandbox(id) as sandbox:
        if names:
            for change in await sandbox.changes(since=since):
                show(f"{change.kind.value} {change.path}")
        else:
            for line in (await sandbox.diff(path=path, since=since)).split("\n")[:-1]:
                show(line)
    return 0
