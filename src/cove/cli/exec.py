"""`cove exec`: one command in a throw-away sandbox, on this program's own standard streams."""

import asyncio
import sys
from typing import Annotated, assert_never

import typer

from cove import AsyncSandbox
from cove.api import Process
from cove.cli.options import (
    CwdOption,
    EnvOption,
    IsolationOption,
    MountOption,
    NetworkOption,
    make_spec,
    parse_variables,
)
from cove.cli.signals import cancel, until_signal
from cove.cli.streams import BROKEN_PIPE, STDERR, STDOUT, Streams, leave
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.model import Exit, Gap, Isolation, Network, Outcome, Output, SandboxSpec

_DESCRIPTORS = {"stdout": STDOUT, "stderr": STDERR}


def exec(
    command: Annotated[
        list[str], typer.Argument(help="One argument is a shell line; several are a program and its arguments.")
    ],
    timeout: Annotated[float | None, typer.Option(help="End the command after so many seconds: exit code 124.")] = None,
    env: EnvOption = None,
    cwd: CwdOption = None,
    network: NetworkOption = Network.NONE,
    mount: MountOption = None,
    isolation: IsolationOption = Isolation.BUBBLEWRAP,
) -> None:
    """Run one command in a throw-away sandbox.

    Standard input, output and error are passed through; the command's exit code becomes that of `cove`. 125 means
    that Cove itself failed.

    cove exec 'ls | wc -l'

    cove exec -- python3 -c 'print(1)'
    """
    if isolation is Isolation.NONE:
        _say("no isolation: this command can do whatever you can")
    spec = make_spec(isolation, network, mount)
    work = _run(command[0] if len(command) == 1 else command, spec, cwd, parse_variables(env), timeout)
    leave(asyncio.run(until_signal(work)))


async def _run(
    command: str | list[str], spec: SandboxSpec, cwd: str | None, env: dict[str, str], timeout: float | None
) -> int:
    streams = Streams()
    async with AsyncSandbox.create(spec=spec) as sandbox:
        process = await sandbox.start_process(command, stdin=True, cwd=cwd, env=env, timeout=timeout)
        feeding = asyncio.create_task(_feed(process, streams))
        try:
            return _exit_code(await _print(process, streams), timeout)
        except BrokenPipeError:
            return BROKEN_PIPE
        finally:
            await cancel(feeding)


async def _feed(process: Process, streams: Streams) -> None:
    try:
        while data := await streams.read():
            await process.write_stdin(data)
    except ValidationFailed:
        return  # the command reads no more, as `head` does: what is left is for nobody
    await process.close_stdin()


async def _print(process: Process, streams: Streams) -> Exit:
    async for event in process.logs(lossless=True):
        match event:
            case Output():
                await streams.write(_DESCRIPTORS[event.stream], event.data)
            case Gap():
                _say(f"{event.bytes} bytes of output were not kept")
            case Exit():
                return event
            case _:
                assert_never(event)
    raise SandboxUnavailable("the sandbox ended before the command did: run it again")


def _exit_code(end: Exit, timeout: float | None) -> int:
    if end.exit_code is None:
        raise SandboxUnavailable("the sandbox was lost while the command ran: run it again")
    if end.outcome is Outcome.TIMED_OUT:
        _say(f"the command was ended after {timeout:g} seconds")
    elif end.outcome is Outcome.OUT_OF_MEMORY:
        _say("the command was ended because it ran out of memory")
    return end.exit_code


def _say(message: str) -> None:
    print("cove:", message, file=sys.stderr, flush=True)
