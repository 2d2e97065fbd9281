"""The gateway's half of the bridge protocol: authenticate, find or start the sandbox, relay."""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from functools import partial
from types import TracebackType
from typing import Final
from urllib.parse import unquote_plus

import msgspec

from cove.errors import CoveError, LimitExceeded, SandboxUnavailable
from cove.http import Answer, Handler, Headers, HttpError, Request, Response
from cove.local.threads import in_thread
from cove.server.bridge import pool
from cove.server.bridge.ids import UnusedIds
from cove.server.bridge.pool import BridgePool
from cove.server.bridge.protocol import (
    BELOW,
    MOST_BODY_BYTES,
    ROOT,
    Refusal,
    answer_json,
    check_id,
    decode_object,
    find_operation,
    invalid,
    read_query,
    refusal_of,
    split,
)
from cove.server.bridge.terminal import FAST_PATH_HEADER
from cove.server.configuration import Configuration
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.relay import SocketRelay
from cove.server.gateway.upstream import Upstreams
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.starter import ClaimedElsewhere, Starter
from cove.tasks import Beginning, begun
from cove.wire.operation import By, Caller

_MOST_REMEMBERED: Final = 10_000
_PREFIXES: Final = (BELOW, pool.BELOW)
_DOCUMENTS: Final = "/v1/openapi"
_POOL: Final = "pool"


class BridgeRelay(SocketRelay):
    """A relay whose failures are told in the words of the protocol."""

    __slots__ = ()

    def fail(self, error: CoveError | HttpError) -> None:
        self._exchange.respond(describe_failure(error).response())


