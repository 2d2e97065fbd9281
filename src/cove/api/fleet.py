"""A fleet: many sandboxes that work through many tasks."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sized
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

from cove.api.fleet_map import AnyMap, FleetMap
from cove.api.fleet_pool import SandboxPool
from cove.api.fleet_progress import shown_progress
from cove.api.provider import provider_for
from cove.api.sandbox import AsyncSandbox
from cove.errors import ValidationFailed
from cove.model import Isolation, Network, SandboxSpec, SpecFields, TaskResult, make_spec
from cove.model.fleet import Item, Value
from cove.tasks import settled, together

_MOST = 10_000


class AsyncFleet:
    """Sandboxes that work through many tasks; opened and closed by `with`.

    There are as many as the machine or the server allows, `size` at most. In your program that is 16 for each core,
    as far as the memory that is free lasts: `limits.memory` for each, or 128 MiB. A server that is full is asked for
    more later. A sandbox that has done a task is used again after a `reset` that is proven, or thrown away; with
    `reuse=False`, or with a `startup`, each has one task. `progress` shows a bar on standard error; None: where that
    is a terminal. All other arguments are those of `AsyncSandbox.create`.
    """

    def __init__(
        self,
        size: int = 64,
        *,
        spec: SandboxSpec | None = None,
        url: str | None = None,
        api_key: str | None = None,
        reuse: bool = True,
        progress: bool | None = None,
        **spec_fields: Unpack[SpecFields],
    ) -> None:
        if not isinstance(size, int) or not 0 < size <= _MOST:
            raise ValidationFailed(f"size must be from 1 to {_MOST}, not {size!r}")
        self._size = size
        self._spec = make_spec(spec, spec_fields)
        self._where = (url, api_key)
        self._reuse = reuse and not self._spec.startup
        self._progress = progress
        self._pool: SandboxPool | None = None
        self._maps: set[AnyMap] = set()

    async def open(self) -> None:
        """Make the first sandbox: what cannot be created is told here."""
        if self._pool is not None:
            raise ValidationFailed("this fleet was opened before: make another")
        provider = provider_for(*self._where)
        room = await provider.count_room(self._spec)
        size = self._size if room is None else min(self._size, room)
        self._pool = SandboxPool(size, lambda: provider.create(None, self._spec), reuse=self._reuse)
        try:
            await self._pool.open()
        except BaseException:
            await self._pool.close()
            raise

    async def close(self) -> None:
        """End all tasks and destroy all sandboxes. Idempotent."""
        await settled(self._close())

    async def _close(self) -> None:
        maps = list(self._maps)
        for each in maps:
            each.fail(ValidationFailed("the fleet was closed while it worked"))
        await together(each.close() for each in maps)
        if self._pool is not None:
            await self._pool.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def map(
        self,
        task: Callable[[AsyncSandbox, Item], Awaitable[Value]],
        items: AsyncIterable[Item] | Iterable[Item],
        *,
        retries: int = 2,
        ordered: bool = False,
        idempotent: bool | None = None,
    ) -> AsyncGenerator[TaskResult[Item, Value], None]:
        """Run the task for each item, in a sandbox that is as it was created; gives results as they come.

        What a task raises is the `error` of its result. Where Cove or the machine failed, the task begins again, up to
        `retries` times, in another sandbox: always if it had not begun, otherwise if it is `idempotent`. None: what it
        did ended with its sandbox, unless it had the host's network or files, or a mount that can be written. More
        than a fifth of the last 50 results that tell of such failures (`is_infrastructure_failure`) end the whole. With
        `ordered` results come in the order of the items. Leaving it early ends the tasks that run.
        """
        if not isinstance(retries, int) or retries < 0:
            raise ValidationFailed(f"retries must be a number, 0 or more, not {retries!r}")
        repeats = ends_with_its_sandbox(self._spec) if idempotent is None else idempotent
        return self._results(
            items, lambda pool: FleetMap(pool, task, retries=retries, ordered=ordered, repeats=repeats)
        )

    async def _results(
        self,
        items: AsyncIterable[Item] | Iterable[Item],
        make: Callable[[SandboxPool], FleetMap[Item, Value]],
    ) -> AsyncGenerator[TaskResult[Item, Value], None]:
        if self._pool is None:
            raise ValidationFailed("open the fleet first: `async with AsyncFleet(...) as fleet`")
        work = make(self._pool)
        self._maps.add(work)
        total = len(items) if isinstance(items, Sized) else None
        try:
            async with (
                shown_progress(total, is_wanted=self._progress) as show,
                aclosing(work.results(items)) as results,
            ):
                async for result in results:
                    show(result.error is None, result.is_infrastructure_failure, self._pool.made)
                    yield result
        finally:
            self._maps.discard(work)


def ends_with_its_sandbox(spec: SandboxSpec) -> bool:
    """Return whether nothing that a task does on the machine is left when its sandbox is thrown away."""
    is_on_host = spec.isolation is Isolation.NONE or spec.network is Network.HOST
    return not is_on_host and all(mount.read_only for mount in spec.mounts)
