"""Route requests: answer those of the gateway, relay the others to the runtime of their sandbox."""

from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final

from cove.errors import NotFound, SandboxUnavailable, ValidationFailed
from cove.http import Answer, Request
from cove.model import SandboxStatus
from cove.runtime.life import refusal
from cove.server.dispatch import RESPONDERS, Call, Route, Routes, read_arguments
from cove.server.gateway.answers import SandboxAnswers, ServerAnswers
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.documents import Documents
from cove.server.gateway.relay import SocketRelay
from cove.server.gateway.thing_answers import ImageAnswers, SnapshotAnswers, VolumeAnswers
from cove.server.gateway.upstream import Upstreams
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.starter import Starter, Things
from cove.wire.coding import decode_json, unquote_text
from cove.wire.operation import SANDBOXES, By, Caller, Form
from cove.wire.operations import DESTROYED_JOURNAL, OPERATIONS, RESTART, RESTORE, START
from cove.wire.requests import Restore
from cove.wire.target import Target

_BELOW: Final = f"{SANDBOXES}/"
_MOST_REMEMBERED: Final = 10_000
_MOST_BODY_BYTES: Final = 1 << 20
# Most requests are relayed without a look at the table. Where the gateway answers a verb or asks for another right, it
# knows all verbs of that path: what a path takes is said by one.
_KNOWN: Final = {row.paths for row in OPERATIONS if row.by is not By.RUNTIME or row.caller is not Caller.KEY_HOLDER}
_RESTORE: Final = RESTORE.paths[0].rpartition("/")[2]
_STARTS: Final = (RESTART, START)
_ROUTES: Final = Routes(row for row in OPERATIONS if row.paths in _KNOWN)


class Gateway:
    """The handler of a worker; holds no state but connections and where sockets were found."""

    def __init__(
        self, directory: Directory, starter: Starter, authenticator: Authenticator, documents: Documents
    ) -> None:
        self._directory = directory
        self._starter = starter
        self._authenticator = authenticator
        self._server = ServerAnswers(directory, starter, documents)
        self._upstreams = Upstreams()
        self._sockets: dict[str, str] = {}

    async def __aenter__(self) -> "Gateway":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._upstreams.aclose()

    def __call__(self, request: Request) -> Answer | Coroutine[object, object, Answer]:
        """Answer. What only has to be passed on costs no task."""
        node, ids = _ROUTES.match(request.path)
        caller = Caller.KEY_HOLDER if node is None else node.caller(request)
        if (refusal := self._authenticator.refuse(request, caller)) is not None:
            return refusal
        if node is not None and (route := node.choose(request)).operation.by is not By.RUNTIME:
            return self._answer(route, ids, request)
        if not request.path.startswith(_BELOW):
            raise NotFound(f"there is nothing at {request.path}")
        id, _, rest = request.path[len(_BELOW) :].partition("/")
        if rest == _RESTORE and request.method == "POST" and self._starter.things is not None:
            return self._provide_and_relay(id, request, self._starter.things)
        path = self._sockets.get(id)
        return self._find_and_relay(id) if path is None else self._relay(id, path)

    async def _answer(self, route: Route, ids: list[str], request: Request) -> Answer:
        owner: ServerAnswers | SandboxAnswers | VolumeAnswers | SnapshotAnswers | ImageAnswers = self._server
        if route.operation.target is Target.VOLUME:
            owner = self._server.volume(unquote_text(ids[0]))
        elif route.operation.target is Target.SNAPSHOT:
            owner = SnapshotAnswers(self._server.layers, unquote_text(ids[0]))
        elif route.operation.target is Target.IMAGE:
            owner = self._server.image(unquote_text(ids[0]))
        elif route.operation.target is not Target.SERVER:
            owner = sandbox = self._sandbox(ids[0])
            if route.operation.by is By.RUNNING:
                record, info = await sandbox.find()
                if info.status in (SandboxStatus.RUNNING, SandboxStatus.PAUSED):
                    locate = partial(self._locate, sandbox.id, starts=route.operation in _STARTS)
                    return SocketRelay(self._upstreams, str(self._directory.socket(record)), find_again=locate)
            elif route.operation.form is Form.EVENTS:
                await sandbox.find()  # when the first event is on its way, its status has been told
        elif route.operation is DESTROYED_JOURNAL:
            await self._server.check_journal(unquote_text(ids[0]))
        arguments = await read_arguments(route, ids, request, _MOST_BODY_BYTES)
        return await RESPONDERS[route.operation.form](Call(route, owner, arguments, request))

    def _sandbox(self, id: str) -> SandboxAnswers:
        return SandboxAnswers(self._directory, self._starter, id)

    def _relay(self, id: str, path: str) -> SocketRelay:
        return SocketRelay(self._upstreams, path, find_again=partial(self._locate, id))

    async def _provide_and_relay(self, id: str, request: Request, things: Things) -> Answer:
        """Have the snapshot that a sandbox is to go back to, whichever node of the cluster has it."""
        body = await request.read(_MOST_BODY_BYTES)
        request.unread(body)
        with suppress(ValidationFailed):  # the runtime says what is wrong
            await things.provide_snapshot(self._directory, decode_json(body, Restore).snapshot)
        return await self._find_and_relay(id)

    async def _find_and_relay(self, id: str) -> Answer:
        return self._relay(id, await self._locate(id))

    async def _locate(self, id: str, *, starts: bool = False) -> str:
        """Find the socket that the sandbox's runtime listens on; start one that idleness stopped.

        A call that `starts` sandboxes starts one in any case: its runtime has ended while it was asked.
        """
        self._sockets.pop(id, None)
        record, info = await self._sandbox(id).find()
        if info.status is SandboxStatus.STOPPED and not record.wakes and not starts:
            raise refusal(id, info.status)
        if info.status is SandboxStatus.STOPPED or (info.status is SandboxStatus.LOST and starts):
            record = await self._starter.start(record)
        elif info.status is SandboxStatus.LOST:
            raise SandboxUnavailable(
                f"sandbox {id} has lost its runtime and all that ran in it; its files are kept: "
                f"`sandbox.restart()`, `cove restart {id}` or POST {_BELOW}{id}/restart starts it again",
                id=id,
                status=info.status,
            )
        if len(self._sockets) >= _MOST_REMEMBERED:
            self._sockets.clear()
        self._sockets[id] = path = str(self._directory.socket(record))
        return path
