"""The console's door: log in with a key, then show a cookie in its place; answer the console's own paths.

A browser sends the cookie with every request that any page makes to this host, so the cookie alone is no right. A
request counts as the console's only if it has the header `cove-console`, which pages of other origins cannot set
without asking first (CORS), and are refused. A WebSocket has no headers of the page's choice: it must have the Origin
of this host. Cookies know no ports: previews on the same host neither get this one nor set it (`preview/headers`).

Pages of neighbours below one domain, such as E2B's ports, can set cookies for it. Over TLS the cookie has a name that
browsers take from this very host alone (`__Host-`, RFC 6265bis 4.1.3.2), and one with the plain name is none.
"""

from collections.abc import Coroutine
from datetime import UTC, datetime
from ipaddress import ip_address
from types import TracebackType
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

import cove
from cove.errors import MethodNotAllowed, NotFound, Unauthorized
from cove.http import Answer, Handler, Request, Response
from cove.local.threads import in_thread
from cove.server.cluster.peer import PEER
from cove.server.console.pages import ASSETS, FRAME, Pages, preview_origins
from cove.server.console.sessions import DIRECTORY, SESSION_SECONDS, Sessions
from cove.server.e2b.gateway import find_inside
from cove.server.gateway.auth import SERVER, Authenticator, forbid
from cove.server.gateway.rate import Rate
from cove.server.preview.exposures import PreviewAddress
from cove.server.sandboxes.directory import Directory
from cove.wire.coding import decode_json

HEADER: Final = b"cove-console"
COOKIE: Final = b"cove_console"
SECURE_COOKIE: Final = b"__Host-cove_console"
TENANT: Final = "cove-tenant"
LOGIN, LOGOUT, SESSION = "/console/login", "/console/logout", "/console/session"
_BELOW: Final = "/console/"
_API: Final = ("/v1/", "/metrics")
_MOST_BODY_BYTES: Final = 4096
_LOGINS_A_SECOND: Final = 10.0
_CREDENTIALS: Final = (b"authorization", b"x-api-key")
_JSON: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
_NO_STORE: Final = (b"cache-control", b"no-store")
_ADVICE: Final = "you are not logged in, or your session is over: log in with a key"

Coming = Answer | Coroutine[object, object, Answer]


class LoginRequest(msgspec.Struct, frozen=True):
    """The body of a log-in."""

    key: str = ""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a session that the console shows; `tenant` is None for an admin."""

    name: str
    tenant: str | None
    is_admin: bool
    expires_at: datetime | None
    version: str
    is_cluster: bool
    preview_origins: tuple[str, ...]


class ConsoleGate:
    """Answers the console's paths, and turns its cookie into the right that it stands for."""

    def __init__(
        self, directory: Directory, authenticator: Authenticator, sessions: Sessions, address: PreviewAddress
    ) -> None:
        self._directory = directory
        self._authenticator = authenticator
        self._sessions = sessions
        self._origins = preview_origins(address)
        self._pages = Pages(address)
        self._rate: Rate

    async def __aenter__(self) -> "ConsoleGate":
        self._rate = await in_thread(Rate, self._directory.home / DIRECTORY, "all together")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._rate.close()

    def before(self, handler: Handler) -> Handler:
        """Answer what is the console's, and leave all else to that handler."""

        def handle(request: Request) -> Coming:
            if _is_for_console(request) and not _is_for_other(request):
                return self._answer(request)
            if b"cookie" in request.headers and request.path.startswith(_API) and not _is_for_other(request):
                return self._admit(request) or handler(request)
            return handler(request)

        return handle

    def _admit(self, request: Request) -> Response | None:
        """Put the session that a cookie stands for in the place of a key; return the answer to one that has none."""
        is_socket = request.headers.get(b"upgrade", b"").lower() == b"websocket"
        tokens = _take_cookies(request)
        if any(name in request.headers for name in _CREDENTIALS) or not (is_socket or HEADER in request.headers):
            return None
        if not tokens:
            return None
        if not _is_same_origin(request, must_say=is_socket):
            return forbid("requests from other origins are not served")
        if len(tokens) > 1 or self._sessions.find(tokens[0]) is None:
            raise Unauthorized(_ADVICE)
        request.headers[b"authorization"] = b"Bearer " + tokens[0]
        if is_socket:
            _name_tenant(request)
        return None

    async def _answer(self, request: Request) -> Answer:
        if (refusal := self._authenticator.refuse_host(request)) is not None:
            return refusal
        allowed = "POST" if request.path in (LOGIN, LOGOUT) else "GET"
        if request.method not in (allowed, "HEAD" if allowed == "GET" else allowed):
            raise MethodNotAllowed(f"{request.path} takes {allowed}, not {request.method}", allowed=[allowed])
        if request.path == "/":
            return await self._pages.index()
        if request.path == FRAME:
            return await self._pages.frame()
        if request.path.startswith(ASSETS):
            return await self._pages.asset(request)
        if not _is_same_origin(request):
            return forbid("requests from other origins are not served")
        return await self._answer_session(request)

    async def _answer_session(self, request: Request) -> Response:
        match request.path:
            case "/console/login":
                return await self._log_in(request)
            case "/console/logout":
                return await self._log_out(request)
            case "/console/session":
                return await self._describe(request)
        raise NotFound(f"there is nothing at {request.path}")

    async def _log_in(self, request: Request) -> Response:
        self._rate.take(_LOGINS_A_SECOND)
        key = decode_json(await request.read(_MOST_BODY_BYTES) or b"{}", LoginRequest).key
        if self._authenticator.key is None:
            key = ""  # whoever is on this machine may
        elif self._sessions.find(shown := key.encode("utf-8", "replace")) or not self._authenticator.identify(shown):
            raise Unauthorized("this key is wrong, was revoked, or is over")
        token = await in_thread(self._sessions.begin, key)
        return Response(204, (_cookie(request, token, SESSION_SECONDS), _NO_STORE))

    async def _log_out(self, request: Request) -> Response:
        for token in _take_cookies(request):
            await in_thread(self._sessions.end, token.decode("latin-1"))
        return Response(204, (_cookie(request, "", 0), _NO_STORE))

    async def _describe(self, request: Request) -> Response:
        tokens = _take_cookies(request)
        found = self._sessions.look_up(tokens[0]) if len(tokens) == 1 else None
        if found is None and self._authenticator.key is None:
            found = SERVER, 0.0
        if found is None:
            raise Unauthorized(_ADVICE)
        principal, expires = found
        info = SessionInfo(
            name=principal.name,
            tenant=principal.tenant or None,
            is_admin=principal.is_admin,
            expires_at=datetime.fromtimestamp(expires, UTC) if expires else None,
            version=cove.__version__,
            is_cluster=await in_thread(self._directory.here) is not None,
            preview_origins=self._origins,
        )
        return Response(200, _JSON, msgspec.json.encode(info))


