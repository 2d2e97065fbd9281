"""The command `cove`: one module per subcommand, and the failures that all of them share."""

import sys
import traceback
from contextlib import suppress

import typer

from cove.cli import demo, doctor, run, serve, setup, shell, version
from cove.cli import exec as exec_command
from cove.cli.streams import BROKEN_PIPE, fill_closed_descriptors, leave
from cove.errors import CoveError

# What docker and timeout(1) use for their own failures, so that a command's exit code is never mistaken for ours.
FAILURE = 125

_USAGE_ERROR = 2

app = typer.Typer(
    help="A Linux computer that an AI agent, or any program, can use safely.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
# Options stand before the command: what follows its first word belongs to the command.
app.command("exec", context_settings={"allow_interspersed_args": False})(exec_command.exec)
app.command("shell", context_settings={"allow_interspersed_args": False})(shell.shell)
app.command("run")(run.run)
app.command("serve")(serve.serve)
app.command("setup")(setup.setup)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.command("version")(version.version)


def main() -> None:
    """Run the subcommand that the arguments name, and end this process with its exit code."""
    fill_closed_descriptors()
    leave(_run(sys.argv[1:] or ["--help"]))


def _run(arguments: list[str]) -> int:
    try:
        app(arguments, prog_name="cove")
    except SystemExit as end:
        return FAILURE if end.code == _USAGE_ERROR else _exit_code(end.code)
    except CoveError as error:
        return _fail(error.message)
    except BrokenPipeError:
        return BROKEN_PIPE
    except OSError as error:
        return _fail(f"{error}. `cove doctor` checks what Cove needs from this machine.")
    except Exception:
        traceback.print_exc()
        return _fail("this is a bug in Cove: please report it with the lines above.")
    return 0


def _exit_code(code: object) -> int:
    return code if isinstance(code, int) else 0


def _fail(message: str) -> int:
    with suppress(OSError):  # the terminal is gone
        print("cove:", " ".join(message.split()), file=sys.stderr, flush=True)
    return FAILURE
