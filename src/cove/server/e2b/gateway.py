"""The gateway's half of E2B's protocol: who may, which sandbox is meant, and where the request goes.

A request is for the inside of a sandbox if its headers or its host name say so, or if it is a signed URL of a file;
then a token, a signature, or nothing at all is its right. The control API takes the server's key. Tokens are checked
here, before anything is started: what a runtime gets has passed.
"""

import asyncio
import base64
import binascii
import hmac
import re
import time
from collections.abc import Coroutine
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from cove.core.e2b_access import (
    HIGHEST_PORT,
    TokenKind,
    Tokens,
    decode_key,
    is_expired,
    is_signature,
    parse_host,
    sign_file,
)
from cove.core.identifier import SANDBOX_ID
from cove.errors import CoveError, SandboxNotFound, SandboxPaused, SandboxStopped, SandboxUnavailable
from cove.http import Answer, Handler, HttpError, Request, Response
from cove.local.threads import in_thread
from cove.model import SandboxStatus
from cove.server.configuration import Configuration
from cove.server.e2b.control import Control, serves
from cove.server.e2b.ports import PortRelays
from cove.server.e2b.protocol import (
    BELOW,
    CODE_PORT,
    CONTROL,
    FILES_PORT,
    USER_HEADER,
    Refusal,
    not_running,
    read_query,
)
from cove.server.e2b.record import E2bRecord, read_record
from cove.server.e2b.runtime_call import post
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.relay import SocketRelay
from cove.server.gateway.turns import TakeTurn
from cove.server.gateway.upstream import Upstreams
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.starter import Starter
from cove.tasks import Beginning, begun

_ID_HEADER: Final = b"e2b-sandbox-id"
_PORT_HEADER: Final = b"e2b-sandbox-port"
_ACCESS_HEADER: Final = b"x-access-token"
_TRAFFIC_HEADER: Final = b"e2b-traffic-access-token"
_KEY_HEADER: Final = b"x-api-key"
# They are ours: nothing inside gets to see them, and nobody outside can say what the gateway says.
_OURS: Final = frozenset((_ID_HEADER, _PORT_HEADER, _ACCESS_HEADER, _TRAFFIC_HEADER, _KEY_HEADER, USER_HEADER))
_USER = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_NOBODY: Final = b"-"
_SIGNED: Final = "/files"
_STREAM_INPUT: Final = "/process.Process/StreamInput"
_MOST_REMEMBERED: Final = 10_000
_MOST_SEARCHES: Final = 2  # for the sandbox of a signed URL: nobody has to have a right to ask for one


class E2bRelay(SocketRelay):
    """A relay whose failures are told in the words of the protocol."""

    __slots__ = ("id",)

    id: str

    def fail(self, error: CoveError | HttpError) -> None:
        self._exchange.respond(describe_failure(self.id, error))


@dataclass(frozen=True, slots=True)
class _Place:
    """A sandbox as it was found: where its runtime listens, and what its maker chose.

    One whose id `is_shared` is not the only one of that id: another tenant has it too.
    """

    id: str
    tenant: str
    key: str
    socket: str
    chosen: E2bRecord | None
    is_shared: bool

    @property
    def is_public(self) -> bool:
        """Return whether who knows the id may reach its ports: so only where its maker was told so."""
        return self.chosen is not None and self.chosen.is_public

    @property
    def wakes(self) -> bool:
        """Any request wakes it."""
        return self.chosen is not None and self.chosen.auto_resume


