"""The gateway's half of `/mcp`: authenticate, make a sandbox for a new session or find that of an old one, relay.

A worker keeps no state: the id of a session begins with the id of its sandbox, whose runtime has the session.
"""

from collections.abc import Coroutine
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import Final

import msgspec

from cove.errors import MethodNotAllowed, NotFound, SandboxNotFound
from cove.http import Answer, Handler, Request, Response
from cove.local.threads import in_thread
from cove.model import SandboxStatus
from cove.server.configuration import Configuration
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.relay import SocketRelay
from cove.server.gateway.upstream import Upstreams
from cove.server.mcp.protocol import BELOW, IDLE_LABEL, PATH, SESSION_HEADER, serves
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.starter import Starter

_VERSION_HEADER: Final = b"mcp-protocol-version"
# Versions that begin with `initialize` and have sessions; those after them have none.
_WITH_SESSIONS: Final = ("2025-03-26", "2025-06-18", "2025-11-25")
_JSON: Final = ((b"content-type", b"application/json"),)
_INVALID_REQUEST: Final = -32600
_INTERNAL_ERROR: Final = -32603
_UNSUPPORTED_VERSION: Final = -32022
_MOST_SECONDS: Final = 86400.0


class McpGateway:
    """Answers what begins with `/mcp`."""

    def __init__(
        self, directory: Directory, starter: Starter, authenticator: Authenticator, configuration: Configuration
    ) -> None:
        self._directory = directory
        self._starter = starter
        self._authenticator = authenticator
        self._idle_seconds = configuration.mcp_idle_timeout
        self._spec = msgspec.structs.replace(
            configuration.mcp_spec,
            lifetime=configuration.mcp_spec.lifetime or _MOST_SECONDS,
            keep_alive=True,
            labels={**configuration.mcp_spec.labels, IDLE_LABEL: f"{self._idle_seconds:g}"},
        )
        self._upstreams = Upstreams()

    async def __aenter__(self) -> "McpGateway":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._upstreams.aclose()

    def before(self, handler: Handler) -> Handler:
        """Answer the protocol's paths, and leave all others to that handler."""

        def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
            if not serves(request.path):
                return handler(request)
            refusal = self._authenticator.refuse(request)
            return self._answer(request) if refusal is None else refusal

        return handle

    async def _answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "POST", "DELETE"):
            raise MethodNotAllowed("an MCP endpoint takes GET, POST and DELETE", allowed=["GET", "POST", "DELETE"])
        if await in_thread(find_spec, "mcp") is None:
            return _refuse(
                501, _INTERNAL_ERROR, "the server needs one package more for /mcp: `pip install 'cove[mcp]'`"
            )
        if request.path.startswith(BELOW):
            return await self._named(request.path.removeprefix(BELOW))
        session = request.headers.get(SESSION_HEADER)
        return await (self._new(request) if session is None else self._known(session))

    async def _named(self, id: str) -> Answer:
        """A sandbox that is there; what a client does in it stays."""
        record = await in_thread(self._directory.find, id)
        if record is None:
            raise SandboxNotFound(f"there is no sandbox {id}: make it first, or use {PATH} for one of your own")
        return self._relay(await self._starter.create(id, record.spec, exist_ok=True))

    async def _new(self, request: Request) -> Answer:
        """Make a sandbox for a session. Its runtime ends it again when the request begins none."""
        version = request.headers.get(_VERSION_HEADER, b"").decode("latin-1")
        if version and version not in _WITH_SESSIONS:
            message = f"this endpoint has sessions: begin with initialize, or name a sandbox by {BELOW}ID"
            return _refuse(400, _UNSUPPORTED_VERSION, message, {"supported": _WITH_SESSIONS, "requested": version})
        if request.method != "POST":
            return _refuse(400, _INVALID_REQUEST, "no session is named: begin with initialize")
        return self._relay(await self._starter.create(None, self._spec, is_ours=True))

    async def _known(self, session: bytes) -> Answer:
        id = session.partition(b".")[0].decode("latin-1")
        try:
            record = await in_thread(self._find, id)
        except NotFound:
            return _refuse(404, _INVALID_REQUEST, "the session is over: begin with initialize")
        return self._relay(record)

    def _find(self, id: str) -> Record:
        record = self._directory.find(id)
        if record is None or IDLE_LABEL not in record.spec.labels:
            raise SandboxNotFound("it belongs to no session", id=id)
        if self._directory.status(record) not in (SandboxStatus.RUNNING, SandboxStatus.PAUSED):
            raise SandboxNotFound("it has lost its session", id=id)
        return record

    def _relay(self, record: Record) -> SocketRelay:
        socket = str(self._directory.socket(record))
        return SocketRelay(self._upstreams, socket, find_again=partial(self._find_again, record.id))

    async def _find_again(self, id: str) -> str:
        """Nothing listens there: it is stopping, and a session in it is over."""
        record = await in_thread(self._directory.find, id)
        if record is None or IDLE_LABEL in record.spec.labels:
            raise SandboxNotFound("the session is over: begin with initialize", id=id)
        return str(self._directory.socket(await self._starter.start(record)))


def _refuse(status: int, code: int, message: str, data: object = None) -> Response:
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return Response(status, _JSON, msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error}))
