"""Route requests: answer those of the gateway, relay the others to the runtime of their sandbox."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType

from cove.core.identifier import check_sandbox_id
from cove.errors import MethodNotAllowed, NotFound, SandboxNotFound, SandboxUnavailable
from cove.http import Answer, Handler, Request, Response
from cove.local.threads import in_thread
from cove.model import SandboxInfo, SandboxStatus
from cove.model.spec import check_spec
from cove.server.error_response import allowed_methods
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.metrics import collect_metrics
from cove.server.gateway.relay import SocketRelay
from cove.server.gateway.upstream import Upstreams
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.starter import Starter
from cove.wire.coding import decode_json, encode_json
from cove.wire.operations import OPERATIONS, ROOT, SANDBOXES, Target
from cove.wire.requests import CreateSandbox

_BELOW = f"{SANDBOXES}/"
_JSON = ((b"content-type", b"application/json"),)
_TEXT = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
_MOST_SPEC_BYTES = 1 << 20
_MOST_REMEMBERED = 10_000

Own = Callable[[Request, str], Coroutine[object, object, Answer]]


class Gateway:
    """The handler of a worker; holds no state but connections and where sockets were found.

    `mounted` answers what begins with one of its prefixes, after the same checks.
    """

    def __init__(
        self,
        directory: Directory,
        starter: Starter,
        authenticator: Authenticator,
        *,
        mounted: Mapping[str, Handler] | None = None,
    ) -> None:
        self._directory = directory
        self._starter = starter
        self._authenticator = authenticator
        self._mounted = mounted or {}
        self._upstreams = Upstreams()
        self._sockets: dict[str, str] = {}
        self._collection = self._methods(SANDBOXES)
        self._member = {
            path.removeprefix(f"{ROOT}/"): self._methods(path)
            for path in {row.path for row in OPERATIONS if row.target is Target.GATEWAY} - {SANDBOXES, ROOT}
        }
        self._member[""] = self._methods(ROOT)

    async def __aenter__(self) -> "Gateway":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._upstreams.aclose()

    def __call__(self, request: Request) -> Answer | Coroutine[object, object, Answer]:
        """Answer. What only has to be passed on costs no task."""
        path = request.path
        if path == "/health":
            return _choose({"GET": self._health}, request)(request, "")
        if (refusal := self._authenticator.refuse(request)) is not None:
            return refusal
        if path.startswith(_BELOW):
            return self._route(request, *path[len(_BELOW) :].split("/", 1))
        if path == SANDBOXES:
            return _choose(self._collection, request)(request, "")
        if path == "/metrics":
            return _choose({"GET": self._metrics}, request)(request, "")
        for prefix, handler in self._mounted.items():
            if path.startswith(prefix):
                return handler(request)
        raise NotFound(f"there is nothing at {path}")

    def _route(self, request: Request, id: str, rest: str = "") -> Answer | Coroutine[object, object, Answer]:
        if (own := self._member.get(rest)) is not None:
            return _choose(own, request)(request, id)
        path = self._sockets.get(id)
        return self._find_and_relay(id) if path is None else self._relay(id, path)

    def _methods(self, path: str) -> dict[str, Own]:
        """By verb, what answers the gateway's own operations at that path of the table."""
        rows = [row for row in OPERATIONS if row.target is Target.GATEWAY and row.path == path]
        return {row.verb: getattr(self, f"_{row.method}") for row in rows}

    def _relay(self, id: str, path: str) -> SocketRelay:
        return SocketRelay(self._upstreams, path, find_again=partial(self._locate, id))

    async def _find_and_relay(self, id: str) -> Answer:
        return self._relay(id, await self._locate(id))

    async def _locate(self, id: str) -> str:
        """Find the socket that the sandbox's runtime listens on; start one that is stopped."""
        self._sockets.pop(id, None)
        record, info = await self._find(id)
        if info.status is SandboxStatus.STOPPED:
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

    async def _find(self, id: str) -> tuple[Record, SandboxInfo]:
        found = await in_thread(self._look, check_sandbox_id(id))
        if found is None:
            raise SandboxNotFound(f"there is no sandbox {id}", id=id)
        return found

    def _look(self, id: str) -> tuple[Record, SandboxInfo] | None:
        record = self._directory.find(id)
        return None if record is None else (record, self._directory.info(record))

    async def _create(self, request: Request, _: str) -> Answer:
        wanted = decode_json(await request.read(_MOST_SPEC_BYTES) or b"{}", CreateSandbox)
        check_spec(wanted.spec)
        record = await self._starter.create(wanted.id, wanted.spec, exist_ok=wanted.exist_ok)
        # Nothing is awaited from here on: whoever were cancelled would leave a sandbox that nobody has heard of.
        return Response(201, _JSON, encode_json(record.info(record.status)))

    async def _list(self, request: Request, _: str) -> Answer:
        return Response(200, _JSON, encode_json(await in_thread(self._list_all)))

    def _list_all(self) -> list[SandboxInfo]:
        return [self._directory.info(record) for record in self._directory.list()]

    async def _info(self, request: Request, id: str) -> Answer:
        _, info = await self._find(id)
        return Response(200, _JSON, encode_json(info))

    async def _destroy(self, request: Request, id: str) -> Answer:
        self._sockets.pop(id, None)
        await self._starter.destroy(check_sandbox_id(id))
        return Response(204)

    async def _restart(self, request: Request, id: str) -> Answer:
        """A runtime that lives restarts its sandbox itself."""
        record, info = await self._find(id)
        if info.status is SandboxStatus.RUNNING:
            return self._relay(id, str(self._directory.socket(record)))
        await self._starter.start(record)
        return Response(204)

    async def _health(self, request: Request, _: str) -> Answer:
        """Answer the health check: this worker serves."""
        return Response(200, _JSON, b'{"ok":true}')

    async def _metrics(self, request: Request, _: str) -> Answer:
        hierarchies = await self._starter.hierarchies()
        return Response(200, _TEXT, await in_thread(collect_metrics, self._directory, hierarchies))


def _choose(methods: Mapping[str, Own], request: Request) -> Own:
    chosen = methods.get("GET" if request.method == "HEAD" else request.method)
    if chosen is None:
        allowed = allowed_methods(methods)
        raise MethodNotAllowed(f"{request.path} takes {', '.join(allowed)}, not {request.method}", allowed=allowed)
    return chosen
