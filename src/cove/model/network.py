"""Network policies: which names a sandbox may reach, on which ports, by which requests, with which secrets."""

import functools
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from cove.errors import ValidationFailed

WEB_PORTS = (80, 443)
INTERNET_PORTS = (22, 80, 443)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,5}")
_METHOD = re.compile(r"[A-Z]{1,32}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_CASSETTE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_MOST_RULES = 1000
_MOST_PORTS = 64


class Network(StrEnum):
    """Reach nothing, every public name, or all that the host reaches. A NetworkPolicy says it name by name."""

    NONE = "none"
    INTERNET = "internet"
    HOST = "host"


class Secret(msgspec.Struct, frozen=True):
    """Name a secret that the host adds to requests; its value never enters the sandbox.

    `format` has `{}` where the value stands: `Secret("TOKEN", format="Bearer {}")`.
    """

    name: str
    format: str = "{}"


def _freeze(struct: msgspec.Struct, *names: str) -> None:
    """Make tuples of lists. A string is a list too, of its letters, which nobody means: ValidationFailed."""
    for name in names:
        value = getattr(struct, name)
        if isinstance(value, str):
            raise ValidationFailed(f"`{name}` of a {type(struct).__name__} is a list: write [{value!r}]")
        msgspec.structs.force_setattr(struct, name, tuple(value))


class NetworkRule(msgspec.Struct, frozen=True):
    """Allow one name, or all below it: `api.example`, `*.cdn.example`, `db.example:5432`, `10.0.0.5`.

    Without `ports` these are 80 and 443; with secrets, 443. A rule with `methods`, `paths`, `inject`, `query` or
    `basic_auth` is intercepted: the request itself is judged, and what does not fit is answered with 403. `paths` take
    `*` for anything. `private` lets an exact name or address lead to a private address.
    """

    host: str
    ports: Sequence[int] = ()
    methods: Sequence[str] = ()
    paths: Sequence[str] = ()
    websocket: bool = False
    private: bool = False
    inject: Mapping[str, Secret] = {}
    query: Mapping[str, Secret] = {}
    basic_auth: Secret | None = None

    def __post_init__(self) -> None:
        _freeze(self, "ports", "methods", "paths")

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """All secrets that the rule sends."""
        basic = () if self.basic_auth is None else (self.basic_auth,)
        return (*self.inject.values(), *self.query.values(), *basic)

    @property
    def is_intercepted(self) -> bool:
        """Return whether single requests are judged, so that TLS ends at the host."""
        return bool(self.methods or self.paths or self.secrets)

    @property
    def target(self) -> "Target":
        """Parse its name and ports. Raises ValidationFailed."""
        target = parse_target(self.host)
        if self.ports and target.ports:
            raise ValidationFailed(f"network rule {self.host!r}: give the port in the name or in `ports`, not in both")
        return target if target.ports else target.on(self.ports or ((443,) if self.secrets else WEB_PORTS))


class NetworkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bound the traffic of a sandbox: bytes in both directions, connections at a time, intercepted requests."""

    total_bytes: int | None = None
    connections: int | None = None
    requests_per_minute: int | None = None


class NetworkPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Allow these names and no others; `deny` goes before `allow`.

    A string is a NetworkRule with that host. `record` keeps what intercepted names answer in a cassette; `replay`
    answers from one, and reaches nothing.
    """

    allow: Sequence[str | NetworkRule] = ()
    deny: Sequence[str] = ()
    limits: NetworkLimits = NetworkLimits()
    record: str | None = None
    replay: str | None = None

    def __post_init__(self) -> None:
        _freeze(self, "allow", "deny")

    @property
    def rules(self) -> tuple[NetworkRule, ...]:
        """The allowed hosts, each as a rule."""
        return tuple(NetworkRule(each) if isinstance(each, str) else each for each in self.allow)


class NetworkDenial(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was refused, why, and the rule that would allow it (None: nothing would)."""

    host: str
    port: int | None = None
    reason: str
    rule: str | None = None


class NetworkEventKind(StrEnum):
    """The thing asked for: a name's address, a connection, or a request of an intercepted one."""

    NAME = "name"
    CONNECTION = "connection"
    REQUEST = "request"
    GAP = "gap"


class NetworkEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the network log. `cursor` continues right after it.

    `rule` is the rule that allowed it or, when it was refused, the one that would. A gap says in `lost` how many
    events are no longer kept.
    """

    cursor: str
    kind: NetworkEventKind
    at: datetime
    host: str = ""
    port: int | None = None
    allowed: bool = False
    reason: str = ""
    rule: str | None = None
    method: str | None = None
    path: str | None = None
    status: int | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    duration: float = 0.0
    lost: int = 0


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed host pattern: `name` without `*.`, an address where it is one, ports where it names them."""

    name: str
    is_wildcard: bool = False
    is_address: bool = False
    ports: tuple[int, ...] = ()

    def on(self, ports: Sequence[int]) -> "Target":
        """The same on these ports."""
        return msgspec.structs.replace(self, ports=tuple(ports))

    @property
    def pattern(self) -> str:
        """The pattern that a user writes, without ports."""
        return f"*.{self.name}" if self.is_wildcard else self.name


@functools.lru_cache(1024)
def parse_target(text: str) -> Target:
    """Parse `name`, `*.name` or an IPv4 address, with `:port` or without. Raises ValidationFailed."""
    host, colon, port = text.partition(":")
    if ":" in port or "/" in text:
        raise ValidationFailed(
            f"network rule {text!r}: write a name, `*.name` or an IPv4 address, with or without `:port`: no URL or IPv6"
        )
    ports = (_parse_port(text, port),) if colon else ()
    if host.startswith("*."):
        return Target(name=_parse_name(text, host[2:]), is_wildcard=True, ports=ports)
    if "*" in host:
        raise ValidationFailed(
            f'network rule {text!r}: a `*` is only the first label, as in `*.example.org`; network="internet" is all'
        )
    if _is_address(host):
        return Target(name=host, is_address=True, ports=ports)
    return Target(name=_parse_name(text, host), ports=ports)


def normalize_name(name: str) -> str:
    """A host name as it is compared: lower case, ASCII, without a final dot. Raises ValueError."""
    name = name.removesuffix(".").lower()
    if not name.isascii():
        name = name.encode("idna").decode("ascii")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError(f"{name!r} is not a host name")
    return name


def _parse_name(text: str, name: str) -> str:
    try:
        name = normalize_name(name)
    except ValueError:
        raise ValidationFailed(f"network rule {text!r}: {name!r} is not a host name") from None
    if name.rpartition(".")[2].isdigit():
        raise ValidationFailed(f"network rule {text!r}: {name!r} is not an IPv4 address")
    return name


def _parse_port(text: str, port: str) -> int:
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise ValidationFailed(f"network rule {text!r}: {port!r} is not a port (1 to 65535)")
    return int(port)


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def check_network(network: Network | NetworkPolicy) -> None:
    """Raise ValidationFailed for a policy that makes no sense, naming the rule."""
    if isinstance(network, Network):
        return
    for problem in _problems(network):
        raise ValidationFailed(problem)


def _problems(policy: NetworkPolicy) -> Iterator[str]:
    yield from _problems_of_cassettes(policy)
    if len(policy.allow) + len(policy.deny) > _MOST_RULES:
        yield f"network: more than {_MOST_RULES} rules"
    for name in policy.limits.__struct_fields__:
        value = getattr(policy.limits, name)
        if value is not None and value < 1:
            yield f"network.limits.{name} must be at least 1, not {value}"
    for text in policy.deny:
        parse_target(text)
    ports = set[int]()
    for rule in policy.rules:
        yield from _problems_of_rule(rule)
        ports |= set(rule.target.ports)
    if len(ports) > _MOST_PORTS:
        yield f"network: more than {_MOST_PORTS} different ports"


def _problems_of_cassettes(policy: NetworkPolicy) -> Iterator[str]:
    if policy.record is not None and policy.replay is not None:
        yield "network: a policy records or replays, not both"
    for cassette in (policy.record, policy.replay):
        if cassette is not None and not _CASSETTE.fullmatch(cassette):
            yield f"network: {cassette!r} is not the name of a cassette: letters, digits, `_`, `.` and `-`"
    for target in (rule.target for rule in policy.rules if policy.replay is not None):
        if target.is_address:
            yield f"network: a policy that replays reaches nothing: it cannot allow the address {target.name}"


def _problems_of_rule(rule: NetworkRule) -> Iterator[str]:
    target, what = rule.target, f"network rule {rule.host!r}"
    for port in target.ports:
        if not 0 < port < 65536:
            yield f"{what}: {port} is not a port (1 to 65535)"
        if port == 53:
            yield f"{what}: port 53 is the sandbox's own name server"
    if rule.private and target.is_wildcard:
        yield f"{what}: `private` needs an exact name or address, not a wildcard"
    if rule.is_intercepted and target.is_address:
        yield f"{what}: a rule on requests needs a name, not an address"
    for method in rule.methods:
        if not _METHOD.fullmatch(method):
            yield f"{what}: {method!r} is not a method, as GET is one"
    for path in rule.paths:
        if not path.startswith("/"):
            yield f"{what}: a path begins with `/`, not {path!r}"
    yield from (f"{what}: {problem}" for problem in _problems_of_secrets(rule))


def _problems_of_secrets(rule: NetworkRule) -> Iterator[str]:
    if rule.secrets and rule.target.is_wildcard:
        yield "a secret goes to an exact name, not to a wildcard"
    if rule.secrets and 80 in rule.target.ports:
        yield "a secret is sent over TLS only: leave out port 80"
    for header in rule.inject:
        if not _HEADER.fullmatch(header) or header.lower() in _NOT_INJECTED:
            yield f"{header!r} cannot be injected"
    for secret in rule.secrets:
        if not _SECRET.fullmatch(secret.name):
            yield f"{secret.name!r} is not the name of a secret: letters, digits, `_`, `.` and `-`"
        if secret.format.count("{}") != 1 or not secret.format.isprintable():
            yield f"the format of secret {secret.name} has `{{}}` once, where the value stands"


# They frame the request or name its host: set by the proxy alone.
_NOT_INJECTED = frozenset(("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"))
