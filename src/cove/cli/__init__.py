"""The command `cove`: one module per subcommand or family of them, and the failures that all of them share."""

import errno
import sys

from cove import __version__
from cove.cli.commands import load, overview
from cove.cli.descriptors import BROKEN_PIPE, DISK_FULL, FAILURE, INTERRUPTED, fill_closed_descriptors, leave, say
from cove.errors import CoveError

_USAGE_ERROR = 2
_HELP = ("--help", "-h", "help")


def main() -> None:
    """Run the subcommand that the arguments name, and end this process with its exit code."""
    fill_closed_descriptors()
    leave(_run(sys.argv[1:] or ["--help"]))


def _run(arguments: list[str]) -> int:
    try:
        _start(*arguments)
    except SystemExit as end:
        return FAILURE if end.code == _USAGE_ERROR else _exit_code(end.code)
    except CoveError as error:
        return _fail(error.message)
    except BrokenPipeError:
        return BROKEN_PIPE
    except KeyboardInterrupt:  # while the subcommand was being imported; later it has its own way to stop
        return INTERRUPTED
    except OSError as error:
        return _fail(_explain(error))
    except Exception:
        import traceback  # takes longer than `cove version`

        traceback.print_exc()
        return _fail("this is a bug in Cove: please report it with the lines above.")
    return 0


def _start(name: str, *arguments: str) -> None:
    if name == "help" and arguments:
        _start(arguments[0], "--help")
    elif name in _HELP:
        print(overview())
    elif name in ("version", "--version") and not arguments:
        print(f"cove {__version__}")
    else:
        load("version" if name == "--version" else name)(arguments, prog_name=f"cove {name}")


def _exit_code(code: object) -> int:
    return code if isinstance(code, int) else 0


def _explain(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return DISK_FULL
    return f"{error}. `cove doctor` checks what Cove needs from this machine."


def _fail(message: str) -> int:
    say(message)
    return FAILURE
