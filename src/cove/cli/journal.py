"""`cove journal` and `cove replay`: what was done to a sandbox and in it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated

import typer

from cove.api import AsyncSandbox
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import BROKEN_PIPE, printable, say, show
from cove.cli.options import JsonOption
from cove.cli.signals import finish
from cove.cli.table import age, json_line, print_json, print_table
from cove.core.replay import Transcript, asciicast, describe
from cove.errors import CoveError, ValidationFailed
from cove.model import JournalEvent, JournalKind, Output, SandboxStatus

IdArgument = Annotated[
    str | None, typer.Argument(metavar="ID", help="The sandbox; with --destroyed its id or key.", show_default=False)
]
DestroyedOption = Annotated[bool, typer.Option("--destroyed", help="Of sandboxes that are gone; without ID, a list.")]


def journal(
    id: IdArgument = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it happens.")] = False,
    since: Annotated[str | None, typer.Option(metavar="CURSOR", help="Only what comes after this event.")] = None,
    destroyed: DestroyedOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Print what was done to a sandbox and in it, by whom, and how it ended.

    Reading it starts nothing. With --json, one event on each line.

    cove journal -f my-sandbox
    """
    server = Server.named(url, api_key)
    if id is None:
        if not destroyed:
            raise ValidationFailed("name a sandbox: `cove journal ID`, or list those that are gone with --destroyed")
        finish(_list(server, as_json=as_json))
    if destroyed and follow:
        raise ValidationFailed("nothing more happens to a sandbox that is gone: leave out --follow")
    finish(_print(server, id, since, follow=follow, destroyed=destroyed, as_json=as_json))


def replay(
    id: Annotated[str, typer.Argument(metavar="ID", help="The sandbox.", show_default=False)],
    terminal: Annotated[
        str | None, typer.Option(metavar="ID", help="Write this terminal as an asciicast, for asciinema.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write there; standard output by default.")
    ] = None,
    destroyed: DestroyedOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Write a transcript: commands and what they printed, in order.

    Output is in it where the sandbox was created with --journal output, or a process still has its log.

    cove replay my-sandbox --terminal main -o main.cast
    """
    finish(_replay(Server.named(url, api_key), id, terminal, output, destroyed=destroyed))


async def _list(server: Server, *, as_json: bool) -> int:
    await server.check()
    found = await AsyncSandbox.list_destroyed(url=server.url, api_key=server.api_key)
    if as_json:
        print_json(found)
    else:
        rows = [(each.id, each.key, age(each.destroyed_at), str(each.size)) for each in found]
        print_table(("ID", "KEY", "GONE SINCE", "BYTES"), rows)
    return 0


async def _events(
    server: Server, id: str, since: str | None, *, follow: bool, destroyed: bool
) -> AsyncGenerator[JournalEvent, None]:
    if destroyed:
        key = await _key_of(server, id)
        reading = AsyncSandbox.destroyed_journal(key, since=since, url=server.url, api_key=server.api_key)
        async with aclosing(reading) as events:
            async for event in events:
                yield event
        return
    async with server.sandbox(id) as sandbox, aclosing(sandbox.journal(since=since, follow=follow)) as events:
        async for event in events:
            yield event


async def _key_of(server: Server, id: str) -> str:
    """Return the key of the sandbox that had the id last; a key stands for itself."""
    await server.check()
    found = await AsyncSandbox.list_destroyed(url=server.url, api_key=server.api_key)
    return next((each.key for each in reversed(found) if id in (each.id, each.key)), id)


async def _print(server: Server, id: str, since: str | None, *, follow: bool, destroyed: bool, as_json: bool) -> int:
    try:
        async with aclosing(_events(server, id, since, follow=follow, destroyed=destroyed)) as events:
            async for event in events:
                if as_json:
                    print(json_line(event).decode(), end="", flush=True)
                else:
                    show(f"{event.at.astimezone():%Y-%m-%d %H:%M:%S} {describe(event)}")
    except BrokenPipeError:
        return BROKEN_PIPE
    return 0


async def _replay(server: Server, id: str, terminal: str | None, output: Path | None, *, destroyed: bool) -> int:
    async with aclosing(_events(server, id, None, follow=False, destroyed=destroyed)) as reading:
        events = [event async for event in reading]
    if terminal is not None:
        lines = list(asciicast(events, terminal))
        if len(lines) < 2:
            raise ValidationFailed(
                f"the journal has nothing that terminal {terminal} has shown: create the sandbox with "
                "`--journal output`, which keeps it"
            )
    else:
        logs = {} if destroyed else await _logs(server, id, events)
        lines = [printable(line) for line in Transcript(logs).write(events)]
    return _write(lines, output)


def _write(lines: list[str], output: Path | None) -> int:
    text = "".join(f"{line}\n" for line in lines)
    if output is not None:
        output.write_text(text, encoding="utf-8")
        say(f"wrote {output}")
        return 0
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        return BROKEN_PIPE
    return 0


async def _logs(server: Server, id: str, events: list[JournalEvent]) -> dict[str, str]:
    """Return what running sandboxes still have of their processes' output, where the journal has none."""
    has_output = {event.subject for event in events if event.kind is JournalKind.OUTPUT}
    wanted = {event.subject for event in events if event.kind is JournalKind.PROCESS_STARTED} - has_output
    found: dict[str, str] = {}
    async with server.sandbox(id) as sandbox:
        if (await sandbox.info()).status is not SandboxStatus.RUNNING:
            return found
        for process in await sandbox.list_processes():
            if process.id in wanted:
                with suppress(CoveError):  # forgotten just now
                    found[process.id] = await _log(process.logs(follow=False))
    return found


async def _log(reading: AsyncGenerator[object, None]) -> str:
    async with aclosing(reading) as events:
        printed = [event.data async for event in events if isinstance(event, Output)]
    return b"".join(printed).decode("utf-8", "replace")
