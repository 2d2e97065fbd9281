"""`cove session`: shells that keep their state from command to command."""

from typing import Annotated

import typer

from cove.api import AsyncSandbox, Session
from cove.cli.commands import declare_open, make_program
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import BROKEN_PIPE, STDERR, STDOUT, say, show
from cove.cli.options import (
    CommandArgument,
    CwdOption,
    EnvOption,
    JsonOption,
    SandboxArgument,
    parse_command,
    parse_variables,
)
from cove.cli.sandboxes import ForceOption, remove_each
from cove.cli.signals import finish
from cove.cli.streams import Streams
from cove.cli.table import age, print_json, print_table
from cove.errors import SandboxUnavailable, SessionTerminated, ValidationFailed
from cove.model import ExecResult, SessionStatus
from cove.wire.replies import SessionReply, exec_reply

session = make_program("Shells that keep their state: what one command leaves behind, the next one finds.")
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.", show_default=False)]


@session.command()
@session.command("new", hidden=True)
def create(
    id: SandboxArgument,
    name: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id; one is made up by default.")] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Interrupt each command after so many seconds.")
    ] = None,
    env: EnvOption = None,
    cwd: CwdOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Start a shell and print its id."""
    finish(_create(Server.named(url, api_key), id, name, cwd, parse_variables(env), timeout, as_json=as_json))


@declare_open(session, "exec")
def execute(
    id: SandboxArgument,
    name: SessionArgument,
    command: CommandArgument,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Interrupt it after so many seconds: exit code 124.")
    ] = None,
    env: EnvOption = None,
    cwd: CwdOption = None,
    stdin: Annotated[
        bool, typer.Option("-i", "--stdin", help="Give it standard input, read to its end first.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Run one command in a session.

    The command's exit code becomes that of `cove`; 125 means that Cove itself failed. What it prints comes when it
    has ended: for more, start a process with `cove start --session`.

    cove session exec my-sandbox main 'cd /tmp; name=world'

    cove session exec my-sandbox main 'echo hello $name in $PWD'
    """
    variables = parse_variables(env)
    work = _execute(
        Server.named(url, api_key),
        id,
        name,
        parse_command(command),
        cwd,
        variables,
        timeout,
        stdin=stdin,
        as_json=as_json,
    )
    finish(work)


@session.command()
def fork(
    id: SandboxArgument,
    name: SessionArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Copy a session with its shell's state, and print the id of the copy."""
    finish(_fork(Server.named(url, api_key), id, name, as_json=as_json))


@session.command("ls")
def list_sessions(
    id: SandboxArgument, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None
) -> None:
    """List the sessions."""
    finish(_list(Server.named(url, api_key), id, as_json=as_json))


@session.command()
def rm(
    id: SandboxArgument,
    names: Annotated[list[str], typer.Argument(metavar="SESSION", help="Their ids.", show_default=False)],
    force: ForceOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """End sessions and all they have started."""
    finish(_remove(Server.named(url, api_key), id, names, force=force))


async def _create(
    server: Server,
    id: str,
    name: str | None,
    cwd: str | None,
    env: dict[str, str],
    timeout: float | None,
    *,
    as_json: bool,
) -> int:
    async with server.sandbox(id) as sandbox:
        made = await sandbox.create_session(id=name, cwd=cwd, env=env, timeout=timeout)
    return _tell_id(made.id, as_json=as_json)


async def _fork(server: Server, id: str, name: str, *, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        made = await (await _find(sandbox, name)).fork()
    return _tell_id(made.id, as_json=as_json)


def _tell_id(id: str, *, as_json: bool) -> int:
    if as_json:
        print_json(SessionReply(id))
    else:
        show(id)
    return 0


async def _execute(
    server: Server,
    id: str,
    name: str,
    command: str | list[str],
    cwd: str | None,
    env: dict[str, str],
    timeout: float | None,
    *,
    stdin: bool,
    as_json: bool,
) -> int:
    streams = Streams()
    async with server.sandbox(id) as sandbox:
        shell = await _find(sandbox, name)
        given = await _read_all(streams) if stdin else None
        try:
            result = await shell.exec(command, cwd=cwd, env=env, timeout=timeout, stdin=given)
        except SessionTerminated as end:
            return await _tell_end(streams, end)
    try:
        return await _tell(streams, result, as_json=as_json)
    except BrokenPipeError:
        return BROKEN_PIPE


async def _find(sandbox: AsyncSandbox, name: str) -> Session:
    """A session whose shell has ended would answer with the exit code of what ended it."""
    for found in await sandbox.list_sessions():
        if found.id == name and found.status is SessionStatus.TERMINATED:
            raise ValidationFailed(
                f"the shell of session {name} has ended: `cove session create --id {name} {sandbox.id}` starts another"
            )
    return await sandbox.get_session(name)


async def _read_all(streams: Streams) -> bytes:
    parts = []
    while data := await streams.read():
        parts.append(data)
    return b"".join(parts)


async def _tell(streams: Streams, result: ExecResult, *, as_json: bool) -> int:
    if as_json:
        print_json(exec_reply(result))
    else:
        await streams.write(STDOUT, result.stdout_bytes)
        await streams.write(STDERR, result.stderr_bytes)
    if result.exit_code is None:
        raise SandboxUnavailable("the sandbox was lost while the command ran: run it again")
    if result.truncated:
        say("some output was not kept")
    if result.timed_out:
        say("the time is up")
    if result.session_restarted:
        say(f"the shell had to be restarted; its state is as after: {result.restored_command or 'its start'}")
    return result.exit_code


async def _tell_end(streams: Streams, end: SessionTerminated) -> int:
    """A command that ends its shell has an exit code, too."""
    await streams.write(STDOUT, end.output.encode("utf-8", "surrogateescape"))
    if end.exit_code is None:
        raise end
    say(end.message)
    return end.exit_code


async def _list(server: Server, id: str, *, as_json: bool) -> int:
    async with server.sandbox(id) as sandbox:
        infos = await sandbox.list_sessions()
    if as_json:
        print_json(infos)
    else:
        rows = [(each.id, each.status, age(each.created_at), each.cwd) for each in infos]
        print_table(("ID", "STATUS", "AGE", "CWD"), rows)
    return 0


async def _remove(server: Server, id: str, names: list[str], *, force: bool) -> int:
    async with server.sandbox(id) as sandbox:
        return await remove_each(names, sandbox.delete_session, force=force)