class BridgeGateway:
    """Any valid id is a sandbox: the first use of one makes it, and one that was stopped or lost is started again."""

    def __init__(
        self,
        directory: Directory,
        starter: Starter,
        authenticator: Authenticator,
        configuration: Configuration | None = None,
    ) -> None:
        configuration = configuration or Configuration()
        self._configuration = configuration
        self._directory = directory
        self._starter = starter
        self._authenticator = authenticator
        self._unused = UnusedIds(directory)
        self._pool = BridgePool(directory, configuration)
        self._headers: Headers = () if configuration.bridge_fast_path else ((FAST_PATH_HEADER, b"off"),)
        self._upstreams = Upstreams()
        self._sockets: dict[str, str] = {}
        self._own: Mapping[str, Callable[[Request], Coroutine[object, object, Answer]]] = {
            "createSandbox": self._create,
            "deleteSandbox": self._destroy,
            "isRunning": self._is_running,
            "poolStats": self._pool.stats,
            "poolPrime": self._pool.prime,
            "poolShutdown": self._pool.shut_down,
        }

    async def __aenter__(self) -> "BridgeGateway":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._upstreams.aclose()

    def before(self, handler: Handler) -> Handler:
        """Answers the protocol's paths, with checks of its own, and leaves all others to that handler.

        The documents are common to both: whoever may not see them is told in the words of the protocol.
        """

        def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
            if _serves(request.path):
                return self(request)
            if request.path.startswith(_DOCUMENTS):
                try:
                    self._authenticate(request, Caller.READER)
                except Refusal as refusal:
                    return refusal.response()
            return handler(request)

        return handle

    def __call__(self, request: Request) -> Answer | Coroutine[object, object, Answer]:
        """Answer; the checks come in the order that the protocol has."""
        try:
            return self._answer(request)
        except Refusal as refusal:
            return refusal.response()

    def _answer(self, request: Request) -> Answer | Coroutine[object, object, Answer]:
        id = ""
        if request.path.startswith(BELOW):
            id, name, _ = split(request.path)
            check_id(id)
            if name == "pty":
                take_key_from_query(request)
        self._authenticate(request)
        operation, _ = find_operation(request.method, request.path)
        if self._directory.tenant and operation.name.startswith(_POOL):
            raise Refusal(403, "invalid_request", "the pool is the server's: only an admin's key may use it")
        if operation.by is By.GATEWAY:
            return self._finish(self._own[operation.name](request))
        path = self._sockets.get(id)
        return self._finish(self._find_and_relay(id)) if path is None else self._relay(id, path)

    def _authenticate(self, request: Request, caller: Caller = Caller.KEY_HOLDER) -> None:
        refused = self._authenticator.refuse(request, caller)
        if refused is not None:
            assert isinstance(refused.body, bytes)
            text = msgspec.json.decode(refused.body, type=dict[str, object])["error"]
            code = "unauthorized" if refused.status == 401 else "invalid_request"
            headers = [header for header in refused.headers if header[0] != b"content-type"]
            raise Refusal(refused.status, code, str(text), headers)

    @begun
    async def _finish(self, coming: Coroutine[object, object, Answer]) -> Answer:
        try:
            with closing(coming):
                await Beginning()
                return await coming
        except Refusal as refusal:
            return refusal.response()
        except ClaimedElsewhere:
            raise  # another node of the cluster answers
        except CoveError as error:
            return describe_failure(error).response()

    async def _create(self, request: Request) -> Response:
        """Only an id: nothing is started. `spec` names what the sandbox is to be, out of the server's configuration."""
        name = _read_spec_name(await request.read(MOST_BODY_BYTES))
        if name and name not in self._configuration.bridge_specs:
            raise invalid(f"this server has no spec {name}")
        return answer_json({"id": await in_thread(self._unused.make, name)})

    async def _is_running(self, request: Request) -> Response:
        id, _, _ = split(request.path)
        return answer_json({"running": await in_thread(self._exists, id)})

    def _exists(self, id: str) -> bool:
        return self._directory.find(id) is not None or self._unused.has(id)

    async def _destroy(self, request: Request) -> Response:
        id, _, _ = split(request.path)
        self._sockets.pop(id, None)
        await in_thread(self._unused.remove, id)
        await self._starter.destroy(id)
        return Response(204)

    def _relay(self, id: str, path: str) -> BridgeRelay:
        find_again = partial(self._find_again, id)
        return BridgeRelay(self._upstreams, path, headers=self._headers, find_again=find_again)

    async def _find_and_relay(self, id: str) -> Answer:
        return self._relay(id, await self._locate(id))

    async def _locate(self, id: str) -> str:
        """Find the socket that the sandbox's runtime listens on."""
        name = await in_thread(self._unused.spec_name, id)
        spec = self._configuration.bridge_specs.get(name, self._configuration.bridge_spec)
        record = await self._starter.create(id, spec, exist_ok=True, is_ours=True)
        await in_thread(self._unused.remove, id)
        if len(self._sockets) >= _MOST_REMEMBERED:
            self._sockets.clear()
        self._sockets[id] = path = str(self._directory.socket(record))
        return path

    async def _find_again(self, id: str) -> str:
        """Nothing listens where it was: it is gone, or just stopping, and whoever starts it waits for that."""
        self._sockets.pop(id, None)
        record = await in_thread(self._directory.find, id)
        if record is not None:
            await self._starter.start(record)
        return await self._locate(id)


def _read_spec_name(body: bytes) -> str:
    """Read the name of a spec; what is no JSON object asks for nothing in particular."""
    try:
        fields = decode_object(body) if body else {}
    except Refusal:
        return ""
    name = fields.get("spec", "")
    if not isinstance(name, str):
        raise invalid("spec must be a string")
    return name


def _serves(path: str) -> bool:
    return path.startswith(_PREFIXES) or path == ROOT


def take_key_from_query(request: Request) -> None:
    """Take a key out of the query: some clients cannot set headers for a WebSocket. It goes no further than here."""
    shown = read_query(request.query).get("authorization")
    fields = request.query.split("&")
    request.query = "&".join(field for field in fields if unquote_plus(field.partition("=")[0]) != "authorization")
    if shown and b"authorization" not in request.headers:
        request.headers[b"authorization"] = shown.encode("utf-8", "surrogateescape")


def describe_failure(error: CoveError | HttpError) -> Refusal:
    """A sandbox that cannot be had just now is the one failure that clients try again."""
    if isinstance(error, (LimitExceeded, SandboxUnavailable)):
        return Refusal(503, "capacity_exceeded", error.message)
    return refusal_of(error)
