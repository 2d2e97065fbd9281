"""Tasks with owners: every wait is cancelled at every step, once and twice."""

import ast
import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cove
from cove.tasks import Beginning, Once, Tasks, begun, end, owned, race, settled, shared, together

pytestmark = pytest.mark.pure

STEPS = 8
FORBIDDEN = {"create_task", "ensure_future", "gather", "shield"}
DEMO = "cli/demo.py"  # shows what a caller writes
TASK_GROUP = "group.create_task"


class Work:
    """Takes some steps of the loop, and as many again to clean up when it is cancelled; remembers how it went."""

    def __init__(self, steps: int = 3, *, failure: Exception | None = None) -> None:
        self.steps = steps
        self.failure = failure
        self.begun = 0
        self.is_over = True

    async def run(self) -> str:
        self.begun += 1
        self.is_over = False
        try:
            await self._pass()
        except asyncio.CancelledError:
            await self._pass()
            raise
        finally:
            self.is_over = True
        if self.failure is not None:
            raise self.failure
        return "done"

    async def _pass(self) -> None:
        for _ in range(self.steps):
            await asyncio.sleep(0)


async def cancelled_at(
    steps: list[int], wait: Callable[[], Coroutine[object, object, object]]
) -> "asyncio.Task[object]":
    """Run a wait and cancel it after each of these numbers of steps; returns when it is over."""
    task = asyncio.create_task(wait())
    for step in steps:
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    return task


def run(scenario: Awaitable[None]) -> None:
    """In a loop that must not have to complain of anything."""

    async def main() -> None:
        complaints: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await scenario
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not complaints

    asyncio.run(main())


cancels = st.lists(st.integers(0, STEPS), min_size=0, max_size=3)
failures = st.sampled_from([None, ValueError("broken")])


@given(cancels, failures)
def test_what_is_settled_is_over_when_the_wait_is_and_no_cancel_is_lost(
    steps: list[int], failure: Exception | None
) -> None:
    async def scenario() -> None:
        work = Work(failure=failure)
        told: list[bool] = []

        async def wait() -> object:
            try:
                return await settled(work.run(), on_cancel=lambda: told.append(work.is_over))
            finally:
                assert work.is_over

        task = await cancelled_at(steps, wait)
        if task.cancelled():
            assert steps
            assert told in ([], [False], [True])
        elif failure is not None:
            assert task.exception() is failure
        else:
            assert task.result() == "done"
        if steps and steps[0] < 2 and work.begun:
            assert task.cancelled()
            assert len(told) == 1

    run(scenario())


@given(cancels, failures)
def test_what_was_made_is_taken_or_discarded_never_both_and_never_neither(
    steps: list[int], failure: Exception | None
) -> None:
    async def scenario() -> None:
        work = Work(failure=failure)
        discarded: list[str] = []

        async def wait() -> str:
            return await settled(work.run(), discard=discarded.append)

        task = await cancelled_at(steps, wait)
        was_made = work.begun == 1 and failure is None
        was_taken = not task.cancelled() and task.exception() is None
        assert (was_taken, discarded) == (was_made and not task.cancelled(), ["done"] * (was_made and not was_taken))

    run(scenario())


@given(st.lists(cancels, min_size=1, max_size=4), failures)
def test_once_runs_once_and_every_caller_that_stays_gets_its_result(
    callers: list[list[int]], failure: Exception | None
) -> None:
    async def scenario() -> None:
        work = Work(failure=failure)
        once: Once[str] = Once()
        tasks = await asyncio.gather(*(cancelled_at(steps, lambda: once.run(work.run)) for steps in callers))
        await once.ended()
        for task in tasks:
            if not task.cancelled():
                assert task.exception() is failure
                assert failure is not None or task.result() == "done"
        assert work.begun == (1 if once.is_started else 0)
        assert once.is_done == once.is_started
        if once.is_started:
            assert not once.start(work.run)
            await asyncio.gather(once.result(), return_exceptions=True)

    run(scenario())


@given(cancels, st.lists(st.integers(0, 4), max_size=4))
def test_an_owner_that_has_closed_has_no_task_left(steps: list[int], lengths: list[int]) -> None:
    async def scenario() -> None:
        works = [Work(length) for length in lengths]
        ended: list[int] = []

        async def wait() -> None:
            tasks = Tasks()
            for number, work in enumerate(works):
                tasks.start(work.run(), on_end=lambda number=number: ended.append(number))  # type: ignore[misc]
            await asyncio.sleep(0)
            try:
                await tasks.aclose()
            finally:
                assert all(work.is_over for work in works)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for step in steps:
            for _ in range(step):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert sorted(ended) == list(range(len(works)))

    run(scenario())


def test_what_a_begun_coroutine_holds_is_released_by_a_cancel_before_its_first_step() -> None:
    async def scenario() -> None:
        work, held = Work(), [True]

        @begun
        async def around(inner: Coroutine[object, object, str]) -> str:
            try:
                with closing(inner):
                    await Beginning()
                    return await inner
            finally:
                held.clear()

        task = asyncio.create_task(around(work.run()))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert work.begun == 0
        assert not held

    run(scenario())


@given(cancels, failures, st.booleans())
def test_a_begun_coroutine_goes_as_any_other(steps: list[int], failure: Exception | None, is_task: bool) -> None:
    async def scenario() -> None:
        work = Work(failure=failure)

        @begun
        async def around() -> str:
            await Beginning()
            return await work.run()

        async def waiting() -> str:
            return await around()

        task = await cancelled_at(steps, around if is_task else waiting)
        assert work.is_over
        if not task.cancelled():
            assert task.exception() is failure
            assert failure is not None or task.result() == "done"

    run(scenario())


