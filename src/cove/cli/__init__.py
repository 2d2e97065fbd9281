"""The command `cove`: one module per subcommand or family of them, and the failures that all of them share."""

import errno
import io
import sys
from typing import IO, Protocol, runtime_checkable

from cove import __version__
from cove.cli.commands import load, overview
from cove.cli.descriptors import (
    BROKEN_PIPE,
    DISK_FULL,
    FAILURE,
    INTERRUPTED,
    fill_closed_descriptors,
    leave,
    printable,
    say,
)
from cove.errors import CoveError

_HELP = ("--help", "-h", "help")


def main() -> None:
    """Run the subcommand that the arguments name, and end this process with its exit code."""
    fill_closed_descriptors()
    leave(_run(sys.argv[1:] or ["--help"]))


def _run(arguments: list[str]) -> int:
    try:
        return _exit_code(_start(*arguments))
    except SystemExit as end:
        return _exit_code(end.code)
    except CoveError as error:
        return _fail(error.message)
    except BrokenPipeError:
        return BROKEN_PIPE
    except KeyboardInterrupt:  # while the subcommand was being imported; later it has its own way to stop
        return INTERRUPTED
    except OSError as error:
        return _fail(_explain(error))
    except Exception as error:  # noqa: BLE001  # a bug is told as one, with what to do
        if isinstance(error, _UsageError):
            return _refuse(error)
        import traceback  # takes longer than `cove version`

        _print_lines(traceback.format_exc())
        return _fail("this is a bug in Cove: please report it with the lines above.")


def _start(name: str, *arguments: str) -> object:
    if name == "help" and arguments:
        return _start(arguments[0], "--help")
    if name in _HELP:
        print(overview())
    elif name in ("version", "--version") and not arguments:
        print(f"cove {__version__}")
    else:
        program = load("version" if name == "--version" else name)
        return program(arguments, prog_name=f"cove {name}", standalone_mode=False)
    return 0


@runtime_checkable
class _UsageError(Protocol):
    """The exception of typer for arguments that it does not take; its class is public in no version."""

    def show(self, file: IO[str]) -> None:
        """Print the usage and what is wrong."""


def _refuse(error: _UsageError) -> int:
    text = io.StringIO()
    error.show(text)
    _print_lines(text.getvalue())
    return FAILURE


def _print_lines(text: str) -> None:
    for line in text.splitlines():
        print(printable(line), file=sys.stderr)


def _exit_code(code: object) -> int:
    return code if isinstance(code, int) else 0


def _explain(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return DISK_FULL
    return f"{error}. `cove doctor` checks what Cove needs from this machine."


def _fail(message: str) -> int:
    say(message)
    return FAILURE
