"""The specification of a sandbox: isolation, network, limits, mounts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol, TypedDict

import msgspec

from cove.errors import ValidationFailed
from cove.model.journal import JournalDetail
from cove.model.mount import AnyMount, Mount, check_mount
from cove.model.network import Network, NetworkPolicy, check_network

# With less no sandbox starts, or no command in it.
_LEAST_LIMITS = {"memory": 16 << 20, "pids": 4, "open_files": 64}


MOST_SECONDS = 100 * 365 * 24 * 3600
MOST_LABELS = 64
MOST_LABEL_CHARACTERS = 256
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
# The host's own system, read-only, in the place of an image.
HOST_IMAGE = "host"


class Isolation(StrEnum):
    """The isolation between the sandbox and the host."""

    BUBBLEWRAP = "bubblewrap"
    NONE = "none"


class IdleAction(StrEnum):
    """The action on a sandbox that has been idle for its `idle_timeout`."""

    STOP = "stop"
    PAUSE = "pause"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of a sandbox; None means no limit. Bytes, cores, counts.

    `disk` and `inodes` are for the writable directories together: /workspace, /home/user and /tmp. Logs of processes
    are part of `disk`, and get at most a quarter of it; what does not fit is a gap in the log. `pids` counts the
    agent's own processes too. `contexts` is the number of code contexts of each language. What a sandbox cannot start
    with is refused: less than 16 MiB of memory, 4 pids or 64 open files.
    """

    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk: int | None = None
    inodes: int | None = None
    open_files: int | None = None
    contexts: int | None = None


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All choices that are made when a sandbox is created.

    `startup` is a command that runs, as the process with that id, whenever the sandbox starts; with True it is what the
    image would start. Without it nothing is started. With `sudo` the user of the sandbox may become root inside.
    `journal` says what its journal keeps: the text of commands and code or not, and what they print.
    """

    isolation: Isolation = Isolation.BUBBLEWRAP
    network: Network | NetworkPolicy = Network.NONE
    limits: Limits = Limits()
    env: dict[str, str] = {}
    workdir: str = "/workspace"
    mounts: tuple[AnyMount, ...] = ()
    idle_timeout: float | None = None
    idle_action: IdleAction = IdleAction.STOP
    lifetime: float | None = None
    keep_alive: bool = False
    labels: dict[str, str] = {}
    snapshot: str | None = None
    image: str = HOST_IMAGE
    user: str | None = None
    startup: bool | tuple[str, ...] = False
    sudo: bool = False
    journal: JournalDetail = JournalDetail.COMMANDS


class HasId(Protocol):
    """A snapshot as somebody holds it."""

    @property
    def id(self) -> str:
        """Return its id."""


class SpecFields(TypedDict, total=False):
    """The fields of SandboxSpec as keyword arguments."""

    isolation: Isolation | Literal["bubblewrap", "none"]
    network: Network | NetworkPolicy | Literal["none", "internet", "host"]
    limits: Limits
    env: Mapping[str, str]
    workdir: str
    mounts: Sequence[AnyMount]
    idle_timeout: float | None
    idle_action: IdleAction | Literal["stop", "pause"]
    lifetime: float | None
    keep_alive: bool
    labels: Mapping[str, str]
    snapshot: str | HasId | None
    image: str
    user: str | None
    startup: bool | Sequence[str]
    sudo: bool
    journal: JournalDetail | Literal["events", "commands", "output"]


def make_spec(spec: SandboxSpec | None, fields: SpecFields) -> SandboxSpec:
    """A validated spec: the given one, with the given fields replaced."""
    if spec is not None and not isinstance(spec, SandboxSpec):
        raise ValidationFailed(f"spec must be a SandboxSpec, not {type(spec).__name__}")
    known = msgspec.to_builtins(spec or SandboxSpec())
    if unknown := set(fields) - set(known):
        raise ValidationFailed(
            f"unknown sandbox option {', '.join(sorted(unknown))}: SandboxSpec has {', '.join(known)}"
        )
    snapshot = fields.get("snapshot")
    given: dict[str, object] = {**fields}
    if snapshot is not None and not isinstance(snapshot, str):
        given["snapshot"] = snapshot.id
    try:
        made = msgspec.convert({**known, **msgspec.to_builtins(given)}, SandboxSpec)
    except msgspec.ValidationError as error:
        raise ValidationFailed(f"the sandbox options are not valid: {error}{_choices(str(error))}") from None
    check_spec(made)
    return made


def _choices(message: str) -> str:
    """Return what a field takes whose value is none of its own."""
    for name, choices in (
        ("network", Network),
        ("isolation", Isolation),
        ("idle_action", IdleAction),
        ("journal", JournalDetail),
    ):
        if message.startswith("Invalid enum value") and message.endswith(f"`$.{name}`"):
            return f": {name} is one of {', '.join(choices)}"
    return ""


def check_spec(spec: SandboxSpec) -> None:
    """Raise ValidationFailed for what makes no sense."""
    for field, value in msgspec.to_builtins(spec).items():
        for text in _texts(value):
            if "\0" in text:
                raise ValidationFailed(f"{field}: {text!r} has a NUL, which no path, name or variable can have")
    check_network(spec.network)
    for mount in spec.mounts:
        check_mount(mount)
    if spec.isolation is Isolation.NONE:
        _check_without_isolation(spec)
    _check_image(spec)
    if not spec.workdir.startswith("/"):
        raise ValidationFailed(f"workdir must be an absolute path, not {spec.workdir!r}")
    _check_limits(spec.limits)
    for name in ("idle_timeout", "lifetime"):
        seconds = getattr(spec, name)
        if seconds is not None and not 0 < seconds <= MOST_SECONDS:
            raise ValidationFailed(
                f"{name} must be a number of seconds, more than 0 and at most {MOST_SECONDS} (a hundred years), "
                f"not {seconds!r}"
            )
    check_labels(spec.labels)


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise ValidationFailed for labels that are too many, too long, or have no name."""
    if len(labels) > MOST_LABELS:
        raise ValidationFailed(f"a sandbox has at most {MOST_LABELS} labels, not {len(labels)}")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValidationFailed("labels are names with values, both strings")
        if not _LABEL.fullmatch(name):
            raise ValidationFailed(
                f"the name of a label is 1 to 64 letters, digits and any of `._/-`, and begins with a letter or digit: "
                f"not {name[:80]!r}"
            )
        if len(value) > MOST_LABEL_CHARACTERS or not value.isprintable():
            raise ValidationFailed(
                f"the value of label {name} must be printable text of at most {MOST_LABEL_CHARACTERS} characters"
            )


