"""Read the credentials that a request shows, in any of the ways that clients have: a key, a token, a tenant's name."""

import re
from typing import Final

from cove.core.e2b_access import decode_key
from cove.core.sandbox_token import Shown, read_token
from cove.errors import CoveError
from cove.http import Request
from cove.model.api_key import check_key_name
from cove.server.gateway.key_ring import Principal

TENANT_HEADER: Final = b"cove-tenant"
_BEARER: Final = b"bearer "
_IN_QUERY: Final = "token="
_KEY = re.compile(rb"cove_(?:[a-z2-7]{12}|console)_[A-Za-z0-9_-]{43}")  # of a tenant, or of a console's session


def find_token(request: Request) -> Shown | None:
    """Return the token of a sandbox that a request shows as its key, or as `?token=`."""
    shown = read_token(bearer(request).decode("latin-1"))
    if shown is None and _IN_QUERY in request.query:
        found = _tokens_in(request)
        shown = read_token(found[0].removeprefix(_IN_QUERY)) if found else None
    return shown


def take_token(request: Request) -> Shown | None:
    """Return the token that a request shows; one in the query goes no further."""
    shown = find_token(request)
    if shown is not None and _IN_QUERY in request.query:
        found = _tokens_in(request)
        request.query = "&".join(field for field in request.query.split("&") if field not in found)
    return shown


def _tokens_in(request: Request) -> list[str]:
    return [field for field in request.query.split("&") if field.startswith(_IN_QUERY)]


def find_key(request: Request) -> bytes:
    """Return the tenant's key that is shown in any of the ways that clients have; nothing for another's."""
    headers = request.headers
    shown = headers.get(b"x-api-key", b"")
    decoded = decode_key(shown.decode("latin-1")).encode("utf-8", "replace") if shown else b""
    for text in (headers.get(b"authorization", b""), decoded, request.query.encode("utf-8", "replace")):
        if (found := _KEY.search(text)) is not None:
            return found[0]
    return b""


def bearer(request: Request) -> bytes:
    """Return what is shown as the server's key."""
    shown = request.headers.get(b"authorization", b"")
    if shown[: len(_BEARER)].lower() == _BEARER:
        return shown[len(_BEARER) :].strip()
    return decode_key(request.headers.get(b"x-api-key", b"").decode("latin-1")).encode("utf-8", "replace")


def tenant_of(request: Request, principal: Principal) -> str:
    """Return the tenant for which a request is answered: that of its key, or the one that an admin names."""
    return principal.tenant or _check(request.headers.get(TENANT_HEADER))


def _check(name: bytes | None) -> str:
    try:
        return "" if not name else check_key_name(name.decode("latin-1"))
    except CoveError:
        return ""
