"""The idle timeout: count calls in flight, open streams and running processes."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial

from cove.api import Process
from cove.http import Answer, Body, Handler, Relay, Request, Response, Stream, Upgrade
from cove.tasks import together

_INFO_SLASHES = "/v1/sandboxes/id".count("/")


class Activity:
    """Counts the calls; `until_idle` returns when nothing has been going on for the whole time."""

    def __init__(self, running: Callable[[], Sequence[Process]]) -> None:
        self._running = running
        self._calls = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A call is being answered."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    def _begin(self) -> None:
        self._calls += 1
        self._quiet.clear()

    def _end(self) -> None:
        self._calls -= 1
        self.touch()
        if self._calls == 0:
            self._quiet.set()

    @property
    def is_quiet(self) -> bool:
        """Return whether no call is being answered and no process runs."""
        return self._calls == 0 and not self._running()

    async def until_idle(self, seconds: float | None) -> None:
        """Wait until that long nothing has been going on; None is for ever. Nothing is, when it returns."""
        if seconds is None:
            await asyncio.get_running_loop().create_future()
            return
        while True:
            await self._quiet.wait()
            if running := self._running():
                await together(process.wait() for process in running)
                self.touch()
                continue
            left = self._last + seconds - self._loop.time()
            if left <= 0:
                return
            await asyncio.sleep(left)  # the earliest moment that it can be; activity moves it, and it is looked again

    def touch(self) -> None:
        """Note activity: it is not idle from here on."""
        self._last = self._loop.time()

    def count(self, handler: Handler) -> Handler:
        """Return the handler, with each request counted until its response is complete."""

        def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
            if _only_looks(request):
                return handler(request)
            answer = handler(request)
            self.touch()
            return self._wrap(answer) if isinstance(answer, (Response, Relay, Upgrade)) else self._wait_for(answer)

        return handle

    async def _wait_for(self, coming: Coroutine[object, object, Answer]) -> Answer:
        self._begin()
        try:
            return self._wrap(await coming)
        finally:
            self._end()

    def _wrap(self, answer: Answer) -> Answer:
        if isinstance(answer, Upgrade):
            run = partial(self._run, answer.run)
            return Upgrade(answer.headers, run, release=answer.release, outlives_eof=answer.outlives_eof)
        if isinstance(answer, Response) and not isinstance(answer.body, bytes):
            return Response(answer.status, answer.headers, self._stream(answer.body), answer.ping)
        return answer

    async def _run(self, run: Callable[[Stream], Awaitable[None]], stream: Stream) -> None:
        with self.busy():
            await run(stream)

    async def _stream(self, body: Body) -> Body:
        with self.busy():
            async with aclosing(body):
                async for data in body:
                    yield data


def _only_looks(request: Request) -> bool:
    """The sandbox's own address, read: `info`. All else is below it."""
    return request.method in ("GET", "HEAD") and request.path.rstrip("/").count("/") <= _INFO_SLASHES
