"""What several subcommands take, spelled once."""

from typing import Annotated

import typer

from cove.errors import ValidationFailed
from cove.model import Isolation, Mount, Network, SandboxSpec

EnvOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a variable. Repeatable.")]
CwdOption = Annotated[str | None, typer.Option(help="Directory inside the sandbox; /workspace by default.")]
NetworkOption = Annotated[Network, typer.Option(help="What the command can reach.")]
MountOption = Annotated[
    list[str] | None,
    typer.Option(metavar="SRC:DST[:rw]", help="Show a host directory inside, read-only unless :rw. Repeatable."),
]
IsolationOption = Annotated[Isolation, typer.Option(help="`none` runs the command unconfined: for trusted code only.")]


def make_spec(isolation: Isolation, network: Network, mounts: list[str] | None) -> SandboxSpec:
    """The sandbox that the options ask for."""
    return SandboxSpec(isolation=isolation, network=network, mounts=tuple(map(parse_mount, mounts or ())))


def parse_variables(texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE, any number of times."""
    return dict(map(_parse_variable, texts or ()))


def parse_mount(text: str) -> Mount:
    """SRC:DST, SRC:DST:ro or SRC:DST:rw."""
    match text.split(":"):
        case [source, target] | [source, target, "ro"] if source and target:
            return Mount(source=source, target=target)
        case [source, target, "rw"] if source and target:
            return Mount(source=source, target=target, read_only=False)
    raise ValidationFailed(f"--mount {text}: write it as SRC:DST, or SRC:DST:rw to let the command write there")


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValidationFailed(f"--env {text}: write it as NAME=VALUE")
    return name, value
