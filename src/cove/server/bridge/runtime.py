"""The runtime's half of the bridge protocol: route requests, and map errors to its own words."""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial

from cove.errors import CoveError
from cove.http import Answer, Handler, HttpError, Request
from cove.runtime.sandbox import Sandbox
from cove.server.bridge.exec import answer_exec
from cove.server.bridge.files import hydrate, persist, read_file, write_file
from cove.server.bridge.mount import mount, unmount
from cove.server.bridge.protocol import BELOW, Refusal, not_found, refusal_of, split
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
        self._routes: Mapping[tuple[str, str], Route] = {
            ("POST", "exec"): lambda request, _: answer_exec(sandbox, sessions, request),
            ("GET", "file"): partial(read_file, sandbox),
            ("GET", "file/"): partial(read_file, sandbox),
            ("PUT", "file"): partial(write_file, sandbox),
            ("PUT", "file/"): partial(write_file, sandbox),
            ("POST", "persist"): lambda request, _: persist(sandbox, request),
            ("POST", "hydrate"): lambda request, _: hydrate(sandbox, request),
            ("GET", "pty"): lambda request, _: open_terminal(sandbox, sessions, request),
            ("POST", "session"): lambda request, _: sessions.create(request),
            ("DELETE", "session/"): lambda _, session: sessions.delete(session),
            ("POST", "mount"): lambda request, _: mount(request),
            ("POST", "unmount"): lambda request, _: unmount(request),
            ("POST", "tunnel/"): tunnels.open,
            ("DELETE", "tunnel/"): lambda _, port: tunnels.close(port),
        }

    async def __call__(self, request: Request) -> Answer:
        """Answer, whatever goes wrong."""
        try:
            return await self._find(request)
        except Refusal as refusal:
            answer = refusal.response()
        except (HttpError, CoveError) as error:
            answer = refusal_of(error).response()
        await _hear_out(request)
        return answer

    def _find(self, request: Request) -> Coroutine[object, object, Answer]:
        id, name, argument = split(request.path)
        route = self._routes.get((request.method, name))
        if route is None or id != self._sandbox.id:
            raise not_found()
        return route(request, argument)


async def _hear_out(request: Request) -> None:
    """A client that is still sending its body may not see that it is refused."""
    with suppress(HttpError):  # the rest does not come
        async for _ in request.chunks():
            pass


def with_bridge(sandbox: Sandbox, native: Handler) -> Handler:
    """The native API's handler, and the bridge's for its own paths."""
    bridge = Bridge(sandbox)

    def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
        return bridge(request) if request.path.startswith(BELOW) else native(request)

    return handle
