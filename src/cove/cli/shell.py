"""`cove shell`: an interactive terminal in a sandbox, on the terminal that this program was started in."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import Annotated

import typer

from cove.api import AsyncSandbox, Terminal
from cove.cli.connection import InOption, KeyOption, PlaceUrlOption, Workplace, choose_workplace
from cove.cli.descriptors import STDIN, say
from cove.cli.options import CwdOption, EnvOption, Shape, parse_variables, shaped
from cove.cli.signals import STOP_SIGNALS, finish
from cove.cli.viewer import Detached, RawMode, Viewer, window_size
from cove.errors import ValidationFailed

_HANG_UP = 128 + signal.SIGHUP
_CONTROL_MASK = 0x1F


@shaped
def shell(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="PROGRAM", help="What to run instead of bash, and its arguments.")
    ] = None,
    env: EnvOption = None,
    cwd: CwdOption = None,
    inside: InOption = None,
    terminal: Annotated[
        str | None, typer.Option(metavar="ID", help="With --in: a terminal to come back to; made if it is not there.")
    ] = None,
    detach_key: Annotated[
        str, typer.Option(metavar="KEY", help="With --in: leaves the terminal as it is; `none` for no such key.")
    ] = "ctrl-]",
    *,
    shape: Shape,
    url: PlaceUrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Open an interactive terminal in a throw-away sandbox, or with --in in one of a server.

    Every key goes to the sandbox, Ctrl-C, Ctrl-Z and Ctrl-D too; the shell's exit code becomes that of `cove`. 125
    means that Cove itself failed. With --in, Ctrl-] or closing the window leaves the terminal running, with all that
    runs in it; --terminal ID comes back to it.

    cove shell

    cove shell --mount .:/workspace:rw -- python3 -q

    cove shell --in my-sandbox --terminal main
    """
    if not os.isatty(STDIN):
        raise ValidationFailed("standard input is not a terminal: `cove exec` takes pipes and files")
    if terminal is not None and inside is None:
        raise ValidationFailed("--terminal names a terminal of a sandbox that stays: say which with --in")
    workplace = choose_workplace(inside, url, api_key, shape)
    work = _run(workplace, terminal, program or None, cwd, parse_variables(env), _parse_key(detach_key))
    finish(work, (*STOP_SIGNALS, signal.SIGQUIT))


async def _run(
    workplace: Workplace, name: str | None, program: list[str] | None, cwd: str | None, env: dict[str, str], key: bytes
) -> int:
    is_kept = workplace.id is not None
    async with workplace.open() as sandbox:
        cols, rows = window_size()
        terminal = await sandbox.terminal(id=name, shell=program, cwd=cwd, env=env, cols=cols, rows=rows)
        try:
            return await _view(terminal, key if is_kept else b"")
        except (Detached, asyncio.CancelledError) as reason:
            if is_kept:
                _tell_the_way_back(sandbox, terminal)
            if isinstance(reason, Detached):
                return 0 if reason.is_wanted else _HANG_UP
            raise


async def _view(terminal: Terminal, key: bytes) -> int:
    async with terminal.connect(lossless=True) as connection:
        with RawMode(STDIN) as mode:
            return await Viewer(connection, key).run(mode)


def _tell_the_way_back(sandbox: AsyncSandbox, terminal: Terminal) -> None:
    with suppress(OSError):  # our own terminal is gone
        print(file=sys.stderr)
    say(f"the terminal runs on; to come back: cove shell --in {sandbox.id} --terminal {terminal.id}")


def _parse_key(text: str) -> bytes:
    """`ctrl-x` for a letter or one of @[\\]^_, as the byte that a terminal sends for it."""
    if text == "none":
        return b""
    prefix, _, key = text.lower().rpartition("-")
    if prefix == "ctrl" and len(key) == 1 and "@" <= key.upper() <= "_":
        return bytes([ord(key.upper()) & _CONTROL_MASK])
    raise ValidationFailed(f"--detach-key {text}: write it as ctrl-] or ctrl-x, or `none`")
