"""What the server was told: where it listens, and what a sandbox that a client asks for may be."""

import os
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path

import msgspec

from cove.errors import PermissionDenied, ValidationFailed
from cove.model import Isolation, Limits, Mount, Network, SandboxSpec
from cove.model.spec import check_spec
from cove.runtime.mounts import resolve_beneath

_HIGHEST_PORT = 65535

_MOST_WORKERS = 4


class OnStop(StrEnum):
    """What becomes of the sandboxes when the server is told to stop."""

    LEAVE = "leave"
    DESTROY = "destroy"


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `cove serve` and of its configuration file, by the same names."""

    host: str = "127.0.0.1"
    port: int = 8787
    preview_port: int | None = None
    preview_url: str | None = None
    workers: int = msgspec.field(default_factory=lambda: min(os.cpu_count() or 1, _MOST_WORKERS))
    warm: int = 0
    on_stop: OnStop = OnStop.LEAVE
    api_key: str | None = None
    insecure_no_key: bool = False
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    allow_isolation_none: bool = False
    allow_host_network: bool = False
    allow_mounts: tuple[str, ...] = ()
    default_limits: Limits = Limits()
    maximum_limits: Limits = Limits()
    max_sandboxes: int | None = None
    default_idle_timeout: float | None = None
    default_lifetime: float | None = None
    bridge_fast_path: bool = True

    def __post_init__(self) -> None:
        if self.insecure_no_key and not self.is_loopback:
            raise ValidationFailed(
                f"without a key everybody who can reach {self.host} could run programs on this machine: "
                "--insecure-no-key is for 127.0.0.1 only"
            )
        if self.workers < 1 or self.warm < 0:
            raise ValidationFailed("there must be at least one worker, and not less than no warm sandbox")
        defaults = SandboxSpec(
            limits=self.default_limits, idle_timeout=self.default_idle_timeout, lifetime=self.default_lifetime
        )
        for spec in (defaults, SandboxSpec(limits=self.maximum_limits)):
            check_spec(spec)
        for port in (self.port, self.chosen_preview_port):
            if not 0 <= port <= _HIGHEST_PORT:
                raise ValidationFailed(f"there is no port {port}: use 1 to {_HIGHEST_PORT}, or 0 for any that is free")
        if self.preview_url is not None and not self.preview_url.startswith(("http://", "https://")):
            raise ValidationFailed(f"preview_url must be like https://preview.example.com, not {self.preview_url!r}")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def chosen_preview_port(self) -> int:
        """Beside the port of the API unless another was chosen; any free one beside any free one."""
        if self.preview_port is not None:
            return self.preview_port
        return self.port + 1 if self.port else 0

    def admit(self, spec: SandboxSpec) -> SandboxSpec:
        """The spec with this server's defaults; PermissionDenied for what it does not allow. Looks at files."""
        if spec.isolation is Isolation.NONE and not self.allow_isolation_none:
            raise PermissionDenied("this server does not allow isolation='none'")
        if spec.network is Network.HOST and not self.allow_host_network:
            raise PermissionDenied("this server does not allow network='host'")
        return msgspec.structs.replace(
            spec,
            mounts=tuple(map(self._admit_mount, spec.mounts)),
            limits=self._admit_limits(spec.limits),
            idle_timeout=spec.idle_timeout if spec.idle_timeout is not None else self.default_idle_timeout,
            lifetime=spec.lifetime if spec.lifetime is not None else self.default_lifetime,
        )

    def _admit_mount(self, mount: Mount) -> Mount:
        for directory in self.allow_mounts:
            source = resolve_beneath(mount.source, directory)
            if source is not None:
                return msgspec.structs.replace(mount, source=source)
        raise PermissionDenied(f"this server does not allow to mount {mount.source}")

    def _admit_limits(self, limits: Limits) -> Limits:
        admitted = {name: self._admit_limit(name, limits) for name in limits.__struct_fields__}
        return msgspec.structs.replace(limits, **admitted)

    def _admit_limit(self, name: str, limits: Limits) -> float | None:
        wanted, default, most = (getattr(each, name) for each in (limits, self.default_limits, self.maximum_limits))
        if wanted is not None and most is not None and wanted > most:
            raise PermissionDenied(f"this server allows limits.{name} of at most {most}, not {wanted}")
        return next((value for value in (wanted, default, most) if value is not None), None)


def load(path: Path | None, options: Mapping[str, object]) -> Configuration:
    """The file's settings, with the options in their place where they were given. Blocks."""
    settings: dict[str, object] = {}
    if path is not None:
        try:
            settings = tomllib.loads(path.read_text())
        except OSError as error:
            raise ValidationFailed(f"cannot read {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValidationFailed(f"{path} is not valid TOML: {error}") from None
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return msgspec.convert({**settings, **given}, Configuration)
    except msgspec.ValidationError as error:
        raise ValidationFailed(f"the configuration is not valid: {error}") from None