class E2bGateway:
    """Holds no state but connections, and where sandboxes were found."""

    def __init__(
        self,
        directory: Directory,
        starter: Starter,
        authenticator: Authenticator,
        configuration: Configuration,
        *,
        secret: bytes,
        key: str | None,
        take_turn: TakeTurn,
    ) -> None:
        self._directory = directory
        self._starter = starter
        self._authenticator = authenticator
        self._tokens = Tokens(hmac.digest(secret, (key or "").encode(), "sha256"))
        self._control = Control(directory, starter, configuration, self._tokens)
        self._ports = PortRelays(key)
        self._upstreams = Upstreams()
        self._places: dict[str, _Place] = {}
        self._take_turn = take_turn
        self._searching = asyncio.Semaphore(_MOST_SEARCHES)

    async def __aenter__(self) -> "E2bGateway":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ports.close()
        await self._upstreams.aclose()

    def before(self, handler: Handler) -> Handler:
        """Answer the protocol's requests, with checks of its own, and leave all others to that handler."""

        def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
            inside = find_inside(request)
            if inside is not None:
                return self._finish(inside[1], self._answer_inside(request, *inside))
            if request.path == _SIGNED:
                return self._finish("", self._answer_signed(request))
            if serves(request.path):
                return self._finish("", self._answer_control(request))
            return handler(request)

        return handle

    @begun
    async def _finish(self, id: str, coming: Coroutine[object, object, Answer]) -> Answer:
        try:
            with closing(coming):
                await Beginning()
                return await coming
        except Refusal as refusal:
            return refusal.response()
        except (CoveError, HttpError) as error:
            return describe_failure(id, error) if id else Refusal.of(error).response()

    async def _answer_control(self, request: Request) -> Answer:
        shown = request.headers.get(_KEY_HEADER, b"").decode("latin-1")
        refused = None
        for key in dict.fromkeys((shown, decode_key(shown))):
            if key:
                request.headers[b"authorization"] = b"Bearer " + key.encode("utf-8", "replace")
            refused = self._authenticator.refuse(request)
            if refused is None:
                return await self._control(request)
        assert refused is not None
        assert isinstance(refused.body, bytes)
        text = str(msgspec.json.decode(refused.body, type=dict[str, object])["error"])
        if refused.status == 401:
            text = "the server's key is missing or wrong: set E2B_API_KEY, or api_key="
        raise Refusal(refused.status, text)

    async def _answer_inside(self, request: Request, port: int, id: str) -> Answer:
        place, is_known = await self._admit(request, port, id)
        if place is None:
            return not_running(id)
        if not is_known:
            return await self._answer_admitted(place, port, request, is_known=False)
        return await self._in_turn(place, port, request)

    async def _in_turn(self, place: _Place, port: int, request: Request) -> Answer:
        """Answer who showed a right, when it is the turn of the sandbox's tenant."""
        coming = self._take_turn(request, partial(self._answer_admitted, place, port, is_known=True), place.tenant)
        return await coming if isinstance(coming, Coroutine) else coming

    async def _answer_admitted(self, place: _Place, port: int, request: Request, *, is_known: bool) -> Answer:
        path = await self._reach(place, is_known=is_known)
        _hide_ours(request)
        if port not in (FILES_PORT, CODE_PORT):
            if await in_thread(self._is_paused, place):
                await post(Path(path), f"{BELOW}{place.id}/{CONTROL}/wake")
            return self._ports.relay(request, path, place.id, port)
        return self._relay(request, place, path, port)

    async def _answer_signed(self, request: Request) -> Answer:
        """A signed URL of a server that is known by one name says nothing about the sandbox but by its signature."""
        query = read_query(request.query)
        if not is_signature(query.get("signature", "")):
            raise Refusal(401, "the URL names no sandbox, and has no signature")
        async with self._searching:
            place = await in_thread(self._find_signed, request, query)
        if place is None:
            raise Refusal(401, "the signature is wrong, or its time is over")
        return await self._in_turn(place, FILES_PORT, request)

    def _find_signed(self, request: Request, query: dict[str, str]) -> _Place | None:
        for record in self._directory.list():
            if self._is_signed(request, query, record.id, record.key):
                return next((place for place in self._find_places(record.id) if place.key == record.key), None)
        return None

    def _is_signed(self, request: Request, query: dict[str, str], id: str, key: str) -> bool:
        shown, expiry = query.get("signature", ""), query.get("signature_expiration")
        operation = "read" if request.method in ("GET", "HEAD") else "write"
        token = self._tokens.make(TokenKind.ACCESS, id, key)
        right = sign_file(query.get("path", ""), operation, query.get("username", ""), token, expiry)
        is_right = hmac.compare_digest(shown.encode("utf-8", "replace"), right.encode())
        return is_right and not is_expired(expiry, time.time())

    async def _admit(self, request: Request, port: int, id: str) -> tuple[_Place | None, bool]:
        """Return the sandbox of a request that may reach it, and whether it showed who it is; raises Refusal."""
        place = self._places.get(id)
        right = None if place is None else self._right(request, port, place)
        if place is not None and (right or (right is False and not place.is_shared)):
            return place, right
        self._places.pop(id, None)
        places = await in_thread(self._find_places, id)
        return self._choose(request, port, places) if places else (None, False)

    def _choose(self, request: Request, port: int, places: list[_Place]) -> tuple[_Place, bool]:
        """Return which of the sandboxes of one id a request may reach; raises Refusal, also where it could be two."""
        rights = [(place, right) for place in places if (right := self._right(request, port, place)) is not None]
        known = [(place, right) for place, right in rights if right]
        if known or len(rights) == 1:
            return (known or rights)[0]
        if rights:
            raise Refusal(403, "several sandboxes have this id: send the token of the one that you mean")
        if port in (FILES_PORT, CODE_PORT):
            raise Refusal(401, "the access token of the sandbox is missing or wrong")
        raise Refusal(403, "this sandbox has no public traffic: send E2B-Traffic-Access-Token")

    def _right(self, request: Request, port: int, place: _Place) -> bool | None:
        """Return whether a request shows a right; False where none is needed, None where one is missing."""
        if self._shows(request, _ACCESS_HEADER, TokenKind.ACCESS, place):
            return True
        if port != FILES_PORT and self._shows(request, _TRAFFIC_HEADER, TokenKind.TRAFFIC, place):
            return True
        if port == FILES_PORT and request.path == _SIGNED:
            return self._is_signed(request, read_query(request.query), place.id, place.key) or None
        is_open = request.path == "/health" if port in (FILES_PORT, CODE_PORT) else place.is_public
        return False if is_open else None

    def _shows(self, request: Request, header: bytes, kind: TokenKind, place: _Place) -> bool:
        shown = request.headers.get(header)
        return shown is not None and self._tokens.check(shown.decode("latin-1"), kind, place.id, place.key)

    def _find_places(self, id: str) -> list[_Place]:
        found = self._directory.find_all(id) if re.fullmatch(SANDBOX_ID, id) else []
        return [self._look(record, is_shared=len(found) > 1) for record in found]

    def _look(self, record: Record, *, is_shared: bool) -> _Place:
        chosen = read_record(self._directory.place(record.key))
        return _Place(record.id, record.tenant, record.key, str(self._directory.socket(record)), chosen, is_shared)

    async def _reach(self, place: _Place, *, is_known: bool) -> str:
        """Return the socket of its runtime; one that idleness stopped is started for who showed a right."""
        if self._places.get(place.id) is place:
            return place.socket
        return await self._find_again(place, may_start=is_known or place.wakes)

    async def _find_again(self, place: _Place, *, may_start: bool) -> str:
        self._places.pop(place.id, None)
        record = await in_thread(self._directory.of(place.tenant).find, place.id)
        if record is None or record.key != place.key:
            raise SandboxNotFound(f"there is no sandbox {place.id}", id=place.id)
        status = await in_thread(self._directory.status, record)
        if status is SandboxStatus.LOST or (status is SandboxStatus.STOPPED and not (record.wakes and may_start)):
            raise SandboxStopped(f"sandbox {place.id} does not run", id=place.id)
        if status is SandboxStatus.STOPPED:
            await self._starter.start(record)
        if len(self._places) >= _MOST_REMEMBERED:
            self._places.clear()
        self._places[place.id] = place
        return place.socket

    def _is_paused(self, place: _Place) -> bool:
        record = self._directory.read(place.key)
        return record is not None and record.status is SandboxStatus.PAUSED

    def _relay(self, request: Request, place: _Place, path: str, port: int) -> E2bRelay:
        headers = ((USER_HEADER, _user(request)),)
        request.may_be_silent = request.path == _STREAM_INPUT
        request.path = f"{BELOW}{place.id}/{port}{request.path}"
        find_again = partial(self._find_again, place, may_start=True)
        relay = E2bRelay(self._upstreams, path, headers=headers, find_again=find_again)
        relay.id = place.id
        return relay


