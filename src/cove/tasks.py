"""Structured concurrency: tasks that have an owner, and waits that a cancel does not tear apart.

asyncio starts tasks that belong to nobody, and a cancel goes through every await into whatever is waited for. Both
lose things: a task that nobody holds is collected while it runs, or outlives the object it works for; a result that
arrives together with a cancel is dropped; a clean-up is itself cancelled half-way. All tasks of Cove are therefore
started here, and a test forbids `create_task`, `ensure_future` and `shield` everywhere else. Who needs a task takes
the narrowest of these:

    Once      one piece of work that any number of callers ask for: deleting, closing, starting something shared
    Tasks     many pieces of work that belong to an object and end with it
    together  several pieces of work, until all of them have ended
    race      several pieces of work, until the first of them ends
    owned     one task that an object holds in a field, and ends by `end` or waits for before it is gone itself
    shared    a wait for a future that others wait for too
    settled   a wait for what must not be left alone: a thread that uses our descriptors, a clean-up
    begun     a coroutine around another one, which is closed however the task of both ends

What holds:

1. A task has exactly one owner, which holds a strong reference until the task is done.
2. Whoever waits can be cancelled; what is waited for cannot, but by its owner. A future is never awaited bare when it
   is not the waiter's own: `await future` cancels it.
3. A cancel is never swallowed. `settled`, `end` and `Tasks.aclose` raise it when their work is over, not before; a
   second or a third cancel changes nothing. Nested in `asyncio.timeout` they make it late, never lost: it counts
   cancels, and each is still raised.
4. What must be over is over: when `settled`, `end`, `together`, `race` and `aclose` are left, by whatever way, nothing
   of theirs runs. They last as long as their work does, so the work bounds itself, by a timeout or by being told
   (`on_cancel`).
5. A failure is heard: by whoever waits, or by `on_failure`. One that nobody waits for any more, because all waiters
   were cancelled, is dropped on purpose: they have been told that the call did not happen.

A coroutine that is cancelled before its first step never runs, not even its `finally`: what has to be released in any
case is released by `on_end`, by whoever made the coroutine, or by a coroutine that has `begun`.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

Work = Coroutine[object, object, T]


class Once(Generic[T]):
    """Work that is done once, whoever asks for it and however many do; cancelled callers do not end it."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: asyncio.Task[T] | None = None

    @property
    def is_started(self) -> bool:
        """Return whether anybody has asked for it."""
        return self._task is not None

    @property
    def is_done(self) -> bool:
        """Return whether it is over, well or not."""
        return self._task is not None and self._task.done()

    def start(self, work: Callable[[], Work[T]]) -> bool:
        """Start it, unless it was; returns whether it was this call that did."""
        if self._task is not None:
            return False
        self._task = owned(work())
        return True

    async def run(self, work: Callable[[], Work[T]]) -> T:
        """Start it, unless it was, and return its result."""
        self.start(work)
        return await self.result()

    def result(self) -> "asyncio.Future[T]":
        """Return a future of its result, which a cancelled caller leaves as it is."""
        assert self._task is not None, "not started"
        return shared(self._task)

    async def ended(self) -> None:
        """Wait until it is over, well or not; not at all when nobody has asked for it."""
        if self._task is not None:
            await asyncio.wait([self._task])


