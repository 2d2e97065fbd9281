"""`cove start`, `ps`, `logs` and `kill`: the processes of a sandbox."""

import shlex
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

import typer

from cove.api import Process
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import BROKEN_PIPE, STDOUT, say, show
from cove.cli.life import change
from cove.cli.options import (
    CwdOption,
    EnvOption,
    JsonOption,
    SandboxArgument,
    parse_command,
    parse_variables,
)
from cove.cli.signals import finish
from cove.cli.streams import DESCRIPTORS, Streams
from cove.cli.table import age, json_line, print_json, print_table
from cove.errors import ProcessAlreadyExists, ValidationFailed
from cove.model import Gap, LogEvent, Output
from cove.wire.frames import output_fields
from cove.wire.replies import PROCESS

OptionalCommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[COMMAND [ARGUMENT...]]", help="The command; one word is run by bash.", show_default=False),
]
ProcessArgument = Annotated[str, typer.Argument(metavar="PROCESS", help="The process's id.", show_default=False)]


def start(
    id: SandboxArgument,
    command: OptionalCommandArgument = None,
    name: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The process's id; one is made up by default.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="SESSION", help="Start it from a copy of this session's state.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="End it after so many seconds.")] = None,
    env: EnvOption = None,
    cwd: CwdOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Start a process in a sandbox and print its id. It lives on its own.

    Without a command the sandbox itself is started, which `cove stop` has stopped.

    cove start --id web my-sandbox 'python3 -u -m http.server 3000'
    """
    if not command:
        finish(change(Server.named(url, api_key), id, lambda sandbox: sandbox.start()))
    request = _Request(parse_command(command), name, cwd, parse_variables(env), timeout)
    finish(_start(Server.named(url, api_key), id, session, request, as_json=as_json))


def ps(
    id: SandboxArgument,
    cleanup: Annotated[
        bool, typer.Option("--cleanup", help="Forget the ended ones first, with their logs: their ids are free again.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the processes of a sandbox, ended ones too."""
    finish(_list(Server.named(url, api_key), id, cleanup=cleanup, as_json=as_json))


def logs(
    id: SandboxArgument,
    process: ProcessArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the process ends.")] = False,
    since: Annotated[str | None, typer.Option(metavar="CURSOR", help="Only what came after this cursor.")] = None,
    show_cursor: Annotated[
        bool, typer.Option("--show-cursor", help="At the end, print the cursor to go on from, on standard error.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print events, one JSON object on each line.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Print what a process has printed, byte by byte, on the same streams.

    The process does not notice: Ctrl-C ends only the reading.

    cove logs -f my-sandbox web
    """
    printer = _Printer(as_json=as_json)
    finish(_logs(Server.named(url, api_key), id, process, since, printer, follow=follow, show_cursor=show_cursor))


def kill(
    id: SandboxArgument,
    process: ProcessArgument,
    signal: Annotated[str, typer.Option("-s", "--signal", metavar="SIGNAL", help="A name or a number.")] = "TERM",
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Signal a process and all it has started."""
    finish(_kill(Server.named(url, api_key), id, process, int(signal) if signal.isdecimal() else signal))


@dataclass(frozen=True, slots=True)
class _Request:
    """The process to start."""

    command: str | list[str]
    id: str | None
    cwd: str | None
    env: dict[str, str]
    timeout: float | None


async def _start(server: Server, id: str, session: str | None, request: _Request, *, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        starter = sandbox if session is None else await sandbox.get_session(session)
        try:
            process = await starter.start_process(
                request.command, id=request.id, cwd=request.cwd, env=request.env, timeout=request.timeout
            )
        except ProcessAlreadyExists:
            advice = f"choose another --id, or forget those that have ended with `cove ps --cleanup {id}`"
            raise ValidationFailed(f"there is a process {request.id} already: {advice}") from None
    if as_json:
        print_json(PROCESS.encode(process))
    else:
        show(process.id)
    return 0


async def _list(server: Server, id: str, *, cleanup: bool, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        if cleanup:
            await sandbox.cleanup_processes()
        processes = await sandbox.list_processes()
    if as_json:
        print_json(list(map(PROCESS.encode, processes)))
    else:
        print_table(("ID", "STATUS", "EXIT", "PID", "AGE", "COMMAND"), list(map(_row, processes)))
    return 0


def _row(process: Process) -> tuple[str, ...]:
    command = process.command if isinstance(process.command, str) else shlex.join(process.command)
    code = "" if process.exit_code is None else str(process.exit_code)
    return process.id, process.status, code, str(process.pid), age(process.started_at), " ".join(command.split())


async def _logs(
    server: Server, id: str, name: str, since: str | None, printer: "_Printer", *, follow: bool, show_cursor: bool
) -> int:
    async with server.sandbox(id) as sandbox:
        process = await sandbox.get_process(name)
        try:
            async with aclosing(process.logs(since=since, follow=follow)) as events:
                async for event in events:
                    since = event.cursor
                    await printer.event(event)
        except BrokenPipeError:
            return BROKEN_PIPE
        finally:
            if show_cursor and since is not None:
                say(f"cursor {since}")
    return 0


class _Printer:
    """Events as the bytes that they carry, or as lines of JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._streams = Streams()

    async def event(self, event: LogEvent) -> None:
        """Print one event."""
        if self._as_json:
            await self._streams.write(STDOUT, _line(event))
        elif isinstance(event, Output):
            await self._streams.write(DESCRIPTORS[event.stream], event.data)
        elif isinstance(event, Gap):
            say(f"{event.bytes} bytes of output were not kept")


def _line(event: LogEvent) -> bytes:
    return json_line(output_fields(event) if isinstance(event, Output) else event)


async def _kill(server: Server, id: str, process: str, signal: int | str) -> int:
    async with server.sandbox(id) as sandbox:
        await sandbox.kill_process(process, signal)
    return 0