def find_inside(request: Request) -> tuple[int, str] | None:
    """Return the port and the sandbox that a request is for the inside of; None for one that is not."""
    id = request.headers.get(_ID_HEADER)
    if id is not None:
        text = request.headers.get(_PORT_HEADER, b"%d" % FILES_PORT)
        port = int(text) if text.isdigit() and len(text) <= 5 else 0
        return (port if 0 < port <= HIGHEST_PORT else 0), id.decode("latin-1")
    return parse_host(request.headers.get(b"host", b"").decode("latin-1"))


def takes_token(request: Request) -> bool:
    """Return whether a request takes a token or a signature, which only its sandbox can tell, and no key."""
    return request.path == _SIGNED or find_inside(request) is not None


def _hide_ours(request: Request) -> None:
    request.raw_headers[:] = [header for header in request.raw_headers if header[0] not in _OURS]


def _user(request: Request) -> bytes:
    """Return the user that a request names; one that can be none is nobody's name."""
    scheme, _, encoded = request.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return b""
    try:
        name = base64.b64decode(encoded.strip(), validate=True).partition(b":")[0]
    except binascii.Error:
        return _NOBODY
    return name if not name or _USER.fullmatch(name) else _NOBODY


def describe_failure(id: str, error: CoveError | HttpError) -> Response:
    """Describe a failure on the way to a sandbox: one that is not there does not run."""
    if isinstance(error, SandboxNotFound | SandboxStopped | SandboxPaused):
        return not_running(id)
    if isinstance(error, SandboxUnavailable):
        return not_running(id, error.message)
    return Refusal.of(error).response()
