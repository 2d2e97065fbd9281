"""`cove exec`: one command in a throw-away sandbox, on this program's own standard streams."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Annotated, assert_never

import typer

from cove import AsyncSandbox
from cove.api import Process
from cove.cli.streams import BROKEN_PIPE, STDERR, STDOUT, Streams, leave
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.model import Exit, Gap, Isolation, Mount, Network, Outcome, Output, SandboxSpec

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DESCRIPTORS = {"stdout": STDOUT, "stderr": STDERR}


def exec(
    command: Annotated[
        list[str], typer.Argument(help="One argument is a shell line; several are a program and its arguments.")
    ],
    timeout: Annotated[float | None, typer.Option(help="End the command after so many seconds: exit code 124.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a variable. Repeatable.")] = None,
    cwd: Annotated[str | None, typer.Option(help="Directory inside the sandbox; /workspace by default.")] = None,
    network: Annotated[Network, typer.Option(help="What the command can reach.")] = Network.NONE,
    mount: Annotated[
        list[str] | None,
        typer.Option(metavar="SRC:DST[:rw]", help="Show a host directory inside, read-only unless :rw. Repeatable."),
    ] = None,
    isolation: Annotated[
        Isolation, typer.Option(help="`none` runs the command unconfined: for trusted code only.")
    ] = Isolation.BUBBLEWRAP,
) -> None:
    """Run one command in a throw-away sandbox.

    Standard input, output and error are passed through; the command's exit code becomes that of `cove`. 125 means
    that Cove itself failed.

    cove exec 'ls | wc -l'

    cove exec -- python3 -c 'print(1)'
    """
    if isolation is Isolation.NONE:
        _say("no isolation: this command can do whatever you can")
    spec = SandboxSpec(isolation=isolation, network=network, mounts=tuple(map(parse_mount, mount or ())))
    variables = dict(map(parse_variable, env or ()))
    work = _run(command[0] if len(command) == 1 else command, spec, cwd, variables, timeout)
    leave(asyncio.run(_until_signal(work)))


def parse_variable(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValidationFailed(f"--env {text}: write it as NAME=VALUE")
    return name, value


def parse_mount(text: str) -> Mount:
    """SRC:DST, SRC:DST:ro or SRC:DST:rw."""
    match text.split(":"):
        case [source, target] | [source, target, "ro"] if source and target:
            return Mount(source=source, target=target)
        case [source, target, "rw"] if source and target:
            return Mount(source=source, target=target, read_only=False)
    raise ValidationFailed(f"--mount {text}: write it as SRC:DST, or SRC:DST:rw to let the command write there")


async def _until_signal(work: Coroutine[object, object, int]) -> int:
    """Cancel the work when we are told to stop. A second signal does not wait for the cleanup either."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) and background jobs keep ignoring it
            loop.add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]


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
            await _cancel(feeding)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _feed(process: Process, streams: Streams) -> None:
    try:
        while data := await streams.read():
            await process.write_stdin(data)
    except ValidationFailed:
        return  # the command reads no more, as `head` does: what is left is for nobody
    await process.close_stdin()


async def _print(process: Process, streams: Streams) -> Exit:
    async for event in process.logs(follow=True):
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