def test_work_for_an_owner_that_has_closed_does_not_run_but_its_end_is_told() -> None:
    async def scenario() -> None:
        tasks = Tasks()
        await tasks.aclose()
        work, ended = Work(), asyncio.Event()
        task = tasks.start(work.run(), on_end=ended.set)
        await ended.wait()
        assert task.cancelled()
        assert work.begun == 0

    run(scenario())


def test_a_failure_that_nobody_waits_for_is_told_to_the_owner() -> None:
    async def scenario() -> None:
        heard: list[BaseException] = []
        async with Tasks(heard.append) as tasks:
            tasks.start(Work(0, failure=ValueError("broken")).run())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert [str(error) for error in heard] == ["broken"]

    run(scenario())


@given(cancels)
def test_a_task_that_is_ended_is_over(steps: list[int]) -> None:
    async def scenario() -> None:
        work = Work()
        task = owned(work.run())
        await asyncio.sleep(0)

        async def wait() -> None:
            try:
                await end(task)
            finally:
                assert not work.begun or work.is_over

        if not (await cancelled_at(steps, wait)).cancelled():
            assert task.cancelled()
        await asyncio.wait([task])

    async def begun_first() -> None:
        await scenario()

    if not steps or steps[0]:  # a wait that is cancelled before its first step ends nothing
        run(begun_first())


@given(cancels, st.integers(0, 4), st.integers(0, 4), failures)
def test_a_race_leaves_nobody_running(steps: list[int], one: int, other: int, failure: Exception | None) -> None:
    async def scenario() -> None:
        first, second = Work(one, failure=failure), Work(other)
        works = (first.run(), second.run())

        async def wait() -> None:
            try:
                await race(*works)
            finally:
                assert first.is_over
                assert second.is_over

        task = await cancelled_at(steps, wait)
        for each in works:
            each.close()  # of a wait that was cancelled before its first step
        error = None if task.cancelled() else task.exception()
        assert error is (failure if one < other and not task.cancelled() else error)

    run(scenario())


@given(cancels, st.lists(st.integers(0, 4), max_size=4), failures)
def test_what_runs_together_is_over_together(steps: list[int], lengths: list[int], failure: Exception | None) -> None:
    async def scenario() -> None:
        works = [Work(length) for length in lengths]
        if works:
            works[-1].failure = failure

        async def wait() -> list[str]:
            try:
                return await together(work.run() for work in works)
            finally:
                assert all(work.is_over for work in works)

        task = await cancelled_at(steps, wait)
        if task.cancelled():
            assert steps
        elif works and failure is not None:
            assert task.exception() is failure
        else:
            assert task.result() == ["done"] * len(works)

    run(scenario())


def close(work: Work) -> Coroutine[object, object, None]:
    tasks = Tasks()
    tasks.start(work.run())
    return tasks.aclose()


@pytest.mark.parametrize("wait", [lambda work: end(owned(work.run())), close])
def test_a_cancel_while_tasks_are_ended_is_raised_when_they_have_ended(
    wait: Callable[[Work], Coroutine[object, object, None]],
) -> None:
    async def scenario() -> None:
        work = Work(5)
        ending = wait(work)
        await asyncio.sleep(0)
        task = asyncio.create_task(ending)
        await asyncio.sleep(0)
        for _ in range(2):
            assert not work.is_over
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        assert task.cancelled()
        assert work.is_over

    run(scenario())


def test_what_is_done_when_the_cancel_comes_is_not_told_of_it() -> None:
    async def scenario() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        told: list[int] = []
        discarded: list[int] = []
        task = asyncio.create_task(settled(future, on_cancel=lambda: told.append(1), discard=discarded.append))
        await asyncio.sleep(0)
        future.set_result(7)
        task.cancel()
        await asyncio.wait([task])
        assert (task.cancelled(), told, discarded) == (True, [], [7])

    run(scenario())


def test_a_wait_for_what_is_shared_can_be_cancelled_alone() -> None:
    async def scenario() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def wait() -> int:
            return await shared(future)

        leaving, staying = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        future.set_result(7)
        assert await staying == 7

    run(scenario())


def test_a_timeout_around_what_is_settled_comes_late_and_is_a_timeout() -> None:
    async def scenario() -> None:
        release = asyncio.Event()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await settled(release.wait(), on_cancel=release.set)
        assert release.is_set()

    run(scenario())


def test_tasks_are_started_in_one_module_only() -> None:
    source = Path(cove.__file__).parent
    found = [
        f"{path.relative_to(source)}:{node.lineno} {node.attr}"
        for path in sorted(source.rglob("*.py"))
        if path not in (source / "tasks.py", source / DEMO)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN and ast.unparse(node) != TASK_GROUP
    ]
    assert found == []


def test_a_cancel_at_every_step_of_the_loop_does_not_keep_an_owner_from_closing() -> None:
    async def main() -> None:
        work = Work()
        with anyio.CancelScope() as scope:
            async with Tasks() as tasks:
                tasks.start(work.run())
                await asyncio.sleep(0)
                scope.cancel()
                await asyncio.sleep(0)
        assert work.begun == 1
        assert work.is_over

    asyncio.run(asyncio.wait_for(main(), 60))


async def _fail_later(is_time: asyncio.Event) -> None:
    await is_time.wait()
    raise ValueError("nobody waits any more")


def test_what_fails_after_its_callers_were_cancelled_is_not_complained_about() -> None:
    complaints: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        is_time, once = asyncio.Event(), Once[None]()
        callers = [owned(once.run(lambda: _fail_later(is_time))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for caller in callers:
            await end_quietly(caller)
        is_time.set()
        await once.ended()

    asyncio.run(main())
    gc.collect()
    assert complaints == []


async def end_quietly(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
