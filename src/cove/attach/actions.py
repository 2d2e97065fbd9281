"""Actions on a jail, as values, and the plan of steps that a list of them becomes: a pure function.

Print a plan to review it: `print(*plan([BindFile("/srv/names", "/etc/resolv.conf")]), sep="\\n")`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from cove.attach.netlink import messages
from cove.attach.nftables import LEAD_PORT, transaction

DNS_ADDRESS = "127.0.0.53"
DNS_PORT = 53
_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  # of the jail
_BACKLOG = 1024


class Namespace(StrEnum):
    """A namespace of the jail that a step enters: as /proc/PID/ns has it; `USER` is the one that owns the others."""

    USER = "user"
    MOUNTS = "mnt"
    NETWORK = "net"


@dataclass(frozen=True, slots=True)
class Sysctls:
    """Set values below /proc/sys/user of the user namespace that owns the jail. A refusal is told, and no failure."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NoNamespaces:
    """Let nobody make a user namespace within the one that owns the jail. Fails where the kernel refuses that."""


@dataclass(frozen=True, slots=True)
class NetworkSysctls:
    """Set values below /proc/sys/net of the jail's own network. A refusal is told, and no failure."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MountOptions:
    """Set options (`name=value`, commas between) of mounted file systems. A refusal is told, and no failure.

    Only before anything runs inside.
    """

    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Binds:
    """Bind for each target its source, both paths inside. Only before anything runs inside."""

    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """Make directories read-only by mounts of their own; what is mounted below them stays as it is. Only before
    anything runs inside."""

    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class MoveMounts:
    """Move mounts below the staging directory to their targets, making what is missing on the way; then detach it."""

    staging: str
    targets: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BindFile:
    """Bind a file of the host, read-only, over an existing file inside.

    `source` is a path, or a descriptor of a file that has one; the sandbox's user must be able to reach it there. What
    is written to the file later is seen inside at once. Doing it twice is doing it once. With `if_there`, a target that
    is no file is passed over: it is missing, or a link.
    """

    source: str | int
    target: str
    if_there: bool = False


@dataclass(frozen=True, slots=True)
class CloneTree:
    """Clone a directory or file with all that is mounted below it, and give the detached tree.

    `source` is a path of the host, or a descriptor of what has one; the sandbox's user must be able to reach it. With
    `is_inside` it is a path in the jail's own file system.
    """

    source: str | int
    read_only: bool
    is_inside: bool = False


@dataclass(frozen=True, slots=True)
class AttachTree:
    """Mount a detached tree, making what is missing on the way to its target."""

    tree: int
    target: str
    is_directory: bool = True


@dataclass(frozen=True, slots=True)
class Unmount:
    """Take a mount away from its target, and the empty directory below it if it `was_made`.

    `root` says which: identify_mount of attach/kernel. What runs inside and uses it goes on using it. Raises
    MountNotFound, and has changed nothing, when another mount, or none, stands there.
    """

    target: str
    root: tuple[int, int, int]
    was_made: bool = False


@dataclass(frozen=True, slots=True)
class NetworkSetup:
    """Make 198.18.0.0/15, and `addresses`, local addresses of the jail's own network and listen on them.

    Gives one listening socket for each of `ports`, on every address; with `any_port`, one at 127.0.0.53:54 to which the
    kernel leads the connections to all ports of these addresses, unless it has no nf_tables: then those for `ports`.
    With `dns`, a datagram and a listening stream socket at 127.0.0.53:53 follow. All are non-blocking. Raises
    PortInUse, and has changed nothing, when something inside listens on one of the ports.
    """

    ports: Sequence[int] = ()
    dns: bool = True
    addresses: Sequence[str] = ()
    any_port: bool = False


@dataclass(frozen=True, slots=True)
class ShowLayers:
    """Show layers, bottom first, merged below an upper: `parts` says which of its directories are mounted where.

    A layer, and the upper, is a directory of the host by its path, or a detached mount of it by its descriptor. The
    upper has `data` and `work`. Without layers the parts of its `data` are mounted themselves. What is mounted at a
    target goes; the mounts `below` stay. With `sealed` what goes can be written by nobody: MountBusy, and nothing has
    changed, while somebody has a file open for writing. Only before anything runs inside, or while all is frozen.
    """

    layers: Sequence[str | int]
    upper: str | int
    parts: Mapping[str, str]
    below: Sequence[str] = ()
    sealed: bool = False


# cp(1): modes, owners, times, attributes, links among the files, holes; blocks are shared where the disk can do that.
COPY_PROGRAM = "/bin/cp"
COPY_OPTIONS = ("-a", "--reflink=auto", "-T")


@dataclass(frozen=True, slots=True)
class CopyTree:
    """Copy a directory of the host with the rights of the jail's owner over the sandbox's files: whatever their modes.

    Both are paths of the host. The target is not there yet. No link in the source is followed, whatever changes it:
    where the kernel cannot promise that, only what `is_still` is copied. `name` is that of the program, among its
    arguments.
    """

    source: str
    target: str
    name: str
    is_still: bool = False


Action = (
    Sysctls
    | NoNamespaces
    | NetworkSysctls
    | MountOptions
    | Binds
    | ReadOnly
    | MoveMounts
    | BindFile
    | CloneTree
    | AttachTree
    | Unmount
    | NetworkSetup
    | ShowLayers
    | CopyTree
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step for the helper: attach/performer.

    `source` is a file that goes along as a descriptor, with its path; `descriptor` goes along as it is. `otherwise` is
    done instead where the kernel does not have what the step needs.
    """

    verb: str
    fields: tuple[str, ...] = ()
    namespace: Namespace | None = None
    source: str | int | None = None
    otherwise: "tuple[Step, ...] | None" = None
    descriptor: int | None = None

    @property
    def may_fail(self) -> bool:
        """Return whether the rest is done all the same."""
        return self.verb in ("sysctl", "options")

    @property
    def can_go_on(self) -> bool:
        """Return whether something is done after its failure."""
        return self.may_fail or self.otherwise is not None

    def encode(self, *more: str) -> bytes:
        """Write it as the helper reads it, with further fields."""
        return "\0".join([self.verb, *self.fields, *more]).encode("utf-8", "surrogateescape")


