"""Run a module's tests on each event loop that Cove can run on."""

import pytest


@pytest.fixture(
    scope="module",
    params=[("asyncio", {"use_uvloop": True}), ("asyncio", {"use_uvloop": False})],
    ids=["uvloop", "asyncio"],
)
def each_event_loop(request: pytest.FixtureRequest) -> object:
    """The backend of anyio: a module says `anyio_backend = each_event_loop`."""
    return request.param