class Tasks:
    """Tasks that belong to an object and end with it. `on_failure` hears of those whose result nobody waits for."""

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._on_failure = on_failure
        self.closed = False

    async def __aenter__(self) -> "Tasks":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def start(self, work: Work[T], *, on_end: Callable[[], None] | None = None) -> "asyncio.Task[T]":
        """Run work until it ends or the owner closes; `on_end` is called however it ends, also before it began."""
        task = owned(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if on_end is not None:
            task.add_done_callback(lambda _: on_end())
        if self.closed:
            task.cancel()
        return task

    def _done(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if self._on_failure is not None and not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def aclose(self) -> None:
        """End every task; work started later does not run."""
        self.closed = True
        is_cancelled = False
        while pending := [task for task in self._tasks if task is not asyncio.current_task()]:
            for task in pending:
                task.cancel()
            is_cancelled |= await _until_done(pending)
        if is_cancelled:
            raise asyncio.CancelledError


def owned(work: Work[T]) -> "asyncio.Task[T]":
    """Start a task. The caller holds it, and ends or awaits it before it is gone itself."""
    return asyncio.get_running_loop().create_task(work)


async def end(task: "asyncio.Task[T]") -> None:
    """Cancel a task and wait until it is over; raises what it failed of."""
    task.cancel()
    is_cancelled = await _until_done([task])
    if not task.cancelled():
        task.result()
    if is_cancelled:
        raise asyncio.CancelledError


async def together(works: Iterable[Work[T]]) -> list[T]:
    """Run all side by side and return their results, in order; raises what the first of them failed of."""
    async with Tasks(lambda _: None) as tasks:
        started = [tasks.start(work) for work in works]
        if started:
            await asyncio.wait(started)
    return [task.result() for task in started]


async def race(*works: Work[object]) -> None:
    """Run all until the first of them ends, and end the others; raises what any of them failed of."""
    async with Tasks(lambda _: None) as tasks:
        started = [tasks.start(work) for work in works]
        await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
    for task in started:
        if not task.cancelled():
            task.result()


def shared(future: "asyncio.Future[T]") -> "asyncio.Future[T]":
    """Give a future to await in place of one that others wait for too: a cancelled caller cancels only this one."""
    given = asyncio.shield(future)
    if given is not future:
        given.add_done_callback(partial(_leave, future))
    return given


def _leave(future: "asyncio.Future[T]", given: "asyncio.Future[T]") -> None:
    """Take a later failure in the place of a caller who was cancelled: the loop complains of what nobody takes."""
    if given.cancelled() and not future.done():
        future.remove_done_callback(_take_failure)  # one is enough
        future.add_done_callback(_take_failure)


def _take_failure(future: "asyncio.Future[T]") -> None:
    if not future.cancelled():
        future.exception()


async def settled(
    work: "asyncio.Future[T] | Work[T]",
    *,
    on_cancel: Callable[[], object] | None = None,
    discard: Callable[[T], object] | None = None,
) -> T:
    """Return the result of what must not be left alone. A cancel is raised when it is over, however often it comes.

    `on_cancel` is called at the first cancel, to hasten the end; `discard` gets a result that nobody will take.
    """
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if on_cancel is not None and not future.done():
            on_cancel()
        await _until_done([future])
        if not future.cancelled() and future.exception() is None and discard is not None:
            discard(future.result())
        raise


class Beginning:
    """The place up to which a coroutine that is `begun` has run when it is made."""

    def __await__(self) -> Generator[None, None, None]:
        """Stand there until the coroutine is awaited, or started as a task."""
        yield


def begun(function: Callable[P, Work[T]]) -> Callable[P, Work[T]]:
    """Make a function whose coroutines have run to their `await Beginning()`, the first thing that they await.

    What they hold there is released also when they are cancelled before a first step, or never awaited.
    """

    @wraps(function)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Work[T]:
        return _Begun(function(*args, **kwargs))

    return begin


class _Begun(Coroutine[object, object, T]):
    """A coroutine that stands at its beginning: Python would not let anybody await it as it is."""

    __slots__ = ("_work",)

    def __init__(self, work: Work[T]) -> None:
        self._work = work
        work.send(None)

    def __await__(self) -> Generator[object, object, T]:
        return cast("Generator[object, object, T]", self)

    def __iter__(self) -> "_Begun[T]":
        return self

    def __next__(self) -> object:
        return self._work.send(None)

    def send(self, value: object) -> object:
        return self._work.send(value)

    def throw(self, *error: Any) -> object:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()


async def _until_done(futures: "Collection[asyncio.Future[T] | asyncio.Task[T]]") -> bool:
    """Wait for all of them, through any number of cancels; returns whether there was one, for the caller to raise.

    What was to be called when they are done has then been called, also where they were done before. A cancel at every
    step of the loop, as scopes of anyio send it, does not make this last longer than they do.
    """
    is_cancelled = False
    while True:
        were_done = all(future.done() for future in futures)
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError:
            is_cancelled = True
            if were_done:
                return True
        else:
            return is_cancelled
