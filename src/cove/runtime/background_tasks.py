"""A task group for objects: background tasks that belong to an object and end with it."""

import asyncio
from collections.abc import Callable, Coroutine


class BackgroundTasks:
    """Owns tasks; a task that fails reports to `on_failure`, `aclose` cancels and awaits the rest."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure
        self.closed = False

    def start(self, work: Coroutine[object, object, None], *, on_end: Callable[[], None] = lambda: None) -> None:
        """Run work until it ends or the owner closes; `on_end` is called however it ends, also before it began."""
        if self.closed:
            work.close()
            on_end()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        task.add_done_callback(lambda _: on_end())

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def aclose(self) -> None:
        """End every task; work started later is dropped."""
        self.closed = True
        while pending := [task for task in self._tasks if task is not asyncio.current_task()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)
