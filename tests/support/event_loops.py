"""Event loops: run a module's tests on each that Cove can run on; let all that is ready happen."""

import asyncio
from collections.abc import Callable

import pytest

_TURNS = 500


@pytest.fixture(
    scope="module",
    params=[("asyncio", {"use_uvloop": True}), ("asyncio", {"use_uvloop": False})],
    ids=["uvloop", "asyncio"],
)
def each_event_loop(request: pytest.FixtureRequest) -> object:
    """The backend of anyio: a module says `anyio_backend = each_event_loop`."""
    return request.param


async def turns(number: int = _TURNS) -> None:
    """Let the loop go round: all that can happen in it without time passing has happened."""
    for _ in range(number):
        await asyncio.sleep(0)


async def until_still(count: Callable[[], int]) -> None:
    """Wait until a count has not changed for many turns of the loop: whoever counts is held back."""
    seen = -1
    while seen != (seen := count()):
        await turns()
