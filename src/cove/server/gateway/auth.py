"""Authenticate requests by API key; reject requests that other web sites cause (CSRF, DNS rebinding).

The key is configured, or generated once and kept where only this user can read it.
"""

import hmac
import os
import re
import secrets
from collections.abc import Callable, Collection
from copy import copy
from pathlib import Path
from urllib.parse import parse_qs

from cove.core.journal import SERVER_KEY
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.http import Request, Response
from cove.linux.file_lock import waiting_lock
from cove.local.state import replace_file, sync_directory
from cove.server.error_response import error_response
from cove.server.gateway.key_ring import KeyRing, Principal
from cove.wire.errors import ErrorBody
from cove.wire.operation import Caller

KEY_FILE = "key"
GIVEN_KEY = Path("server", "key")
_TOKEN_SECRET = Path("server", "token-secret")
_RANDOM_BYTES = 32
_LEAST_LENGTH = 8
_HOST = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
_LOOPBACK = (b"localhost", b"127.0.0.1", b"[::1]")
_ELSEWHERE = (b"cross-site", b"same-site")
_MOST_REMEMBERED = 64
SERVER = Principal(SERVER_KEY)
_ADVICE = (
    "the key is missing, wrong, revoked, or over: send `Authorization: Bearer KEY` "
    "(COVE_API_KEY, or in Python api_key=, on the command line --api-key)"
)


def load_key(home: Path, configured: str | None = None) -> str:
    """Load the configured key, COVE_API_KEY, or the one in the state directory, made if it is not there. Blocks."""
    if chosen := configured or os.environ.get("COVE_API_KEY"):
        return _check_key(chosen)
    path = home / KEY_FILE
    try:
        if not path.exists():
            _make_key(path)
        return _read_key(path)
    except OSError as error:
        raise SandboxUnavailable(f"cannot keep the server's key in {path}: {error.strerror}") from error


def load_token_secret(home: Path) -> bytes:
    """Load the secret that tokens of sandboxes are made of, made if it is not there. Blocks."""
    path = home / _TOKEN_SECRET
    try:
        if not path.exists():
            _make_key(path)
        return _read_key(path).encode()
    except OSError as error:
        raise SandboxUnavailable(f"cannot keep the secret of tokens in {path}: {error.strerror}") from error


def share_token_secret(home: Path, secret: str) -> None:
    """Keep the secret of tokens that all nodes of a cluster have: those of one node hold on another. Blocks."""
    path = home / _TOKEN_SECRET
    try:
        with waiting_lock(path.with_name(f"{path.name}.lock")):  # every worker does
            if not path.exists() or path.read_text().strip() != secret:
                replace_file(path, secret.encode() + b"\n", durable=True)
    except OSError as error:
        raise SandboxUnavailable(f"cannot keep the secret of tokens in {path}: {error.strerror}") from error


def leave_key(home: Path, given: str | None) -> None:
    """Leave a key that the server was given where clients of this user find it; without one, nothing. Blocks."""
    path = home / GIVEN_KEY
    path.unlink(missing_ok=True)
    if given is not None:
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(given + "\n")


def _check_key(key: str) -> str:
    if len(key) < _LEAST_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise ValidationFailed(f"an API key has at least {_LEAST_LENGTH} visible ASCII characters")
    return key


def read_secret(path: Path, what: str) -> str:
    """Read a key from a file that nobody else may have or read. Blocks."""
    try:
        return _read_key(path, what)
    except OSError as error:
        raise SandboxUnavailable(f"cannot read {what} in {path}: {error.strerror}") from error


def _read_key(path: Path, what: str = "the server's key") -> str:
    with path.open() as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (0, os.geteuid()):
            raise SandboxUnavailable(f"{what} in {path} belongs to another user, who knows it: remove it")
        if found.st_mode & 0o077:
            raise SandboxUnavailable(f"others can read {what}: `chmod 600 {path}`, or remove it")
        return _check_key(file.read().strip())


def _make_key(path: Path) -> None:
    """Of several that make one at the same time, one wins."""
    building = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(building, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(_RANDOM_BYTES) + "\n")
            file.flush()
            os.fsync(descriptor)  # clients keep the key: an empty file after a crash would lock them out
        os.link(building, path)
        sync_directory(path.parent)
    except FileExistsError:
        return
    finally:
        building.unlink()