def _is_for_console(request: Request) -> bool:
    if request.path == "/":
        return request.method in ("GET", "HEAD") and b"text/html" in request.headers.get(b"accept", b"")
    return request.path.startswith(_BELOW)


def _is_for_other(request: Request) -> bool:
    """Return whether a request is for what runs inside a sandbox, or comes from another node."""
    return PEER in request.headers or find_inside(request) is not None


def _take_cookies(request: Request) -> list[bytes]:
    """Take our cookies off a request, and return the values of those that count: nobody behind the door needs one."""
    cookies = []
    for name, value in request.raw_headers:
        if name == b"cookie":
            pairs = (pair.strip().partition(b"=") for pair in value.split(b";"))
            cookies += [(name.strip(), value.strip()) for name, _, value in pairs]
    ours = [(name, value) for name, value in cookies if name in (COOKIE, SECURE_COOKIE)]
    if ours:
        request.raw_headers[:] = [header for header in request.raw_headers if header[0] != b"cookie"]
        del request.headers[b"cookie"]
    is_secure = _is_secure(request)
    return [value for name, value in ours if name == SECURE_COOKIE or not is_secure]


def _is_secure(request: Request) -> bool:
    """Return whether a browser came by TLS. It says so by the Origin, or sends Sec-Fetch-Site to another machine."""
    origin = request.headers.get(b"origin")
    if origin is not None:
        return origin.lower().startswith(b"https://")
    return b"sec-fetch-site" in request.headers and not _is_loopback(request.headers.get(b"host", b""))


def _is_loopback(host: bytes) -> bool:
    """Return whether a host is this machine to a browser, which then trusts it without TLS (W3C Secure Contexts)."""
    try:
        name = urlsplit(f"//{host.decode('latin-1').lower()}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def _is_same_origin(request: Request, *, must_say: bool = False) -> bool:
    """Return whether a page of this very host asks, or a program that is no browser; `must_say` is for sockets."""
    headers = request.headers
    origin, host = headers.get(b"origin"), headers.get(b"host", b"").lower()
    if origin is None:
        return not must_say and headers.get(b"sec-fetch-site", b"same-origin") in (b"same-origin", b"none")
    return bool(host) and origin.lower() in (b"http://" + host, b"https://" + host)


def _name_tenant(request: Request) -> None:
    """Let an admin's socket say in its query which tenant it means, as all other requests do in a header."""
    fields = parse_qsl(request.query, keep_blank_values=True, max_num_fields=32)
    named = [value for name, value in fields if name == TENANT]
    if named:
        request.headers[TENANT.encode()] = named[0].encode("utf-8", "replace")
        request.query = urlencode([field for field in fields if field[0] != TENANT])


def _cookie(request: Request, token: str, seconds: float) -> tuple[bytes, bytes]:
    """Return the header that sets our cookie. It is for TLS and this host alone where the browser came by TLS."""
    name, secure = (SECURE_COOKIE, b"; Secure") if _is_secure(request) else (COOKIE, b"")
    rule = b"Path=/; HttpOnly; SameSite=Strict; Max-Age=%d%b" % (int(seconds), secure)
    return b"set-cookie", b"%b=%b; %b" % (name, token.encode(), rule)
