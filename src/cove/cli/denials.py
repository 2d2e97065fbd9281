"""Tell a person what the network policy of a sandbox has refused, and which options would allow it."""

from contextlib import aclosing, suppress

from cove.api import AsyncSandbox
from cove.cli.descriptors import say
from cove.errors import CoveError
from cove.model import NetworkEvent, NetworkEventKind

_MOST_TOLD = 5


async def tell_denials(sandbox: AsyncSandbox) -> None:
    """Say on standard error what was refused; a sandbox that has ended meanwhile has nothing to tell."""
    refused: dict[str, NetworkEvent] = {}
    with suppress(CoveError):
        async with aclosing(sandbox.network_log()) as events:
            async for event in events:
                if not event.allowed and event.kind is not NetworkEventKind.GAP:
                    refused.setdefault(event.host, event)
    for event in list(refused.values())[:_MOST_TOLD]:
        say(_describe(event))
    if len(refused) > _MOST_TOLD:
        say(f"{len(refused) - _MOST_TOLD} other hosts were refused too")


def _describe(event: NetworkEvent) -> str:
    where = event.host if event.port is None else f"{event.host}:{event.port}"
    advice = f"; `--allow {event.rule}` would allow it" if event.rule is not None else ""
    return f"the network policy refused {where}: {event.reason}{advice}"
