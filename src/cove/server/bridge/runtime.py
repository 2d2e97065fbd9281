"""The runtime's half of the bridge protocol: route requests, and map errors to its own words."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial

from cove.errors import CoveError
from cove.http import Answer, Handler, HttpError, Request
from cove.runtime.sandbox import Sandbox
from cove.server.bridge.exec import answer_exec
from cove.server.bridge.files import hydrate, persist, read_file, write_file
from cove.server.bridge.mount import mount, unmount
from cove.server.bridge.protocol import BELOW, Refusal, find_operation, not_found, refusal_of, split
from cove.server.bridge.session import BridgeSessions
from cove.server.bridge.terminal import open_terminal
from cove.server.bridge.tunnel import BridgeTunnels

Route = Callable[[Request, str], Coroutine[object, object, Answer]]


class Bridge:
    """Answers for one sandbox what the gateway has let pass."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        sessions = BridgeSessions(sandbox)
        tunnels = BridgeTunnels(sandbox)
        self._routes: Mapping[str, Route] = {
            "execCommand": lambda request, _: answer_exec(sandbox, sessions, request),
            "readFile": partial(read_file, sandbox),
            "writeFile": partial(write_file, sandbox),
            "persistWorkspace": lambda request, _: persist(sandbox, request),
            "hydrateWorkspace": lambda request, _: hydrate(sandbox, request),
            "ptyTerminal": lambda request, _: open_terminal(sandbox, sessions, request),
            "createSession": lambda request, _: sessions.create(request),
            "deleteSession": lambda _, session: sessions.delete(session),
            "mountBucket": lambda request, _: mount(sandbox, request),
            "unmountBucket": lambda request, _: unmount(sandbox, request),
            "createTunnel": tunnels.open,
            "deleteTunnel": lambda _, port: tunnels.close(port),
        }

    async def __call__(self, request: Request) -> Answer:
        """Answer, whatever goes wrong."""
        try:
            return await self._find(request)
        except Refusal as refusal:
            answer = refusal.response()
        except (HttpError, CoveError) as error:
            answer = refusal_of(error).response()
        await request.discard()
        return answer

    def _find(self, request: Request) -> Coroutine[object, object, Answer]:
        operation, argument = find_operation(request.method, request.path)
        route = self._routes.get(operation.name)
        if route is None or split(request.path)[0] != self._sandbox.id:
            raise not_found()
        return route(request, argument)


def with_bridge(sandbox: Sandbox, native: Handler) -> Handler:
    """The native API's handler, and the bridge's for its own paths."""
    bridge = Bridge(sandbox)

    def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
        return bridge(request) if request.path.startswith(BELOW) else native(request)

    return handle
