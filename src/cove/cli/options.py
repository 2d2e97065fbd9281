"""What several subcommands take, spelled once."""

from typing import Annotated

import typer

from cove.errors import ValidationFailed
from cove.model import Isolation, Mount, Network, SandboxSpec

EnvOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a variable. Repeatable.")]
CwdOption = Annotated[
    str | None, typer.Option(metavar="DIR", help="Directory inside the sandbox; /workspace by default.")
]
NetworkOption = Annotated[Network | None, typer.Option(help="What the sandbox can reach; none by default.")]
MountOption = Annotated[
    list[str] | None,
    typer.Option(metavar="SRC:DST[:rw]", help="Show a host directory inside, read-only unless :rw. Repeatable."),
]
IsolationOption = Annotated[
    Isolation | None, typer.Option(help="`none` runs unconfined, for trusted code only; bubblewrap by default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SandboxArgument = Annotated[str, typer.Argument(metavar="ID", help="The sandbox.", show_default=False)]
CommandArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND",
        help="One argument is a shell line; several are a program and its arguments.",
        show_default=False,
    ),
]


def make_spec(isolation: Isolation | None, network: Network | None, mounts: list[str] | None) -> SandboxSpec:
    """The sandbox that the options ask for."""
    return SandboxSpec(
        isolation=isolation or Isolation.BUBBLEWRAP,
        network=network or Network.NONE,
        mounts=tuple(map(parse_mount, mounts or ())),
    )


def parse_command(words: list[str]) -> str | list[str]:
    """One word is a shell line, several are a program and its arguments. `--` may stand before them."""
    words = words[1:] if words[0] == "--" and len(words) > 1 else words
    return words[0] if len(words) == 1 else words


def parse_variables(texts: list[str] | None, option: str = "--env") -> dict[str, str]:
    """NAME=VALUE, any number of times."""
    return dict(_parse_variable(text, option) for text in texts or ())


def parse_mount(text: str) -> Mount:
    """SRC:DST, SRC:DST:ro or SRC:DST:rw."""
    match text.split(":"):
        case [source, target] | [source, target, "ro"] if source and target:
            return Mount(source=source, target=target)
        case [source, target, "rw"] if source and target:
            return Mount(source=source, target=target, read_only=False)
    raise ValidationFailed(f"--mount {text}: write it as SRC:DST, or SRC:DST:rw to let the command write there")


def _parse_variable(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValidationFailed(f"{option} {text}: write it as NAME=VALUE")
    return name, value
