"""`cove mount`: directories, volumes and buckets of a running sandbox."""

from typing import Annotated

import typer

from cove.cli.commands import make_program
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.options import JsonOption, SandboxArgument
from cove.cli.signals import finish
from cove.cli.table import print_json, print_table
from cove.errors import ValidationFailed
from cove.model import AnyMount, BucketMount, Mount, Secret, VolumeMount

mount = make_program("Directories, volumes and buckets of a running sandbox.")

TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help="The path inside.")]


@mount.command()
def add(
    id: SandboxArgument,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A volume's name, s3://BUCKET/PREFIX, or a path of the server.")
    ],
    target: TargetArgument,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let nothing inside write to it.")] = False,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="Where the bucket is.")] = None,
    credentials: Annotated[
        str | None, typer.Option(metavar="NAME", help="The secret of the server that has the bucket's keys.")
    ] = None,
    region: Annotated[str, typer.Option(metavar="NAME", help="The bucket's region.")] = "us-east-1",
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Mount something in a running sandbox."""
    wanted: AnyMount
    if source.startswith("s3://"):
        if endpoint is None:
            raise ValidationFailed("a bucket needs --endpoint: the address of its storage")
        secret = None if credentials is None else Secret(credentials)
        wanted = BucketMount(
            url=source, endpoint=endpoint, target=target, credentials=secret, region=region, read_only=read_only
        )
    elif source.startswith("/"):
        wanted = Mount(source=source, target=target, read_only=read_only)
    else:
        wanted = VolumeMount(volume=source, target=target, read_only=read_only)
    finish(_add(Server.named(url, api_key), id, wanted))


@mount.command("ls")
def list_mounts(
    id: SandboxArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None
) -> None:
    """List the mounts."""
    finish(_list(Server.named(url, api_key), id, as_json=as_json))


@mount.command()
def rm(id: SandboxArgument, target: TargetArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Unmount; what was written to a bucket is sent first."""
    finish(_remove(Server.named(url, api_key), id, target))


@mount.command()
def sync(id: SandboxArgument, target: TargetArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Send what was written to a bucket."""
    finish(_sync(Server.named(url, api_key), id, target))


def describe_mount(mount: AnyMount) -> str:
    """One mount in a line."""
    return f"{_source(mount)}:{mount.target}{'' if mount.read_only else ':rw'}"


def _source(mount: AnyMount) -> str:
    match mount:
        case Mount():
            return mount.source
        case VolumeMount():
            return mount.volume
        case BucketMount():
            return mount.url


async def _add(server: Server, id: str, wanted: AnyMount) -> int:
    async with server.sandbox(id) as sandbox:
        await sandbox.mounts.add(wanted)
    return 0


async def _list(server: Server, id: str, *, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        found = await sandbox.mounts.list()
    if as_json:
        print_json(found)
    else:
        rows = [(each.target, _source(each), "read-only" if each.read_only else "") for each in found]
        print_table(("TARGET", "SOURCE", "ACCESS"), rows)
    return 0


async def _remove(server: Server, id: str, target: str) -> int:
    async with server.sandbox(id) as sandbox:
        await sandbox.mounts.remove(target)
    return 0


async def _sync(server: Server, id: str, target: str) -> int:
    async with server.sandbox(id) as sandbox:
        await sandbox.mounts.sync(target)
    return 0
