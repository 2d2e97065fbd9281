"""The gateways of each tenant: all that answers a request is made for one, and sees nothing but what is the tenant's.

A request goes to those of the tenant whose key it shows; the gateways check the key themselves. An admin names a
tenant by the header `cove-tenant`. Whatever shows no tenant's key goes to those of the server.
"""

import re
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final

from cove.core.e2b_access import decode_key
from cove.errors import CoveError
from cove.http import Answer, Handler, Request
from cove.model.api_key import check_key_name
from cove.runtime.journal import ACTOR
from cove.server.actor import actor_of, name_key
from cove.server.bridge.gateway import BridgeGateway
from cove.server.configuration import Configuration
from cove.server.e2b.gateway import E2bGateway
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.documents import Documents
from cove.server.gateway.handler import Gateway
from cove.server.gateway.key_ring import Principal
from cove.server.gateway.rate import Rate
from cove.server.mcp.gateway import McpGateway
from cove.server.sandboxes.starter import Starter

TENANT_HEADER: Final = b"cove-tenant"
_BEARER: Final = b"bearer "
_KEY = re.compile(rb"cove_[a-z2-7]{12}_[A-Za-z0-9_-]{43}")


class TenantGateways:
    """Makes the gateways of a tenant when its first request comes."""

    def __init__(
        self,
        authenticator: Authenticator,
        starter: Starter,
        configuration: Configuration,
        documents: Documents,
        *,
        secret: bytes,
        key: str | None,
    ) -> None:
        self._authenticator = authenticator
        self._starter = starter
        self._configuration = configuration
        self._documents = documents
        self._secret = secret
        self._key = key
        self._handlers: dict[str, Handler] = {}
        self._rates: dict[str, Rate] = {}
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> "TenantGateways":
        await self._opened.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, traceback)

    def __call__(self, request: Request) -> Answer | Coroutine[object, object, Answer]:
        """Let the tenant's gateways answer."""
        principal = self._identify(request)
        name_key(request, None if principal is None else principal.name)
        ACTOR.set(actor_of(request))
        tenant = "" if principal is None else principal.tenant or _check(request.headers.get(TENANT_HEADER))
        if principal is not None and principal.rate is not None:
            self._rate_of(tenant).take(principal.rate)
        handler = self._handlers.get(tenant)
        if handler is None:
            handler = self._handlers[tenant] = self._make(tenant)
        return handler(request)

    def is_allowed(self, request: Request) -> bool:
        """Return whether the key that a request showed still holds, if it showed a tenant's."""
        shown = _find_key(request)
        return not shown or self._authenticator.identify(shown) is not None

    def _identify(self, request: Request) -> Principal | None:
        """Return who shows a tenant's key, or names a tenant and shows another key; None for all others."""
        shown = _find_key(request)
        if not shown and TENANT_HEADER not in request.headers:
            return None
        return self._authenticator.identify(shown or _bearer(request))

    def _rate_of(self, tenant: str) -> Rate:
        rate = self._rates.get(tenant)
        if rate is None:
            rate = self._rates[tenant] = Rate(self._starter.directory.home, tenant)
            self._opened.callback(rate.close)
        return rate

    def _make(self, tenant: str) -> Handler:
        starter, configuration = self._starter.of(tenant), self._configuration
        directory, authenticator = starter.directory, self._authenticator.of(tenant)
        bridge = BridgeGateway(directory, starter, authenticator, configuration)
        mcp = McpGateway(directory, starter, authenticator, configuration)
        gateway = Gateway(directory, starter, authenticator, self._documents)
        e2b = E2bGateway(directory, starter, authenticator, configuration, secret=self._secret, key=self._key)
        for each in (bridge, mcp, gateway, e2b):
            self._opened.push_async_exit(each)
        return e2b.before(mcp.before(bridge.before(gateway)))


def _find_key(request: Request) -> bytes:
    """Return the tenant's key that is shown in any of the ways that clients have; nothing for another's."""
    headers = request.headers
    shown = headers.get(b"x-api-key", b"")
    decoded = decode_key(shown.decode("latin-1")).encode("utf-8", "replace") if shown else b""
    for text in (headers.get(b"authorization", b""), decoded, request.query.encode("utf-8", "replace")):
        if (found := _KEY.search(text)) is not None:
            return found[0]
    return b""


def _bearer(request: Request) -> bytes:
    shown = request.headers.get(b"authorization", b"")
    if shown[: len(_BEARER)].lower() == _BEARER:
        return shown[len(_BEARER) :].strip()
    return decode_key(request.headers.get(b"x-api-key", b"").decode("latin-1")).encode("utf-8", "replace")


def _check(name: bytes | None) -> str:
    try:
        return "" if not name else check_key_name(name.decode("latin-1"))
    except CoveError:
        return ""