class Authenticator:
    """Decides about a head alone. Without a key everybody on this machine is let in, as an admin.

    A web page can make a browser send requests to this machine, and by a name of its own that it points here (DNS
    rebinding) even read the answers. Such requests carry a Host that is not ours, an Origin that is not the Host, or,
    where browsers send no Origin (images, frames, links), a Sec-Fetch-Site that says where they come from.
    """

    def __init__(
        self,
        key: str | None,
        *,
        is_loopback: bool,
        names: Collection[str] = (),
        origins: Collection[str] = (),
        ring: KeyRing | None = None,
        sessions: Callable[[bytes], Principal | None] | None = None,
        tenant: str = "",
    ) -> None:
        self._key = None if key is None else key.encode()
        self._ring = ring
        self._sessions = sessions
        self._tenant = tenant
        self._is_loopback = is_loopback
        self._names = frozenset(name.lower().encode() for name in names)
        self._origins = frozenset(origin.lower().encode() for origin in origins)
        self._known_hosts: set[bytes] = set()
        self._voucher = secrets.token_hex(_RANDOM_BYTES).encode() + b" "

    def vouch(self, principal: Principal) -> bytes:
        """Return what stands for a principal in the place of a key, and cannot be guessed: another node checked it."""
        return self._voucher + f"{principal.tenant} {principal.name}".encode()

    def vouched(self, shown: bytes) -> Principal | None:
        """Return the principal that was vouched for; None for anything else that is shown."""
        if not hmac.compare_digest(shown[: len(self._voucher)], self._voucher):
            return None
        tenant, _, name = shown[len(self._voucher) :].decode().partition(" ")
        return Principal(name, tenant)

    def refuse(self, request: Request, caller: Caller = Caller.KEY_HOLDER) -> Response | None:
        """Return the answer to whoever lacks the right; None for those who have it."""
        if caller is Caller.ANYONE:
            return None
        is_reader = caller is Caller.READER
        if (refusal := self.refuse_host(request) or self._refuse_site(request, is_reader=is_reader)) is not None:
            return refusal
        principal = self.identify(_shown(request, is_reader=is_reader))
        if principal is None or principal.tenant not in ("", self._tenant):
            challenge = ((b"www-authenticate", b"Bearer"),)
            return error_response(401, ErrorBody(_ADVICE, "UNAUTHORIZED"), challenge)
        if caller is Caller.ADMIN and not principal.is_admin:
            return forbid("only an admin's key may do this")
        return None

    def refuse_host(self, request: Request) -> Response | None:
        """Return the answer to whoever reaches this machine by a name that is not ours (DNS rebinding)."""
        host = request.headers.get(b"host", b"")
        if self._is_loopback and host not in self._known_hosts and not self._is_our_host(host):
            return forbid(
                "this server is on loopback, and this Host is neither localhost nor its address: "
                "`names` in its configuration lists what else it is called"
            )
        return None

    def _refuse_site(self, request: Request, *, is_reader: bool) -> Response | None:
        origin, host = request.headers.get(b"origin"), request.headers.get(b"host", b"")
        if origin is not None and not self._is_our_origin(origin.lower(), host.lower()):
            return forbid("requests from other origins are not served")
        if origin is None and request.headers.get(b"sec-fetch-site") in _ELSEWHERE and not is_reader:
            return forbid("requests from other sites are not served")
        return None

    def of(self, tenant: str) -> "Authenticator":
        """Return one that lets in a tenant, and admins."""
        other = copy(self)
        other._tenant = tenant
        return other

    def identify(self, shown: bytes) -> Principal | None:
        """Return whose the key is that was shown. NodeUnavailable while nobody can say whether it holds."""
        if (vouched := self.vouched(shown)) is not None:
            return vouched
        if self.is_servers(shown):
            return SERVER
        found = None if self._sessions is None else self._sessions(shown)
        if found is None and self._ring is not None:
            return self._ring.find(shown.decode("latin-1"))
        return found

    def is_servers(self, shown: bytes) -> bool:
        """Return whether this is the server's own key; where everybody is let in, whatever was shown is."""
        return self._key is None or hmac.compare_digest(shown, self._key)

    def rate_of(self, tenant: str) -> float | None:
        """Return how many requests a second tokens of a tenant's sandboxes may make; None for any number."""
        return None if self._ring is None or not tenant else self._ring.rate_of(tenant)

    @property
    def key(self) -> bytes | None:
        """Return the server's own key; None where everybody is let in."""
        return self._key

    def _is_our_host(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host)
        name = match[1].lower() if match is not None else b""
        if name not in _LOOPBACK and name not in self._names and not name.endswith(b".localhost"):
            return False
        if len(self._known_hosts) < _MOST_REMEMBERED:
            self._known_hosts.add(host)
        return True

    def _is_our_origin(self, origin: bytes, host: bytes) -> bool:
        return origin in self._origins or (bool(host) and origin in (b"http://" + host, b"https://" + host))


def _shown(request: Request, *, is_reader: bool) -> bytes:
    scheme, _, shown = request.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return shown.strip()
    return _token(request.query) if is_reader else b""


def _token(query: str) -> bytes:
    try:
        return parse_qs(query, encoding="latin-1", max_num_fields=16).get("token", [""])[0].encode("latin-1")
    except ValueError:  # more fields than anybody needs
        return b""


def forbid(why: str) -> Response:
    """Return the answer to whoever has no right to ask."""
    return error_response(403, ErrorBody(why, "PERMISSION_DENIED"))
