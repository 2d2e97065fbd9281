"""The server's configuration: addresses, named specs, and limits on what clients may ask for."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from cove.core.cluster import check_members, code_of
from cove.core.limits import MOST_PROCESSES
from cove.core.mount_grants import BucketBinding, MountGrants
from cove.core.network_grants import NetworkGrants
from cove.errors import PermissionDenied, ValidationFailed
from cove.images.reference import parse_reference
from cove.model import (
    AnyMount,
    BucketMount,
    Isolation,
    JournalDetail,
    Limits,
    Mount,
    Network,
    NetworkPolicy,
    SandboxSpec,
    VolumeMount,
)
from cove.model.cluster import Member, Members
from cove.model.network import check_network
from cove.model.spec import check_spec
from cove.runtime.mounts import resolve_beneath
from cove.server.announcement import LogFormat

_HIGHEST_PORT = 65535
_LEAST_KEYS_HOLD = 5.0  # so long a busy node may take to be heard of again
_MOST_WORKERS = 4
# Builds, pulls, loads and saves of images at a time.
_IMAGE_JOBS = 4

# The word for no limit, in a configuration file: what is not said there has a default.
UNLIMITED = "unlimited"

# Limits of a sandbox for which nothing else is said, on a machine that has that much.
_DEFAULT_MEMORY = 4 << 30
_DEFAULT_CPUS = 4
_DEFAULT_PIDS = MOST_PROCESSES
_DEFAULT_DISK = 10 << 30
_LEAST_DISK = 64 << 20
_MAY_BE_UNLIMITED = (
    *Limits.__struct_fields__,
    *("default_idle_timeout", "default_lifetime", "max_sandboxes"),
)
_MOUNTS: Mapping[object, type[msgspec.Struct]] = {"host": Mount, "volume": VolumeMount, "bucket": BucketMount}
# Of what there is, one sandbox gets at most half.
_SHARE = 2
# Long enough that nobody loses what is still wanted, short enough that what was forgotten goes.
DEFAULT_LIFETIME = 30 * 24 * 3600.0


class OnStop(StrEnum):
    """The choice of what becomes of the sandboxes when the server is told to stop."""

    LEAVE = "leave"
    DESTROY = "destroy"


class RayRole(StrEnum):
    """The part of a server in Ray: to use one that runs here, to be its head, or to join the head of another node."""

    ATTACH = "attach"
    HEAD = "head"
    JOIN = "join"


class RaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Ray that a node has its room from, and how much.

    A node offers `slots`, each for one sandbox with the default limits; `slot_cpus` and `slot_memory` are what Ray
    sets aside for one.
    """

    token_file: str
    address: str = "auto"
    role: RayRole = RayRole.ATTACH
    ip: str | None = None
    slots: int = 64
    block_slots: int = 16
    slot_cpus: float = 0.0
    slot_memory: int = 0
    idle_seconds: float = 60.0
    grant_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.block_slots <= self.slots:
            raise ValidationFailed("cluster.ray: block_slots must be at least 1, and not more than slots")
        if min(self.slot_cpus, self.slot_memory) < 0 or not (self.idle_seconds >= 0 and self.grant_timeout > 0):
            raise ValidationFailed("cluster.ray: amounts and times must not be negative")


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cluster that a server is a node of: by a list that all nodes have, or with none by what an engine says.

    A node that has not heard of most others for `keys_hold` seconds accepts no key but the server's own.
    """

    node: str
    peer_key_file: str
    members: dict[str, str] = {}
    address: str | None = None
    ray: RaySettings | None = None
    keys_hold: float = 300.0

    def __post_init__(self) -> None:
        if not self.keys_hold >= _LEAST_KEYS_HOLD:
            raise ValidationFailed(f"cluster.keys_hold must be at least {_LEAST_KEYS_HOLD:g} seconds")
        if bool(self.members) == (self.ray is not None):
            raise ValidationFailed("a cluster has either a list of members or Ray: say cluster.members or cluster.ray")
        if self.members:
            check_members(self.listed())

    def listed(self, version: str = "") -> Members:
        """Return the nodes of the list."""
        members = (
            Member(name=name, address=address.rstrip("/"), code=code_of(name), version=version)
            for name, address in self.members.items()
        )
        return Members(node=self.node, members=tuple(members))


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `cove serve` and of its configuration file, by the same names."""

    host: str = "127.0.0.1"
    port: int = 8787
    preview_port: int | None = None
    preview_url: str | None = None
    workers: int = msgspec.field(default_factory=lambda: min(os.cpu_count() or 1, _MOST_WORKERS))
    warm: int = 0
    warm_images: dict[str, int] = {}
    on_stop: OnStop = OnStop.LEAVE
    api_key: str | None = None
    insecure_no_key: bool = False
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    allow_isolation_none: bool = False
    allow_host_network: bool = False
    allow_mounts: tuple[str, ...] = ()
    allow_buckets: tuple[str, ...] = ()
    allow_registries: tuple[str, ...] = ()
    allow_sudo: bool = True
    network: NetworkGrants = NetworkGrants()
    default_limits: Limits = Limits()
    maximum_limits: Limits = Limits()
    max_sandboxes: int | None = None
    max_image_jobs: int = _IMAGE_JOBS
    default_idle_timeout: float | None = None
    default_lifetime: float | None = None
    bridge_fast_path: bool = True
    bridge_spec: SandboxSpec = SandboxSpec()
    bridge_specs: dict[str, SandboxSpec] = {}
    bridge_buckets: dict[str, BucketBinding] = {}
    e2b_domain: str | None = None
    e2b_spec: SandboxSpec = SandboxSpec()
    e2b_templates: dict[str, SandboxSpec] = {}
    mcp_spec: SandboxSpec = SandboxSpec()
    mcp_idle_timeout: float = 600.0
    cluster: ClusterSettings | None = None
    journal: JournalDetail = JournalDetail.OUTPUT
    journal_keep: float = 7 * 24 * 3600.0
    log_format: LogFormat = LogFormat.HUMAN

    def __post_init__(self) -> None:
        if self.insecure_no_key and not self.is_loopback:
            raise ValidationFailed(
                f"without a key everybody who can reach {self.host} could run programs on this machine: "
                "--insecure-no-key is for 127.0.0.1 only"
            )
        self._check_seconds()
        if min(self.workers, self.max_image_jobs) < 1 or min((self.warm, *self.warm_images.values())) < 0:
            raise ValidationFailed("workers and max_image_jobs are at least 1, and not less than no sandbox is warm")
        for name in self.warm_images:
            parse_reference(name)
        defaults = SandboxSpec(
            limits=self.default_limits, idle_timeout=self.default_idle_timeout, lifetime=self.default_lifetime
        )
        for spec in (
            *(defaults, SandboxSpec(limits=self.maximum_limits)),
            *(self.bridge_spec, *self.bridge_specs.values()),
            *(self.e2b_spec, *self.e2b_templates.values()),
            self.mcp_spec,
        ):
            check_spec(spec)
        for policy in self.grants.policies.values():
            check_network(policy)
            self.grants.check(policy)
        for port in (self.port, self.chosen_preview_port):
            if not 0 <= port <= _HIGHEST_PORT:
                raise ValidationFailed(f"there is no port {port}: use 1 to {_HIGHEST_PORT}, or 0 for any that is free")
        if self.preview_url is not None and not self.preview_url.startswith(("http://", "https://")):
            raise ValidationFailed(f"preview_url must be like https://preview.example.com, not {self.preview_url!r}")

    def _check_seconds(self) -> None:
        if not self.mcp_idle_timeout > 0:
            raise ValidationFailed("mcp_idle_timeout must be more than no seconds")
        if not self.journal_keep >= 0:
            raise ValidationFailed("journal_keep must be a number of seconds, at least 0")

    @property
    def grants(self) -> NetworkGrants:
        """Return what network policies may have: the specs here are the server's own, and so are their policies."""
        specs = {
            "bridge_spec": self.bridge_spec,
            "e2b_spec": self.e2b_spec,
            **{f"bridge_specs.{name}": spec for name, spec in self.bridge_specs.items()},
            **{f"e2b_templates.{name}": spec for name, spec in self.e2b_templates.items()},
            "mcp_spec": self.mcp_spec,
        }
        own = {name: spec.network for name, spec in specs.items() if isinstance(spec.network, NetworkPolicy)}
        return msgspec.structs.replace(self.network, policies={**self.network.policies, **own})

    @property
    def warm_specs(self) -> list[tuple[SandboxSpec, int]]:
        """Return what sandboxes wait for an id, and how many of each."""
        wanted = [(SandboxSpec(), self.warm), *((SandboxSpec(image=k), v) for k, v in self.warm_images.items())]
        return [(self.admit(spec), count) for spec, count in wanted]

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return what a server on loopback may be called: its address, those of all nodes, and the `names`."""
        listed = () if self.cluster is None else self.cluster.members.values()
        addresses = [each for each in (self.host, *(urlsplit(url).hostname for url in listed)) if each]
        return (*(f"[{each}]" if ":" in each else each for each in addresses), *self.names)

    @property
    def chosen_preview_port(self) -> int:
        """Beside the port of the API unless another was chosen; any free one beside any free one."""
        if self.preview_port is not None:
            return self.preview_port
        return self.port + 1 if self.port else 0

    def admit(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec with this server's defaults; PermissionDenied for what it does not allow. Looks at files."""
        if spec.isolation is Isolation.NONE and not self.allow_isolation_none:
            raise PermissionDenied("this server does not allow isolation='none'")
        if spec.network is Network.HOST and not self.allow_host_network:
            raise PermissionDenied("this server does not allow network='host'")
        if spec.sudo and not self.allow_sudo:
            raise PermissionDenied("this server does not allow sudo: its configuration says allow_sudo = false")
        self.grants.check(spec.network)
        self._check_limits(spec.limits)
        return self.complete(msgspec.structs.replace(spec, mounts=tuple(map(self._admit_mount, spec.mounts))))

    @property
    def slot(self) -> tuple[float, int]:
        """Return the cores and the memory that one slot of a cluster is for, the default limits; 0 for any number."""
        limits = Limits() if self.cluster is None else self._complete_limits(Limits())
        return limits.cpus or 0.0, limits.memory or 0

    def complete(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec with this server's defaults."""
        return msgspec.structs.replace(
            spec,
            limits=self._complete_limits(spec.limits),
            journal=spec.journal.at_most(self.journal),
            idle_timeout=spec.idle_timeout if spec.idle_timeout is not None else self.default_idle_timeout,
            lifetime=spec.lifetime if spec.lifetime is not None else self.default_lifetime,
        )

    def admit_size(self, size: int | None) -> int | None:
        """Return the size of a volume that this server allows: that of the limits on disk, unless it is said."""
        limits = Limits(disk=size)
        self._check_limits(limits)
        return self._complete_limits(limits).disk

    @property
    def mount_grants(self) -> MountGrants:
        """Return what clients may mount."""
        return MountGrants(directories=self.allow_mounts, buckets=self.allow_buckets, bindings=self.bridge_buckets)

    def _admit_mount(self, mount: AnyMount) -> AnyMount:
        if isinstance(mount, BucketMount):
            self.mount_grants.check_bucket(mount)
            if mount.credentials is not None:
                self.network.check_secret(mount.credentials.name, mount.host)
        if not isinstance(mount, Mount):
            return mount
        for directory in self.allow_mounts:
            source = resolve_beneath(mount.source, directory)
            if source is not None:
                return msgspec.structs.replace(mount, source=source)
        raise PermissionDenied(f"this server does not allow to mount {mount.source}")

    def _check_limits(self, limits: Limits) -> None:
        for name in limits.__struct_fields__:
            wanted, most = getattr(limits, name), getattr(self.maximum_limits, name)
            if wanted is not None and most is not None and wanted > most:
                raise PermissionDenied(f"this server allows limits.{name} of at most {most}, not {wanted}")

    def _complete_limits(self, limits: Limits) -> Limits:
        completed = {
            name: _first(getattr(each, name) for each in (limits, self.default_limits, self.maximum_limits))
            for name in limits.__struct_fields__
        }
        return msgspec.structs.replace(limits, **completed)


def _first(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def built_in_defaults(home: Path) -> dict[str, object]:
    """The settings by which one sandbox leaves enough of this machine to others, unless the file has them. Blocks."""
    free = os.statvfs(_existing(home))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = {
        "memory": min(_DEFAULT_MEMORY, memory // _SHARE),
        "cpus": float(min(_DEFAULT_CPUS, os.cpu_count() or 1)),
        "pids": _DEFAULT_PIDS,
        "disk": max(min(_DEFAULT_DISK, free.f_bavail * free.f_frsize // _SHARE), _LEAST_DISK),
    }
    return {"default_limits": limits, "default_lifetime": DEFAULT_LIFETIME}


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def read_settings(path: Path | None) -> dict[str, object]:
    """Return what stands in a configuration file, as it stands there. Blocks."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ValidationFailed(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValidationFailed(f"{path} is not valid TOML: {error}") from None


def load(
    path: Path | None, options: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> Configuration:
    """The file's settings, with the options in their place where they were given, on top of the defaults. Blocks."""
    settings = read_settings(path)
    for name in ("default_limits", "maximum_limits"):
        _refuse_unknown(settings.get(name), Limits, name)
    own = (("bridge_spec", "bridge_specs"), ("e2b_spec", "e2b_templates"), ("mcp_spec", None))
    for name, several in own:
        for table in (settings.get(name), *(() if several is None else _values(settings.get(several)))):
            _refuse_unknown(table, SandboxSpec, name)
            use_named_network(table, settings.get("network"))
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return msgspec.convert(_without_unlimited(_merge(defaults or {}, {**settings, **given})), Configuration)
    except msgspec.ValidationError as error:
        raise ValidationFailed(f"the configuration is not valid: {error}") from None


def use_named_network(spec: object, network: object) -> None:
    """Put a policy of `[network.policies]` into the table of a spec that names it: `network = "NAME"`."""
    name = spec.get("network") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(name, str) or name in set(Network):
        return
    policies = network.get("policies") if isinstance(network, dict) else None
    if not isinstance(policies, dict) or name not in policies:
        modes = ", ".join(Network)
        raise ValidationFailed(
            f"the configuration is not valid: network {name!r} is none of {modes}, nor a policy of it"
        )
    spec["network"] = policies[name]


def _values(table: object) -> Iterable[object]:
    return table.values() if isinstance(table, dict) else ()


def _refuse_unknown(table: object, kind: type[msgspec.Struct], where: str) -> None:
    """A client of another version may send fields that are not known here; who misspells a setting wants to know."""
    if not isinstance(table, dict):
        return  # of the wrong type, which is told when it is converted
    for name in table.keys() - set(kind.__struct_fields__):
        raise ValidationFailed(f"the configuration is not valid: {where} has no setting {name!r}")
    _refuse_unknown(table.get("limits"), Limits, f"{where}.limits")
    mounts = table.get("mounts")
    for mount in mounts if isinstance(mounts, list) else ():
        if isinstance(mount, dict):
            kind = _MOUNTS.get(mount.setdefault("type", "host"), Mount)
            _refuse_unknown({name: value for name, value in mount.items() if name != "type"}, kind, f"{where}.mounts")


def _merge(defaults: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """Settings win over defaults, limit by limit. A default is no more than the maximum."""
    merged = {**defaults, **settings}
    built_in, said, most = (each if isinstance(each, dict) else {} for each in _tables(defaults, settings))
    limits = {name: _at_most(value, most.get(name)) for name, value in built_in.items()}
    if isinstance(settings.get("default_limits", {}), dict):
        merged["default_limits"] = {**limits, **said}
    return merged


def _tables(defaults: Mapping[str, object], settings: Mapping[str, object]) -> tuple[object, object, object]:
    return defaults.get("default_limits"), settings.get("default_limits"), settings.get("maximum_limits")


def _at_most(value: float, most: object) -> float:
    return min(value, most) if isinstance(most, int | float) else value


def _without_unlimited(settings: Mapping[str, object]) -> dict[str, object]:
    """Drop what is unlimited."""
    return {
        name: _without_unlimited(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value != UNLIMITED or name not in _MAY_BE_UNLIMITED
    }
