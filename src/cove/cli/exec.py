"""`cove exec`: run one command in a sandbox, on this program's own standard streams."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, assert_never

import typer

from cove.api import AsyncSandbox, Process
from cove.cli.connection import InOption, KeyOption, PlaceUrlOption, Workplace, choose_workplace
from cove.cli.denials import tell_denials
from cove.cli.descriptors import BROKEN_PIPE, say
from cove.cli.options import CommandArgument, CwdOption, EnvOption, Shape, parse_command, parse_variables, shaped
from cove.cli.signals import finish
from cove.cli.streams import DESCRIPTORS, Streams
from cove.errors import ProcessExitedBeforeReady, ProcessNotFound, SandboxUnavailable, ValidationFailed
from cove.model import Exit, Gap, Outcome, Output
from cove.tasks import end, owned

_NO_PROGRAM = 127


@shaped
def exec(
    command: CommandArgument,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End the command after so many seconds: exit code 124.")
    ] = None,
    env: EnvOption = None,
    cwd: CwdOption = None,
    inside: InOption = None,
    *,
    shape: Shape,
    url: PlaceUrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Run one command in a throw-away sandbox, or with --in in one of a server.

    Standard input, output and error are passed through; the command's exit code becomes that of `cove`. 125 means
    that Cove itself failed.

    cove exec 'ls | wc -l'

    cove exec -- python3 -c 'print(1)'

    cove exec --in my-sandbox 'tail -n 5 report.txt'

    cove exec --in my-sandbox --user root 'apt-get install -y jq'
    """
    user = None if inside is None else shape.user
    workplace = choose_workplace(inside, url, api_key, shape if user is None else replace(shape, user=None))
    how = _How(cwd, parse_variables(env), timeout, user)
    finish(_run(workplace, parse_command(command), how))


@dataclass(frozen=True, slots=True)
class _How:
    """The options of one command. `user` is given where the sandbox is there already."""

    cwd: str | None
    env: dict[str, str]
    timeout: float | None
    user: str | None


async def _run(workplace: Workplace, command: str | list[str], how: _How) -> int:
    async with workplace.open() as sandbox:
        try:
            code = _exit_code(await _run_in(sandbox, command, how), how.timeout)
        except BrokenPipeError:
            return BROKEN_PIPE
        if workplace.has_policy:
            await tell_denials(sandbox)
    first = command if isinstance(command, str) else command[0]
    if code == _NO_PROGRAM and workplace.id is None and await workplace.knows(first):
        say(f"{first} is a sandbox: to run a command in it, write `cove exec --in {first} COMMAND`")
    return code


async def _run_in(sandbox: AsyncSandbox, command: str | list[str], how: _How) -> Exit:
    streams = Streams()
    process = await sandbox.start_process(
        command, stdin=True, cwd=how.cwd, env=how.env, timeout=how.timeout, user=how.user, lossless=True
    )
    feeding = owned(_feed(process, streams))
    try:
        return await _print(process, streams)
    except (asyncio.CancelledError, BrokenPipeError):
        await process.terminate()  # a sandbox that is not thrown away would let it run on
        raise
    finally:
        await end(feeding)


async def _feed(process: Process, streams: Streams) -> None:
    try:
        while data := await streams.read():
            await process.write_stdin(data)
        await process.close_stdin()
    except (ProcessExitedBeforeReady, ValidationFailed, ProcessNotFound):
        return  # the command reads no more, as `head` does: what is left is for nobody


async def _print(process: Process, streams: Streams) -> Exit:
    async with aclosing(process.logs(lossless=True)) as events:
        async for event in events:
            match event:
                case Output():
                    await streams.write(DESCRIPTORS[event.stream], event.data)
                case Gap():
                    say(f"{event.bytes} bytes of output were not kept")
                case Exit():
                    return event
                case _:
                    assert_never(event)
    raise SandboxUnavailable("the sandbox ended before the command did: run it again")


def _exit_code(end: Exit, timeout: float | None) -> int:
    if end.exit_code is None:
        raise SandboxUnavailable("the sandbox was lost while the command ran: run it again")
    if end.outcome is Outcome.TIMED_OUT:
        say(f"the command was ended after {timeout:g} seconds")
    elif end.outcome is Outcome.OUT_OF_MEMORY:
        say("the command was ended because it ran out of memory")
    return end.exit_code
