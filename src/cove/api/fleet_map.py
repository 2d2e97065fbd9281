"""Run one task for each of many items, in the sandboxes of a fleet.

A window bounds what is under way and what nobody has taken yet, so a slow consumer holds back the items, and memory
stays bounded. Whoever leaves early cancels what runs; the sandboxes of those tasks are thrown away.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING, Final, Generic, Protocol

import msgspec

from cove.api.fleet_pool import SandboxPool
from cove.errors import CoveError, SandboxUnavailable
from cove.model.fleet import Item, TaskResult, Value
from cove.tasks import Tasks

if TYPE_CHECKING:
    from cove.api.sandbox import AsyncSandbox

# What may wait for the consumer, for each sandbox.
_AHEAD: Final = 2
# When more than so many of the last results tell of failures of Cove or the machine, all end.
_LAST: Final = 50
_MOST_FAILED: Final = 10
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0


class AnyMap(Protocol):
    """A `map` of a fleet, whatever it works on."""

    def fail(self, error: BaseException) -> None:
        """End it: whoever takes results gets the error."""

    async def close(self) -> None:
        """End all tasks of it."""


class FleetMap(Generic[Item, Value]):
    """One `map` of a fleet. `failure` is what ends it: of the items, of a creation, or that the fleet was closed."""

    def __init__(
        self,
        pool: SandboxPool,
        task: "Callable[[AsyncSandbox, Item], Awaitable[Value]]",
        *,
        retries: int,
        ordered: bool,
        repeats: bool,
    ) -> None:
        self._pool = pool
        self._task = task
        self._retries = retries
        self._ordered = ordered
        self._repeats = repeats
        self._last: deque[bool] = deque(maxlen=_LAST)
        self._window = asyncio.Semaphore(_AHEAD * pool.size)
        self._done: dict[int, TaskResult[Item, Value]] = {}
        self._begun = 0
        self._taken = 0
        self._is_fed = False
        self._changed = asyncio.Event()
        self._tasks = Tasks(self.fail)
        self._failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """End it: whoever takes results gets the error."""
        self._failure = self._failure or error
        self._changed.set()

    async def close(self) -> None:
        """End all tasks of it."""
        await self._tasks.aclose()

    async def results(
        self, items: AsyncIterable[Item] | Iterable[Item]
    ) -> AsyncGenerator[TaskResult[Item, Value], None]:
        """Begin, and give the results. Leaving it ends what runs."""
        async with self._tasks:
            self._tasks.start(self._feed(items))
            while not (self._is_fed and self._taken == self._begun):
                if self._failure is not None:
                    raise self._failure
                if (result := self._next()) is None:
                    self._changed.clear()
                    await self._changed.wait()
                else:
                    self._taken += 1
                    self._window.release()
                    yield result

    def _next(self) -> TaskResult[Item, Value] | None:
        if self._ordered:
            return self._done.pop(self._taken, None)
        return self._done.pop(next(iter(self._done))) if self._done else None

    async def _feed(self, items: AsyncIterable[Item] | Iterable[Item]) -> None:
        if isinstance(items, AsyncIterable):
            async with _closing(items):
                async for item in items:
                    await self._begin(item)
        else:
            for item in items:
                await self._begin(item)
        self._is_fed = True
        self._changed.set()

    async def _begin(self, item: Item) -> None:
        await self._window.acquire()
        self._tasks.start(self._work(self._begun, item))
        self._begun += 1

    async def _work(self, index: int, item: Item) -> None:
        """Repeat what was not the task's fault; tell what became of it."""
        pause = _FIRST_PAUSE
        for attempt in range(1, self._retries + 2):
            found, has_begun = await self._attempt(index, item)
            result = msgspec.structs.replace(found, attempts=attempt)
            may_repeat = result.is_infrastructure_failure and (self._repeats or not has_begun)
            if not may_repeat or attempt > self._retries:
                break
            jitter = random.uniform(0.5, 1.5)  # noqa: S311  # so that not all come back at one moment
            await asyncio.sleep(pause * jitter)  # backoff: nothing tells that a machine is well again
            pause = min(pause * 2, _LONGEST_PAUSE)
        self._done[index] = result
        self._watch_failures(result)
        self._changed.set()

    def _watch_failures(self, result: TaskResult[Item, Value]) -> None:
        """End all when too many fail that are not to blame: what would come is not worth waiting for."""
        self._last.append(result.is_infrastructure_failure)
        failed = sum(self._last)
        if len(self._last) == _LAST and failed > _MOST_FAILED:
            self.fail(
                SandboxUnavailable(
                    f"{failed} of the last {_LAST} tasks failed for reasons of Cove or its machines, the last one of: "
                    f"{result.error or result.value}"
                )
            )

    async def _attempt(self, index: int, item: Item) -> tuple[TaskResult[Item, Value], bool]:
        """The result of one attempt, and whether the task had begun."""
        try:
            sandbox = await self._pool.acquire()
        except CoveError as error:
            if not error.is_infrastructure_failure:
                raise
            return TaskResult(index=index, item=item, error=error), False
        try:
            result = await self._run(sandbox, index, item)
        except BaseException:
            self._pool.throw_away(sandbox)
            raise
        if result.is_infrastructure_failure:
            self._pool.throw_away(sandbox)
        else:
            self._pool.give_back(sandbox)
        return result, True

    async def _run(self, sandbox: "AsyncSandbox", index: int, item: Item) -> TaskResult[Item, Value]:
        began = time.monotonic()
        value, failure = None, None
        try:
            value = await self._task(sandbox, item)
        except Exception as error:  # noqa: BLE001  # whatever a task fails of is its result
            failure = error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            failure = RuntimeError("the task cancelled itself")
        return TaskResult(index=index, item=item, value=value, error=failure, duration=time.monotonic() - began)


def _closing(items: AsyncIterable[Item]) -> AbstractAsyncContextManager[object]:
    return aclosing(items) if isinstance(items, AsyncGenerator) else nullcontext()


def _is_cancelled() -> bool:
    current = asyncio.current_task()
    return current is None or bool(current.cancelling())