def _check_image(spec: SandboxSpec) -> None:
    if spec.image != HOST_IMAGE and spec.isolation is Isolation.NONE:
        raise ValidationFailed("an image needs isolation: with isolation='none' the system is the host's")
    if spec.image != HOST_IMAGE and spec.snapshot is not None:
        raise ValidationFailed("a snapshot brings the image that it was made on: give snapshot or image, not both")
    if spec.startup is True and spec.image == HOST_IMAGE and spec.snapshot is None:
        raise ValidationFailed("startup=True is what an image starts: give an image, or a list of words as startup")
    if not isinstance(spec.startup, bool) and not (spec.startup and spec.startup[0]):
        raise ValidationFailed("startup is an empty list: give at least the program to run")
    if spec.sudo and spec.image == HOST_IMAGE and spec.snapshot is None:
        raise ValidationFailed("sudo needs an image: on the host's system a sandbox has one user of its own")
    if spec.user is not None and spec.image == HOST_IMAGE:
        raise ValidationFailed("a user needs an image: on the host's system a sandbox has one user of its own")


def _check_without_isolation(spec: SandboxSpec) -> None:
    if spec.network not in (Network.NONE, Network.HOST):
        raise ValidationFailed("a network policy needs isolation: with isolation='none' there is nothing to hold it")
    if not all(isinstance(mount, Mount) for mount in spec.mounts):
        raise ValidationFailed("volumes and buckets need isolation: with isolation='none' nothing can be mounted")
    if spec.snapshot is not None:
        raise ValidationFailed("a snapshot needs isolation: with isolation='none' the files are the host's")


def _check_limits(limits: Limits) -> None:
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if value is not None and not 0 < value < float("inf"):
            raise ValidationFailed(f"limits.{name} must be more than 0, not {value!r}")
        if value is not None and value < (least := _LEAST_LIMITS.get(name, 0)):
            raise ValidationFailed(f"limits.{name} must be at least {least} for a sandbox to start, not {value}")


def _texts(value: object) -> Iterator[str]:
    """Every string in a value made of lists, tuples and dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts(each)
