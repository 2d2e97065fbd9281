"""The table of subcommands, each with its help and module: `cove --help` imports none of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cove.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer import Typer

Function = TypeVar("Function", bound="Callable[..., None]")


class Command(NamedTuple):
    """One subcommand: `name` in the module of `cove.cli`. Those that are open end with a command to run."""

    name: str
    module: str
    summary: str
    is_open: bool = False


GROUPS: Final = {
    "Without a server": (
        Command("exec", "exec", "Run one command in a throw-away sandbox.", is_open=True),
        Command("run", "run", "Run code in a throw-away sandbox."),
        Command("shell", "shell", "Open an interactive terminal in a throw-away sandbox.", is_open=True),
        Command("mcp", "mcp", "Give a sandbox to a host that speaks the Model Context Protocol."),
    ),
    "This machine": (
        Command("demo", "demo", "Show each surface in a real sandbox."),
        Command("doctor", "doctor", "Say what this machine has, what is missing, and what to do."),
        Command("verify", "verify", "Try to break out of a sandbox on this machine, in many ways."),
        Command("setup", "setup", "Make the Python environment that sandboxes see."),
        Command("image", "image", "Images for sandboxes: load, pull, build, ls, and more."),
        Command("serve", "serve", "Serve sandboxes over HTTP until told to stop."),
        Command("key", "key", "API keys of a server: create, ls, rotate, rm."),
        Command("cluster", "cluster", "Several machines as one server: start, join, status, drain, and more."),
        Command("version", "version", "Print the version."),
    ),
    "Sandboxes of a server": (
        Command("create", "sandboxes", "Make a sandbox and print its id."),
        Command("ls", "sandboxes", "List the sandboxes."),
        Command("info", "sandboxes", "Show what a sandbox is."),
        Command("restart", "sandboxes", "End what runs in a sandbox and start it again on its files."),
        Command("stop", "life", "End what runs in a sandbox; `cove start ID` starts it again."),
        Command("pause", "life", "Freeze everything in a sandbox."),
        Command("resume", "life", "Let a paused sandbox go on."),
        Command("label", "life", "Replace the labels of a sandbox."),
        Command("move", "move", "Move a sandbox to another node of the cluster."),
        Command("rm", "sandboxes", "Destroy sandboxes with all they have."),
        Command("journal", "journal", "Print what was done to a sandbox and in it; -f to follow."),
        Command("replay", "journal", "Write what was done in a sandbox as a transcript."),
        Command("volume", "volume", "Named volumes, which outlive sandboxes: create, ls, rm."),
    ),
    "In a sandbox of a server (`exec`, `run` and `shell` too, with --in ID)": (
        Command(
            "start",
            "processes",
            "Start a process and print its id; with no command, the sandbox.",
            is_open=True,
        ),
        Command("ps", "processes", "List the processes."),
        Command("logs", "processes", "Print what a process has printed; -f to follow."),
        Command("kill", "processes", "Signal a process and all it has started."),
        Command("session", "session", "Shells that keep their state: create, exec, ls, rm."),
        Command("port", "port", "What listens inside, for others to reach: expose, ls, rm."),
        Command("token", "token", "Print a key for one sandbox and some operations."),
        Command("mount", "mount", "Directories, volumes and buckets of a sandbox: add, ls, rm, sync."),
        Command("network", "network", "What a sandbox may reach: presets, set, log."),
        Command("snapshot", "snapshot", "The files of a sandbox at one moment: create, ls, rm, export, load."),
        Command("restore", "snapshot", "Let a sandbox go back to a snapshot."),
        Command("fork", "snapshot", "Make copies of a sandbox as it is now, and print their ids."),
        Command("commit", "image", "Make an image of a sandbox as it is now."),
        Command("diff", "snapshot", "Print what has changed in a sandbox, as a patch."),
        Command("backup", "backup", "Directories, kept to be restored: create, ls, restore, rm."),
        Command("cp", "cp", "Copy files and directories in or out."),
        Command("watch", "watch", "Print what changes in a directory."),
    ),
}
COMMANDS: Final = {command.name: command for group in GROUPS.values() for command in group}

_PAGE: Final = """\
Usage: cove COMMAND [OPTIONS] ...

A Linux computer that an AI agent, or any program, can use safely.

{groups}

A server is named by --url or COVE_URL, its key by --api-key or COVE_API_KEY; by
default it is that of this machine. `cove COMMAND --help` tells more."""


def overview() -> str:
    """Return the page of `cove --help`."""
    return _PAGE.format(groups="\n\n".join(_describe(heading, group) for heading, group in GROUPS.items()))


def load(name: str) -> "Typer":
    """Return the subcommand as a program of its own."""
    if name not in COMMANDS:
        raise ValidationFailed(f"there is no command {name!r}{_similar(name)}: `cove --help` lists them")
    from typer import Typer

    command = COMMANDS[name]
    found = getattr(import_module(f"cove.cli.{command.module}"), name)
    if isinstance(found, Typer):
        return found
    program = make_program()
    if command.is_open:
        declare_open(program)(found)
    else:
        program.command()(found)
    return program


def declare_open(program: "Typer", name: str | None = None) -> "Callable[[Function], Function]":
    """Declare a subcommand that ends with a command to run."""
    from cove.cli.command_line import OpenCommand

    return program.command(name, cls=OpenCommand, context_settings={"allow_interspersed_args": False})


def make_program(help: str | None = None) -> "Typer":
    """Return one command or, with help of its own, several with a common name."""
    from typer import Typer

    return Typer(
        help=help,
        no_args_is_help=help is not None,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def _describe(heading: str, group: tuple[Command, ...]) -> str:
    return "\n".join([f"{heading}:", *(f"  {command.name:<9}{command.summary}" for command in group)])


def _similar(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, 1)
    return f" (perhaps {close[0]!r})" if close else ""
