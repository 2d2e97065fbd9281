"""Options that several subcommands share."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, get_type_hints

import typer

from cove.errors import ValidationFailed
from cove.model import Isolation, Limits, Mount, Network, NetworkPolicy, SandboxSpec
from cove.model.spec import HOST_IMAGE

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIMES = {"m": 60, "h": 3600, "d": 86400, "w": 604800}

EnvOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a variable. Repeatable.")]
CwdOption = Annotated[
    str | None, typer.Option(metavar="DIR", help="Directory inside the sandbox; /workspace by default.")
]
NetworkOption = Annotated[
    Network | None, typer.Option(help="What the sandbox can reach: none, the internet, or all that the host can.")
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Let it reach this name (`*.name`, `name:port`) and no other; `packages` is a preset. Repeatable.",
    ),
]
MountOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SRC:DST[:rw]", help="Show a directory of its machine inside, read-only unless :rw. Repeatable."
    ),
]
IsolationOption = Annotated[
    Isolation | None, typer.Option(help="`none` runs unconfined, for trusted code only; bubblewrap by default.")
]
ImageOption = Annotated[str | None, typer.Option(metavar="NAME", help="The image that is its system: `cove image ls`.")]
UserOption = Annotated[
    str | None, typer.Option(metavar="USER", help="With --image or --in: a user of the image, as root.")
]
MemoryOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="At most so much memory, as 512M or 2G; at least 16M.")
]
CpusOption = Annotated[float | None, typer.Option(metavar="NUMBER", help="At most so many cores, as 1.5.")]
PidsOption = Annotated[int | None, typer.Option(metavar="NUMBER", help="At most so many processes.")]
DiskOption = Annotated[str | None, typer.Option(metavar="SIZE", help="At most so much in files, as 10G.")]
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


@dataclass(frozen=True, slots=True)
class Shape:
    """The options that describe a new sandbox; None where an option was not given."""

    network: NetworkOption = None
    allow: AllowOption = None
    mount: MountOption = None
    isolation: IsolationOption = None
    memory: MemoryOption = None
    cpus: CpusOption = None
    pids: PidsOption = None
    disk: DiskOption = None
    image: ImageOption = None
    user: UserOption = None

    @property
    def is_given(self) -> bool:
        """Return whether any of them was used."""
        return self != Shape()

    def spec(self, *, on_server: bool) -> SandboxSpec:
        """The sandbox that they ask for."""
        return SandboxSpec(
            isolation=self.isolation or Isolation.BUBBLEWRAP,
            network=choose_network(self.network, self.allow),
            mounts=tuple(_parse_mount(text, on_server=on_server) for text in self.mount or ()),
            limits=Limits(
                memory=parse_size("--memory", self.memory),
                cpus=self.cpus,
                pids=self.pids,
                disk=parse_size("--disk", self.disk),
            ),
            image=self.image or HOST_IMAGE,
            user=self.user,
        )


def shaped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take the options of a new sandbox where it has the keyword argument `shape`."""
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in get_type_hints(Shape, include_extras=True).items()
    ]
    names = {option.name for option in options}

    @wraps(command)
    def call(**given: object) -> None:
        chosen = {name: value for name, value in given.items() if name in names}
        others = {name: value for name, value in given.items() if name not in names}
        command(**others, shape=Shape(**chosen))  # type: ignore[arg-type]  # typer has parsed them by their types

    parameters = [
        each
        for parameter in signature(command, eval_str=True).parameters.values()
        for each in (options if parameter.name == "shape" else [parameter])
    ]
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def choose_network(network: Network | None, allow: list[str] | None) -> Network | NetworkPolicy:
    """Return what --network and --allow ask for; they exclude each other."""
    if not allow:
        return network or Network.NONE
    if network is not None:
        raise ValidationFailed("--allow names all that the sandbox can reach: it does not go with --network")
    return NetworkPolicy(allow=allow)


def parse_command(words: list[str]) -> str | list[str]:
    """One word is a shell line, several are a program and its arguments. `--` may stand before them."""
    words = words[1:] if words[0] == "--" and len(words) > 1 else words
    return words[0] if len(words) == 1 else words


def parse_variables(texts: list[str] | None, option: str = "--env") -> dict[str, str]:
    """NAME=VALUE, any number of times."""
    return dict(_parse_variable(text, option) for text in texts or ())


def _parse_mount(text: str, *, on_server: bool) -> Mount:
    """SRC:DST, SRC:DST:ro or SRC:DST:rw."""
    match text.split(":"):
        case [source, _, *_] if on_server and source and not source.startswith("/"):
            raise ValidationFailed(
                f"--mount {text}: mounts are directories where the server runs: write an absolute path"
            )
        case [source, target] | [source, target, "ro"] if source and target:
            return Mount(source=source, target=target)
        case [source, target, "rw"] if source and target:
            return Mount(source=source, target=target, read_only=False)
    raise ValidationFailed(f"--mount {text}: write it as SRC:DST, or SRC:DST:rw to let the command write there")


def _parse_variable(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValidationFailed(f"{option} {text}: write it as NAME=VALUE")
    return name, value


def parse_size(option: str, text: str | None) -> int | None:
    """The number of bytes, as `512M` or `2G` say it."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValidationFailed(f"{option} {text}: write it as a number of bytes, or as 512M or 2G")
    return int(float(found[1]) * _FACTORS[found[2].upper()])


def parse_time(option: str, text: str) -> float:
    """The number of seconds, as `30m` or `12h` say it."""
    number, unit = text[:-1], _TIMES.get(text[-1:])
    if unit is None or not number.isdecimal() or len(number) > 6:
        raise ValidationFailed(f"{option} {text}: write it as 30m, 12h, 30d or 4w")
    return float(int(number) * unit)