def prelude(actions: Sequence[Action]) -> list[Step]:
    """Return the steps that put layers together: they change nothing inside, and the jail need not stand yet.

    Its user namespace is there, and has its map.
    """
    layers = [step for action in actions for step in _on_bench(action)]
    # The workbench hides /proc, where settings are that the rest of the plan may change.
    return [Step("user", namespace=Namespace.USER), Step("settings"), Step("copy"), *layers]


def plan(actions: Sequence[Action], *, has_begun: bool = False) -> list[Step]:
    """Order the steps: the user namespace first, then what needs the host's files, the jail's network, its mounts.

    What fails for a reason of the sandbox's own (a port that is taken) does so before anything has changed. Where the
    `prelude` was performed, it is left out.
    """
    trees = [action for action in actions if isinstance(action, BindFile)]
    clones = [_clone(action) for action in actions if isinstance(action, CloneTree) and not action.is_inside]
    outside = [step for action in actions for step in _outside(action) if not (has_begun and step.verb == "settings")]
    layers = [] if has_begun else [step for action in actions for step in _on_bench(action)]
    mounts = [step for action in actions for step in _in_mounts(action, trees)]
    network = [step for action in actions for step in _in_network(action)]
    settings = [step for action in actions for step in _network_settings(action)]
    enter = [Step("net", namespace=Namespace.NETWORK)]
    return [
        *([] if has_begun else [Step("user", namespace=Namespace.USER)]),
        *outside,
        *([*enter, *settings] if settings else []),  # before the workbench, which hides /proc
        *([Step("copy")] if (trees or layers or clones) and not has_begun else []),
        *(Step("tree", source=action.source) for action in trees),
        *clones,
        *layers,
        *([*([] if settings else enter), *network] if network else []),
        *([Step("mounts", namespace=Namespace.MOUNTS), *mounts] if mounts else []),
    ]


