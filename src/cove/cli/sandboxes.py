"""`cove create`, `ls`, `info`, `restart` and `rm`: the sandboxes of a server."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from cove.api import AsyncSandbox
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import FAILURE, say, show
from cove.cli.life import change
from cove.cli.mount import describe_mount
from cove.cli.options import EnvOption, JsonOption, SandboxArgument, Shape, parse_variables, shaped
from cove.cli.signals import finish
from cove.cli.table import age, print_json, print_record, print_table
from cove.errors import NotFound, SandboxAlreadyExists, ValidationFailed
from cove.model import JournalDetail, Network, NetworkPolicy, SandboxInfo, SandboxSpec, Usage

ForceOption = Annotated[bool, typer.Option("-f", "--force", help="What is not there is as good as removed.")]


@shaped
def create(
    id: Annotated[str | None, typer.Option(metavar="ID", help="Its id; one is made up by default.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="What `cove ls` shows beside it. Repeatable.")
    ] = None,
    env: EnvOption = None,
    *,
    shape: Shape,
    startup: Annotated[bool, typer.Option("--startup", help="With --image: run what the image would start.")] = False,
    sudo: Annotated[bool, typer.Option("--sudo", help="With --image: let its user become root.")] = False,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Stop it after so many seconds without use; the next use starts it again."
        ),
    ] = None,
    lifetime: Annotated[float | None, typer.Option(metavar="SECONDS", help="Destroy it after so many seconds.")] = None,
    journal: Annotated[
        JournalDetail, typer.Option(help="What its journal keeps: events, commands too, or also their output.")
    ] = JournalDetail.COMMANDS,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="A sandbox that has the id already will do.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make a sandbox and print its id.

    What it may be is decided by the server's configuration.

    cove create --id my-sandbox --memory 1G --idle-timeout 600
    """
    spec = msgspec.structs.replace(
        shape.spec(on_server=True),
        env=parse_variables(env),
        labels=parse_variables(label, "--label"),
        idle_timeout=idle_timeout,
        lifetime=lifetime,
        startup=startup,
        sudo=sudo,
        journal=journal,
    )
    finish(_create(Server.named(url, api_key), id, spec, exist_ok=exist_ok, as_json=as_json))


def ls(
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only those with this label. Repeatable.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only those that are running, paused, stopped or lost.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the ids, one on each line.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the sandboxes.

    cove ls --label team=a --status paused
    """
    labels = parse_variables(label, "--label")
    finish(_list(Server.named(url, api_key), labels, status, quiet=quiet, as_json=as_json))


def info(
    id: SandboxArgument,
    usage: Annotated[bool, typer.Option("--usage", help="Also what it uses now; starts one that is stopped.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show what a sandbox is."""
    finish(_info(Server.named(url, api_key), id, with_usage=usage, as_json=as_json))


def restart(id: SandboxArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """End what runs in a sandbox and start it again on its files."""
    finish(change(Server.named(url, api_key), id, lambda sandbox: sandbox.restart()))


def rm(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The sandboxes.", show_default=False)],
    force: ForceOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Destroy sandboxes with all they have: what runs in them, and their files."""
    finish(_remove(Server.named(url, api_key), ids, force=force))


async def _create(server: Server, id: str | None, spec: SandboxSpec, *, exist_ok: bool, as_json: bool) -> int:
    await server.check()
    try:
        sandbox = await AsyncSandbox.create(id=id, spec=spec, exist_ok=exist_ok, url=server.url, api_key=server.api_key)
    except SandboxAlreadyExists:
        raise ValidationFailed(f"there is a sandbox {id} already: choose another --id, or add --exist-ok") from None
    try:
        if as_json:
            print_json(await sandbox.info())
        else:
            show(sandbox.id)
    finally:
        await sandbox.detach()
    return 0


async def _list(server: Server, labels: dict[str, str], status: str | None, *, quiet: bool, as_json: bool) -> int:
    await server.check()
    infos = await AsyncSandbox.list(labels=labels, status=status, url=server.url, api_key=server.api_key)
    if as_json:
        print_json(infos)
    elif quiet:
        for each in infos:
            show(each.id)
    else:
        print_table(*_table(infos))
    return 0


def _table(infos: Sequence[SandboxInfo]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows; with owners where some belong to tenants, whose names are not ours to use, and with nodes."""
    columns: dict[str, list[str]] = {
        "OWNER": [each.owner or "" for each in infos],
        "ID": [each.id for each in infos],
        "STATUS": [each.status for each in infos],
        "AGE": [age(each.created_at) for each in infos],
        "NODE": [each.node or "" for each in infos],
        "LABELS": [_pairs(each.spec.labels) for each in infos],
    }
    shown = {head: column for head, column in columns.items() if head not in ("OWNER", "NODE") or any(column)}
    return tuple(shown), list(zip(*shown.values(), strict=True))


async def _info(server: Server, id: str, *, with_usage: bool, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        found = await sandbox.info()
        usage = await sandbox.usage() if with_usage else None
    if as_json:
        print_json(found if usage is None else {**msgspec.to_builtins(found), "usage": usage})
    else:
        print_record({**_facts(found), **(_usage_facts(usage) if usage is not None else {})})
    return 0


async def _remove(server: Server, ids: list[str], *, force: bool) -> int:
    async def destroy(id: str) -> None:
        async with server.sandbox(id) as sandbox:
            await sandbox.destroy()

    return await remove_each(ids, destroy, force=force)


def _facts(info: SandboxInfo) -> dict[str, str]:
    """List what is set, a line for each."""
    spec = info.spec
    facts = {
        "id": info.id,
        "owner": info.owner or "",
        "status": info.status,
        "node": info.node or "",
        "created": _local(info.created_at),
        "isolation": info.isolation,
        "network": _network(spec.network),
        "limits": _pairs(_given(spec.limits)),
        "enforced": ", ".join(info.limits_enforced),
        "environment": _pairs(spec.env),
        "mounts": ", ".join(map(describe_mount, spec.mounts)),
        "labels": _pairs(spec.labels),
        "idle timeout": "" if spec.idle_timeout is None else f"{spec.idle_timeout:g} s, then {spec.idle_action}",
        "lifetime": "" if info.ends_at is None else f"until {_local(info.ends_at)}",
        "warnings": "; ".join(info.warnings),
    }
    return {name: value for name, value in facts.items() if value}


def _network(network: Network | NetworkPolicy) -> str:
    if isinstance(network, Network):
        return network
    return "only " + (", ".join(rule.host for rule in network.rules) or "nothing")


def _usage_facts(usage: Usage) -> dict[str, str]:
    return {name.replace("_", " "): str(value) for name, value in _given(usage).items()}


def _given(value: msgspec.Struct) -> dict[str, object]:
    return {name: item for name, item in msgspec.structs.asdict(value).items() if item is not None}


def _pairs(values: "dict[str, str] | dict[str, object]") -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _local(moment: datetime) -> str:
    return moment.astimezone().isoformat(" ", "seconds")


async def remove_each(ids: list[str], remove: Callable[[str], Awaitable[None]], *, force: bool) -> int:
    """Remove all that can be; the exit code tells of the others.

    The library and HTTP take what is gone for destroyed. Who types an id wants to be told of a wrong one, as
    `docker rm` and `kubectl delete` tell it; `-f` is for scripts that only want it gone.
    """
    code = 0
    for id in ids:
        try:
            await remove(id)
        except NotFound as error:
            if not force:
                say(f"{error.message}; -f lets that pass")
                code = FAILURE
    return code
