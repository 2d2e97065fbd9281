"""Bodies of requests to E2B's control API: what a client wishes for, and how it is read."""

from typing import Final, TypeVar

import msgspec

from cove.http import Request
from cove.server.e2b.life import DEFAULT_TIMEOUT
from cove.server.e2b.network import NetworkWish
from cove.server.e2b.protocol import Refusal

T = TypeVar("T")

_MOST_BODY_BYTES: Final = 1 << 20


class _VolumeMount(msgspec.Struct):
    name: str
    path: str


class _AutoResume(msgspec.Struct):
    enabled: bool = False


class CreateWish(msgspec.Struct, rename="camel", kw_only=True):
    """Create a sandbox. What is not known here is left out, as the service does."""

    template_id: str = msgspec.field(default="base", name="templateID")
    timeout: int | float = DEFAULT_TIMEOUT
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    auto_pause: bool | None = None
    auto_pause_memory: bool | None = None
    auto_resume: _AutoResume | None = None
    allow_internet_access: bool | None = msgspec.field(default=None, name="allow_internet_access")
    network: NetworkWish | None = None
    volume_mounts: list[_VolumeMount] | None = None
    mcp: object = None
    iam: object = None


class PauseWish(msgspec.Struct):
    """Pause; without memory the sandbox is stopped."""

    memory: bool | None = None


class SnapshotWish(msgspec.Struct):
    """Keep the state under a name."""

    name: str | None = None


class ForkWish(msgspec.Struct):
    """Make copies that live so long."""

    timeout: int | float | None = None
    count: int | None = None


class RefreshWish(msgspec.Struct):
    """Live so long from now on."""

    duration: int | float = DEFAULT_TIMEOUT


async def read_wish(request: Request, kind: type[T]) -> T:
    """Decode the body of a request, which may be empty. Raises Refusal."""
    body = await request.read(_MOST_BODY_BYTES)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid: {error}") from None
