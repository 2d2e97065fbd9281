"""Count the requests to a runtime as activity of its sandbox, each until its response is complete."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, closing
from functools import partial

from cove.http import Answer, Body, Handler, Relay, Request, Response, Stream, Upgrade
from cove.runtime.activity import Activity
from cove.tasks import Beginning, begun

_INFO_SLASHES = "/v1/sandboxes/id".count("/")


def count(activity: Activity, handler: Handler) -> Handler:
    """Return the handler, with each request counted until its response is complete."""
    counting = _Counting(activity)

    def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
        if _only_looks(request):
            return handler(request)
        answer = handler(request)
        activity.touch()
        return counting.wrap(answer) if isinstance(answer, (Response, Relay, Upgrade)) else counting.wait_for(answer)

    return handle


class _Counting:
    def __init__(self, activity: Activity) -> None:
        self._activity = activity

    @begun
    async def wait_for(self, coming: Coroutine[object, object, Answer]) -> Answer:
        with self._activity.busy(), closing(coming):
            await Beginning()
            return self.wrap(await coming)

    def wrap(self, answer: Answer) -> Answer:
        if isinstance(answer, Upgrade):
            run = partial(self._run, answer.run)
            return Upgrade(answer.headers, run, release=answer.release, outlives_eof=answer.outlives_eof)
        if isinstance(answer, Response) and not isinstance(answer.body, bytes):
            return Response(answer.status, answer.headers, self._stream(answer.body), answer.ping)
        return answer

    async def _run(self, run: Callable[[Stream], Awaitable[None]], stream: Stream) -> None:
        with self._activity.busy():
            await run(stream)

    async def _stream(self, body: Body) -> Body:
        with self._activity.busy():
            async with aclosing(body):
                async for data in body:
                    yield data


def _only_looks(request: Request) -> bool:
    """The sandbox's own address, read: `info`; or its journal. All else is below it."""
    path = request.path.rstrip("/")
    is_journal = path.endswith("/journal") and path.count("/") == _INFO_SLASHES + 1
    return request.method in ("GET", "HEAD") and (path.count("/") <= _INFO_SLASHES or is_journal)
