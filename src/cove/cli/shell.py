"""`cove shell`: an interactive terminal in a throw-away sandbox, on the terminal that this program was started in."""

import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, assert_never

import typer

from cove import AsyncSandbox
from cove.api import TerminalConnection
from cove.cli.options import (
    CwdOption,
    EnvOption,
    IsolationOption,
    MountOption,
    NetworkOption,
    make_spec,
    parse_variables,
)
from cove.cli.raw_mode import RawMode
from cove.cli.signals import STOP_SIGNALS, cancel, until_signal
from cove.cli.streams import BROKEN_PIPE, STDIN, STDOUT, Streams, leave
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.model import Exit, Gap, Isolation, Network, Output, Ready, SandboxSpec

_HANG_UP = 128 + signal.SIGHUP
_DEFAULT_SIZE = (80, 24)
_LARGEST_SIZE = 1000


def shell(
    program: Annotated[list[str] | None, typer.Argument(help="What to run instead of bash, and its arguments.")] = None,
    env: EnvOption = None,
    cwd: CwdOption = None,
    network: NetworkOption = Network.NONE,
    mount: MountOption = None,
    isolation: IsolationOption = Isolation.BUBBLEWRAP,
) -> None:
    """Open an interactive terminal in a throw-away sandbox.

    Every key goes to the sandbox, Ctrl-C, Ctrl-Z and Ctrl-D too; the shell's exit code becomes that of `cove`. 125
    means that Cove itself failed.

    cove shell

    cove shell --mount .:/workspace:rw -- python3 -q
    """
    if not os.isatty(STDIN):
        raise ValidationFailed("standard input is not a terminal: `cove exec` takes pipes and files")
    if isolation is Isolation.NONE:
        print("cove: no isolation: this shell can do whatever you can", file=sys.stderr, flush=True)
    work = _run(make_spec(isolation, network, mount), program or None, cwd, parse_variables(env))
    leave(asyncio.run(until_signal(work, (*STOP_SIGNALS, signal.SIGQUIT))))


async def _run(spec: SandboxSpec, program: list[str] | None, cwd: str | None, env: dict[str, str]) -> int:
    async with AsyncSandbox.create(spec=spec) as sandbox:
        cols, rows = _size()
        terminal = await sandbox.terminal(shell=program, cwd=cwd, env=env, cols=cols, rows=rows)
        async with terminal.connect(lossless=True) as connection:
            with RawMode(STDIN) as mode, _watched(mode) as changed:
                return await _relay(connection, changed)


@contextmanager
def _watched(mode: RawMode) -> Generator[asyncio.Event, None, None]:
    """What happens to our own terminal: it gets another size, or is taken away for a while."""
    changed = asyncio.Event()

    def resume() -> None:
        mode.resume()
        changed.set()

    loop = asyncio.get_running_loop()
    handlers = {signal.SIGWINCH: changed.set, signal.SIGTSTP: mode.suspend, signal.SIGCONT: resume}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield changed
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def _relay(connection: TerminalConnection, changed: asyncio.Event) -> int:
    """Keys in, output out, until the shell ends or our own terminal goes away."""
    streams = Streams()
    others = [asyncio.create_task(_feed(connection, streams)), asyncio.create_task(_follow_size(connection, changed))]
    try:
        return await _print(connection, streams)
    except BrokenPipeError:
        return BROKEN_PIPE
    except OSError:
        return _HANG_UP
    finally:
        for task in others:
            await cancel(task)


async def _feed(connection: TerminalConnection, streams: Streams) -> None:
    try:
        while data := await streams.read():
            await connection.write(data)
    except ValidationFailed:
        return  # the shell has ended: what is left is for nobody
    except OSError:
        pass
    await connection.close()


async def _follow_size(connection: TerminalConnection, changed: asyncio.Event) -> None:
    try:
        while True:
            await connection.resize(*_size())
            await changed.wait()
            changed.clear()
    except (ValidationFailed, OSError):
        return  # one of the two terminals is gone, which others see too


async def _print(connection: TerminalConnection, streams: Streams) -> int:
    async for event in connection:
        match event:
            case Output():
                await streams.write(STDOUT, event.data)
            case Exit():
                return _exit_code(event)
            case Gap() | Ready():
                pass  # a lossless viewer that saw the beginning has no gap
            case _:
                assert_never(event)
    return _HANG_UP


def _exit_code(end: Exit) -> int:
    if end.exit_code is None:
        raise SandboxUnavailable("the sandbox was lost, and the shell with it: start a new one")
    return end.exit_code


def _size() -> tuple[int, int]:
    """Columns and rows of our own terminal, as far as a terminal inside can have them."""
    found = os.get_terminal_size(STDIN)
    if not found.columns or not found.lines:
        return _DEFAULT_SIZE
    return min(found.columns, _LARGEST_SIZE), min(found.lines, _LARGEST_SIZE)
