"""Calls that have spans end as those that have none, also when they never began."""

import asyncio
import gc
import warnings

import pytest

from cove.local import tracing as api
from cove.runtime import tracing
from cove.runtime.files import Files
from cove.runtime.gate import gated_call
from cove.runtime.tracing import traced

pytestmark = [pytest.mark.anyio, pytest.mark.pure]


class Interface:
    """An interface of one call."""

    async def call(self, number: int) -> int:
        """Return the number."""
        return number


@traced("thing", Interface)
class Thing(Interface):
    """A thing whose calls have spans."""


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_makes_spans", lambda: True)


@pytest.mark.usefixtures("spans")
async def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing_that_was_never_awaited() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = asyncio.ensure_future(Thing().call(1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
    assert await Thing().call(2) == 2


def test_who_has_loaded_the_api_and_sets_no_provider_makes_no_spans() -> None:
    import opentelemetry.trace  # noqa: F401  # loaded, and nothing more

    assert not api.is_loaded()


def test_calls_of_files_go_through_the_gate_within_their_span() -> None:
    gate = gated_call(Interface.call).__code__
    method: object = Files.read
    codes = []
    while method is not None:
        codes.append(getattr(method, "__code__", None))
        method = getattr(method, "__wrapped__", None)
    assert codes.index(gate) == 1
