"""The gateways of each tenant: all that answers a request is made for one, and sees nothing but what is the tenant's.

A request goes to those of the tenant whose key it shows; the gateways check the key themselves. An admin names a
tenant by the header `cove-tenant`. Whatever shows no tenant's key goes to those of the server.
"""

import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final

from cove.core.sandbox_token import Grant, Shown, allows, is_signed
from cove.errors import NodeUnavailable, PermissionDenied, Unauthorized
from cove.http import Answer, Handler, Request
from cove.local.threads import in_thread
from cove.runtime.journal import ACTOR
from cove.server.actor import actor_of, name_key
from cove.server.bridge.gateway import BridgeGateway
from cove.server.configuration import Configuration
from cove.server.console.live import Elsewhere, LiveGateway
from cove.server.console.server_status import StatusGateway
from cove.server.credentials import TENANT_HEADER, bearer, find_key, take_token, tenant_of
from cove.server.dispatch import Routes
from cove.server.e2b.gateway import E2bGateway, takes_token
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.documents import Documents
from cove.server.gateway.handler import Gateway
from cove.server.gateway.key_ring import Principal
from cove.server.gateway.rate import Rates
from cove.server.gateway.token_scope import GRANTABLE, KINDS
from cove.server.gateway.turns import Coming, Turns
from cove.server.mcp.gateway import McpGateway
from cove.server.sandboxes.directory import Record
from cove.server.sandboxes.starter import Starter
from cove.wire.coding import decode_query
from cove.wire.operations import READ_FILE, WRITE_FILE

_NAME_OF_TOKENS: Final = "a token"
_EXPIRES: Final = b"cove-expires"
_GRANTABLE: Final = Routes(GRANTABLE)


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
        turns: Turns,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._starter = starter
        self._configuration = configuration
        self._documents = documents
        self._secret = secret
        self._key = key
        self._elsewhere = elsewhere
        self._turns = turns
        self._handlers: dict[str, Handler] = {}
        self._rates = Rates(starter.directory.home)
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> "TenantGateways":
        await self._opened.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._rates.close()
        await self._opened.__aexit__(kind, error, traceback)

    def __call__(self, request: Request) -> Coming:
        """Let the tenant's gateways answer."""
        request.headers.pop(_EXPIRES, None)
        shown = take_token(request)
        if shown is not None:
            return self._answer_token(request, shown)
        principal = self._identify(request)
        name_key(request, None if principal is None else principal.name)
        ACTOR.set(actor_of(request))
        tenant = "" if principal is None else tenant_of(request, principal)
        request.owner = tenant
        handler = self._handler_of(tenant)
        is_checked = principal is not None or self._authenticator.is_servers(bearer(request))
        if not is_checked or takes_token(request):
            return handler(request)
        if principal is not None:
            self._rates.take(principal)
        return self._turns.take(request, handler, tenant)

    def _take_turn(self, request: Request, handler: Handler, tenant: str) -> Coming:
        """Let a request be answered whose token was checked: within the rate of the tenant, when it is its turn."""
        self._rates.take(Principal(_NAME_OF_TOKENS, tenant, self._authenticator.rate_of(tenant)))
        return self._turns.take(request, handler, tenant)

    def _handler_of(self, tenant: str) -> Handler:
        handler = self._handlers.get(tenant)
        if handler is None:
            handler = self._handlers[tenant] = self._make(tenant)
        return handler

    async def _answer_token(self, request: Request, shown: Shown) -> Answer:
        """Answer who shows a token of a sandbox: within its grant, as if it were an admin's."""
        record = await in_thread(self._find, shown.grant)
        if record is None or not is_signed(shown, self._secret, record.key, time.time()):
            raise Unauthorized("the token is wrong, its time is over, or its sandbox is gone")
        _check_grant(request, shown.grant)
        name_key(request, _NAME_OF_TOKENS)
        request.owner = record.tenant
        ACTOR.set(actor_of(request))
        request.headers[b"authorization"] = b"Bearer " + (self._key or "").encode()
        request.headers[_EXPIRES] = b"%f" % shown.grant.expires
        request.headers.pop(b"sec-fetch-site", None)  # who has a signed URL may follow it from anywhere
        coming = self._take_turn(request, self._handler_of(record.tenant), record.tenant)
        return await coming if isinstance(coming, Coroutine) else coming

    def _find(self, grant: Grant) -> Record | None:
        return self._starter.directory.of(grant.tenant).find(grant.id)

    def is_allowed(self, request: Request) -> bool:
        """Return whether the key or token that a request showed still holds, if it showed one."""
        expires = request.headers.get(_EXPIRES)
        if expires is not None and time.time() > float(expires):
            return False
        shown = find_key(request)
        try:
            return not shown or self._authenticator.identify(shown) is not None
        except NodeUnavailable:
            return False

    def _identify(self, request: Request) -> Principal | None:
        """Return who shows a tenant's key, or names a tenant and shows another key; None for all others.

        What another node vouches for counts, and nothing else that such a request shows.
        """
        shown = bearer(request)
        vouched = self._authenticator.vouched(shown)
        if vouched is not None:
            return vouched
        key = find_key(request)
        if not key and TENANT_HEADER not in request.headers:
            return None
        return self._authenticator.identify(key or shown)

    def _make(self, tenant: str) -> Handler:
        starter, configuration = self._starter.of(tenant), self._configuration
        directory, authenticator = starter.directory, self._authenticator.of(tenant)
        bridge = BridgeGateway(directory, starter, authenticator, configuration)
        mcp = McpGateway(directory, starter, authenticator, configuration)
        gateway = Gateway(directory, starter, authenticator, self._documents)
        e2b = E2bGateway(
            directory,
            starter,
            authenticator,
            configuration,
            secret=self._secret,
            key=self._key,
            take_turn=self._take_turn,
        )
        live = LiveGateway(directory, starter, authenticator, self._elsewhere)
        for each in (bridge, mcp, gateway, e2b, live):
            self._opened.push_async_exit(each)
        status = StatusGateway(self._starter, authenticator, self._elsewhere)
        return e2b.before(mcp.before(bridge.before(status.before(live.before(gateway)))))


def _check_grant(request: Request, grant: Grant) -> None:
    """Raise PermissionDenied for what a token is not for: another operation, or another file than its own."""
    node, ids = _GRANTABLE.match(request.path)
    operation = None if node is None else node.choose(request).operation
    if operation is None or not ids or ids[0] != grant.id:
        raise PermissionDenied(f"the token is for sandbox {grant.id} alone, and not for {request.path}")
    if not allows(grant, KINDS[operation.name]):
        raise PermissionDenied(f"the token is for {', '.join(grant.operations)}, and not for {operation.name}")
    if grant.path is not None and (operation not in (READ_FILE, WRITE_FILE) or len(ids) != 1):
        raise PermissionDenied("the token is for one file: read or write its content")
    if grant.path is not None:
        asked = decode_query(request.query, operation.request).arguments()
        if asked["path"] != grant.path or asked["user"] is not None:
            raise PermissionDenied("the token is for one file, and not for this one")