def _outside(action: Action) -> list[Step]:
    if isinstance(action, Unmount):
        return [Step("names")]
    if isinstance(action, CopyTree):
        program = (COPY_PROGRAM, action.name, *COPY_OPTIONS)
        state = "still" if action.is_still else "changing"
        return [Step("copy"), Step("copytree", (*program, state, action.target), source=action.source)]
    if isinstance(action, NetworkSysctls):
        return [Step("settings")]
    if isinstance(action, NoNamespaces):
        return [Step("setting", ("/proc/sys/user/max_user_namespaces", "0"))]
    if isinstance(action, Sysctls):
        return [Step("sysctl", (f"/proc/sys/user/{name}", value)) for name, value in action.values.items()]
    return []


def _in_mounts(action: Action, trees: Sequence[BindFile]) -> list[Step]:
    match action:
        case MountOptions() | Binds() | ReadOnly():
            return _before_code(action)
        case MoveMounts(staging, targets):
            return [*(Step("move", pair) for pair in targets.items()), Step("detach", (staging,))]
        case BindFile(_, target, if_there):
            return [Step("place", (str(trees.index(action)), target, *(["if-there"] if if_there else [])))]
        case ShowLayers(parts=parts, below=below, sealed=sealed):
            return [
                *([Step("readonly", tuple(parts.values()))] if sealed else []),
                *(Step("swap", (part, target, *_within(below, target))) for part, target in parts.items()),
            ]
        case CloneTree():
            return [_clone(action)] if action.is_inside else []
        case AttachTree(tree, target):
            kind = "directory" if action.is_directory else "file"
            return [Step("attach", (target, kind), descriptor=tree)]
        case Unmount(target, root):
            taken = Step("unmount", (target, ":".join(map(str, root))))
            return [taken, Step("rmdir", (target,))] if action.was_made else [taken]
        case Sysctls() | NoNamespaces() | NetworkSysctls() | NetworkSetup() | CopyTree():
            return []
        case _:
            assert_never(action)


def _before_code(action: MountOptions | Binds | ReadOnly) -> list[Step]:
    match action:
        case MountOptions(options):
            return [Step("options", (path, *text.split(","))) for path, text in options.items()]
        case Binds(sources):
            return [Step("bind", tuple(word for target, source in sources.items() for word in (source, target)))]
        case ReadOnly(paths):
            return [Step("seal", (path,)) for path in paths]


def _within(paths: Sequence[str], target: str) -> list[str]:
    """The mounts below a target that come along with it; over the root, each with all that is below it."""
    if target == "/":
        return [path for path in paths if not any(path.startswith(f"{other}/") for other in paths)]
    return [path for path in paths if path.startswith(f"{target}/")]


def _on_bench(action: Action) -> list[Step]:
    if not isinstance(action, ShowLayers):
        return []
    names = [str(number) for number in range(len(action.layers))]
    return [
        Step("bench"),
        *(_layer(name, source) for name, source in zip(names, action.layers, strict=True)),
        _layer("upper", action.upper),
        Step("merge", (":".join(reversed(names)), *action.parts)),
    ]


def _layer(name: str, source: str | int) -> Step:
    return Step("layer", (name, "path" if isinstance(source, str) else "mount"), source=source)


def _clone(action: CloneTree) -> Step:
    access = "ro" if action.read_only else "rw"
    if action.is_inside:
        return Step("clone", (access, str(action.source)))
    return Step("clone", (access,), source=action.source)


def _network_settings(action: Action) -> list[Step]:
    if not isinstance(action, NetworkSysctls):
        return []
    return [Step("sysctl", (f"/proc/sys/net/{name}", value)) for name, value in action.values.items()]


def _in_network(action: Action) -> list[Step]:
    """Sockets first: when one is refused, nothing has changed."""
    if not isinstance(action, NetworkSetup):
        return []
    sockets = [Step("socket", ("stream", _EVERY_ADDRESS, str(port))) for port in action.ports]
    if action.any_port:
        fields = (transaction(DNS_ADDRESS).hex(), DNS_ADDRESS, str(LEAD_PORT))
        sockets = [Step("lead", fields, otherwise=tuple(sockets))]
    if action.dns:
        sockets += [Step("socket", (kind, DNS_ADDRESS, str(DNS_PORT))) for kind in ("datagram", "stream")]
    return [
        *sockets,
        Step("listen", (str(_BACKLOG),)),
        *(Step("netlink", (message.hex(),)) for message in messages(action.addresses)),
    ]
