"""Requests to a runtime count as activity of its sandbox from their arrival to their end, however that comes."""

import asyncio
from collections.abc import Coroutine

import pytest

from cove.http import Answer, Request, Response
from cove.runtime.activity import Activity
from cove.server.runtime.activity import count

pytestmark = [pytest.mark.anyio, pytest.mark.pure]


class Source:
    """A connection that has nothing to say."""

    def want_body(self) -> None: ...

    def pause_body(self) -> None: ...


class Sandbox:
    """Answers when it is told to, and knows whether it is used."""

    def __init__(self) -> None:
        self.activity = Activity(list)
        self.may_answer = asyncio.Event()
        self.begun = 0
        self._handler = count(self.activity, self._handle)

    async def _handle(self, _: Request) -> Answer:
        self.begun += 1
        await self.may_answer.wait()
        return Response(200, (), b"")

    def call(self) -> "asyncio.Task[Answer]":
        request = Request(Source(), 0)
        request.method, request.path = "POST", "/v1/sandboxes/id/exec"
        coming = self._handler(request)
        assert isinstance(coming, Coroutine)
        return asyncio.create_task(coming)


async def test_a_request_counts_from_its_arrival_to_its_answer() -> None:
    sandbox = Sandbox()
    call = sandbox.call()
    assert not sandbox.activity.is_quiet
    sandbox.may_answer.set()
    await call
    assert sandbox.activity.is_quiet


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steps", range(3))
async def test_a_request_that_is_cancelled_at_any_step_counts_no_longer(steps: int) -> None:
    sandbox = Sandbox()
    call = sandbox.call()
    for _ in range(steps):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert sandbox.begun == min(steps, 1)
    assert sandbox.activity.is_quiet
