"""Tenants that take turns: who is alone never waits, who is not has few young requests, and nobody waits in vain."""

import asyncio
from collections.abc import Iterator

import pytest

from cove.http import Request, Response
from cove.server.gateway import turns as module
from cove.server.gateway.turns import ACTIVE_SECONDS, CREATION_SECONDS, FEW_OPEN, YOUNG_SECONDS, Activity, Turns

pytestmark = [pytest.mark.anyio, pytest.mark.pure]


class Source:
    """A connection that has nothing to say."""

    def want_body(self) -> None: ...

    def pause_body(self) -> None: ...


class Clock:
    """Time that passes when it is told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock  # type: ignore[return-value]  # pytest takes both


class Worker:
    """Turns, and which requests have begun."""

    def __init__(self, activity: Activity) -> None:
        self.turns = Turns(activity)
        self.begun: list[str] = []

    def request(self, owner: str, path: str = "/") -> Request:
        request = Request(Source(), 0)
        request.owner, request.path, request.method = owner, path, "POST"
        return request

    def call(self, request: Request) -> "asyncio.Task[object] | None":
        """Make a request: a task if it waits."""

        def handler(each: Request) -> Response:
            self.begun.append(each.owner)
            return Response(200, (), b"")

        coming = self.turns.take(request, handler, request.owner)
        return None if isinstance(coming, Response) else asyncio.ensure_future(coming)  # type: ignore[arg-type]  # a coroutine


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
def worker() -> Worker:
    return Worker(Activity())


@pytest.mark.usefixtures("clock")
async def test_who_is_alone_never_waits(worker: Worker) -> None:
    for _ in range(100):
        assert worker.call(worker.request("a")) is None


async def test_who_has_few_requests_open_never_waits(worker: Worker, clock: Clock) -> None:
    worker.call(worker.request("quiet"))
    for _ in range(100):
        requests = [worker.request("light") for _ in range(FEW_OPEN)]
        assert [worker.call(each) for each in requests] == [None] * FEW_OPEN
        for each in requests:
            worker.turns.answered(each)
        clock.now += 0.1


async def begin_many(worker: Worker, count: int, path: str = "/") -> tuple[list[Request], "list[asyncio.Task[object]]"]:
    """Beside another tenant, have as many begin as may, and so many more wait."""
    worker.call(worker.request("quiet"))
    requests = [worker.request("busy", path) for _ in range(FEW_OPEN + count)]
    tasks = [worker.call(each) for each in requests]
    assert tasks[:FEW_OPEN] == [None] * FEW_OPEN
    waiting = [task for task in tasks[FEW_OPEN:] if task is not None]
    assert len(waiting) == count
    await settle()
    assert worker.begun.count("busy") == FEW_OPEN
    return requests, waiting


@pytest.mark.usefixtures("clock")
async def test_beside_others_one_thing_begins_after_the_other_and_the_others_do_not_wait(worker: Worker) -> None:
    requests, waiting = await begin_many(worker, 3 * FEW_OPEN)
    for request in requests[:FEW_OPEN]:
        worker.turns.answered(request)
    for number in range(FEW_OPEN, 3 * FEW_OPEN):  # until few are left
        await settle()
        assert worker.begun.count("busy") == number + 1
        assert worker.call(worker.request("quiet")) is None
        worker.turns.answered(requests[number])
    await asyncio.gather(*waiting)


async def test_a_long_request_keeps_nobody_from_beginning(worker: Worker, clock: Clock) -> None:
    _, waiting = await begin_many(worker, 2)
    clock.now += YOUNG_SECONDS
    async with asyncio.timeout(5):
        await waiting[0]
    assert worker.begun.count("busy") == FEW_OPEN + 1
    clock.now += YOUNG_SECONDS
    async with asyncio.timeout(5):
        await waiting[1]


async def test_a_creation_is_young_until_it_is_answered(worker: Worker, clock: Clock) -> None:
    requests, (task, _) = await begin_many(worker, 2, "/v1/sandboxes")
    clock.now += CREATION_SECONDS / 2
    worker.turns.answered(requests[0])
    await settle()
    assert worker.begun.count("busy") == FEW_OPEN
    for request in requests[1:FEW_OPEN]:
        worker.turns.answered(request)
    await task


@pytest.mark.usefixtures("clock")
async def test_who_is_cancelled_while_it_waits_takes_nobodys_turn(worker: Worker) -> None:
    requests, waiting = await begin_many(worker, FEW_OPEN + 2)
    waiting[0].cancel()
    await settle()
    worker.turns.answered(requests[FEW_OPEN])
    for request in requests[:FEW_OPEN]:
        worker.turns.answered(request)
    await waiting[1]
    assert waiting[0].cancelled()
    assert worker.begun.count("busy") == FEW_OPEN + 1


@pytest.mark.usefixtures("clock")
async def test_who_is_cancelled_when_its_turn_has_come_gives_it_on(worker: Worker) -> None:
    requests, waiting = await begin_many(worker, FEW_OPEN + 2)
    for request in requests[:FEW_OPEN]:
        worker.turns.answered(request)
    waiting[0].cancel()
    worker.turns.answered(requests[FEW_OPEN])  # as its connection does when it is lost
    await waiting[1]
    assert worker.begun.count("busy") == FEW_OPEN + 1


async def test_others_count_for_a_while_and_on_all_workers(clock: Clock) -> None:
    activity = Activity()
    one, other = Worker(activity), Worker(activity)
    other.call(other.request("quiet"))
    tasks = [one.call(one.request("busy")) for _ in range(FEW_OPEN + 5)]
    await settle()
    assert one.begun.count("busy") == FEW_OPEN
    clock.now += ACTIVE_SECONDS
    async with asyncio.timeout(5):
        await asyncio.gather(*filter(None, tasks))
    assert one.call(one.request("busy")) is None
    assert one.begun.count("busy") == FEW_OPEN + 6
