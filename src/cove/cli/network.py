"""`cove network`: what sandboxes may reach, and what they did."""

from contextlib import aclosing
from typing import Annotated

import typer

from cove.cli.commands import make_program
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import show
from cove.cli.options import AllowOption, JsonOption, NetworkOption, SandboxArgument, choose_network
from cove.cli.signals import finish
from cove.cli.table import print_json, print_table
from cove.model import Network, NetworkEvent, NetworkPolicy

network = make_program("What a sandbox may reach, and what it did.")


@network.command()
def presets(
    refresh: Annotated[bool, typer.Option("--refresh", help="Ask again; answers are kept for a day.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the hosts of `--allow packages`: those that pip, npm and apt of this machine are configured with."""
    from cove.local.state import default_home
    from cove.runtime.package_hosts import package_rules  # only this command waits for it

    rules = package_rules(default_home(), refresh=refresh)
    if as_json:
        print_json(rules)
    else:
        print_table(("HOST", "PRIVATE"), [(rule.host, "yes" if rule.private else "") for rule in rules])


@network.command("set")
def set_network(
    id: SandboxArgument,
    network: NetworkOption = None,
    allow: AllowOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Change what a running sandbox may reach, for open connections too."""
    finish(_set(Server.named(url, api_key), id, choose_network(network, allow)))


@network.command()
def log(
    id: SandboxArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it happens.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Print what was allowed and refused."""
    finish(_log(Server.named(url, api_key), id, follow=follow, as_json=as_json))


async def _set(server: Server, id: str, wanted: Network | NetworkPolicy) -> int:
    async with server.sandbox(id) as sandbox:
        await sandbox.set_network(wanted)
    return 0


async def _log(server: Server, id: str, *, follow: bool, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox, aclosing(sandbox.network_log(follow=follow)) as events:
        async for event in events:
            if as_json:
                print_json(event)
            else:
                show(_line(event))
    return 0


def _line(event: NetworkEvent) -> str:
    if event.lost:
        return f"{event.at.astimezone():%H:%M:%S} ({event.lost} events are no longer kept)"
    where = event.host if event.port is None else f"{event.host}:{event.port}"
    what = " ".join(filter(None, (event.kind.value, event.method, where + (event.path or ""))))
    if not event.allowed:
        return f"{event.at.astimezone():%H:%M:%S} refused {what}: {event.reason}"
    passed = f" {event.sent_bytes} bytes out, {event.received_bytes} in" if event.kind.value == "connection" else ""
    status = "" if event.status is None else f" {event.status}"
    return f"{event.at.astimezone():%H:%M:%S} allowed {what}{status}{passed} ({event.duration:.3f} s)"
