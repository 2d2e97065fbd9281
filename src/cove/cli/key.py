"""`cove key`: who may use a server, as which tenant, and how much of it."""

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from cove import AsyncApiKey
from cove.cli.commands import make_program
from cove.cli.connection import KeyOption, UrlOption
from cove.cli.descriptors import show
from cove.cli.options import JsonOption, choose_network, parse_size, parse_time
from cove.cli.signals import finish
from cove.cli.table import print_json, print_table
from cove.core.quota import format_size
from cove.errors import ValidationFailed
from cove.model import ApiKeyInfo, ApiKeyMade, Network, Quota

key = make_program("API keys of a server: create, ls, rotate, rm.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")]


@key.command()
def create(
    name: NameArgument,
    admin: Annotated[bool, typer.Option("--admin", help="It reaches everything, and makes other keys.")] = False,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Whose it is; otherwise as the key.")] = None,
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="It holds so long, as 12h or 30d.")] = None,
    max_sandboxes: Annotated[int | None, typer.Option(metavar="N", help="So many run at once.")] = None,
    max_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of all that run.")] = None,
    max_cpus: Annotated[float | None, typer.Option(metavar="N", help="Cores of all that run.")] = None,
    max_disk: Annotated[str | None, typer.Option(metavar="SIZE", help="Disk of all sandboxes and volumes.")] = None,
    max_snapshots: Annotated[int | None, typer.Option(metavar="N", help="So many snapshots.")] = None,
    network: Annotated[Network | None, typer.Option(help="The most that sandboxes may reach.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Names that sandboxes may reach. Repeatable.")
    ] = None,
    rate: Annotated[str | None, typer.Option(metavar="N/s", help="Requests a second.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make a key, and print it: it is shown this once.

    cove key create ci --expires 30d --max-sandboxes 20 --max-memory 32G
    """
    quota = Quota(
        max_sandboxes=max_sandboxes,
        max_memory=None if max_memory is None else parse_size("--max-memory", max_memory),
        max_cpus=max_cpus,
        max_disk=None if max_disk is None else parse_size("--max-disk", max_disk),
        max_snapshots=max_snapshots,
        network=choose_network(network, allow) if network is not None or allow else None,
        rate=None if rate is None else _parse_rate(rate),
    )
    making = AsyncApiKey.create(
        name,
        tenant=tenant,
        is_admin=admin,
        expires_at=None if expires is None else datetime.now(UTC) + timedelta(seconds=parse_time("--expires", expires)),
        quota=None if quota == Quota() else quota,
        url=url,
        api_key=api_key,
    )
    finish(_print_made(making, as_json=as_json))


@key.command("ls")
def list_keys(as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """List the keys."""
    finish(_list(url, api_key, as_json=as_json))


@key.command()
def rotate(name: NameArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Replace a key by a new one with the same rights, and print it; the old one stops working at once."""
    finish(_print_made(AsyncApiKey.rotate(name, url=url, api_key=api_key), as_json=as_json))


@key.command()
def rm(name: NameArgument, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Revoke a key: it stops working at once, also in streams that are open."""
    finish(_remove(name, url, api_key))


async def _print_made(making: Coroutine[object, object, ApiKeyMade], *, as_json: bool) -> int:
    made = await making
    if as_json:
        print_json(made)
    else:
        show(made.key)
    return 0


async def _list(url: str | None, api_key: str | None, *, as_json: bool) -> int:
    found = await AsyncApiKey.list(url=url, api_key=api_key)
    if as_json:
        print_json(found)
    else:
        print_table(("NAME", "TENANT", "CREATED", "EXPIRES", "LAST USED", "QUOTA"), [_row(each) for each in found])
    return 0


def _row(info: ApiKeyInfo) -> tuple[str, ...]:
    tenant = "(admin)" if info.is_admin else info.tenant
    is_over = info.expires_at is not None and info.expires_at <= datetime.now(UTC)
    expires = f"{_time(info.expires_at)} (over)" if is_over else _time(info.expires_at)
    return info.name, tenant, _time(info.created_at), expires, _time(info.last_used_at), _quota(info.quota)


def _quota(quota: Quota) -> str:
    """Write it in the words of the options that set it."""
    words = []
    for name in quota.__struct_fields__:
        value = getattr(quota, name)
        if value is None:
            continue
        if name in ("max_memory", "max_disk"):
            text = format_size(value)
        elif name == "network":
            text = value.value if isinstance(value, Network) else "a policy"
        else:
            text = f"{value:g}"
        words.append(f"{name.removeprefix('max_')} {text}{'/s' * (name == 'rate')}")
    return ", ".join(words)


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


async def _remove(name: str, url: str | None, api_key: str | None) -> int:
    await AsyncApiKey.delete(name, url=url, api_key=api_key)
    return 0


def _parse_rate(text: str) -> float:
    try:
        return float(text.removesuffix("/s"))
    except ValueError:
        raise ValidationFailed(f"--rate {text}: write it as 20/s") from None
