"""A fleet without asyncio: tasks run in threads."""

import io
import sys
import threading

import pytest

from cove import Fleet, Sandbox
from cove.blocking.portal import get_portal


@pytest.fixture(scope="module", autouse=True)
def portal() -> None:
    """The loop of this program lives as long as the program."""
    get_portal()


def square(sandbox: Sandbox, number: int) -> int:
    return int(sandbox.exec(["expr", str(number), "*", str(number)]).check().stdout)


def test_tasks_run_in_threads_and_results_come_in_order() -> None:
    with Fleet(3) as fleet:
        results = list(fleet.map(square, range(1, 7), ordered=True))
        assert [result.check() for result in results] == [1, 4, 9, 16, 25, 36]
        assert [result.check() for result in fleet.map(square, (each for each in [7]))] == [49]
    assert Sandbox.list() == []


def test_leaving_early_ends_the_tasks_in_their_threads() -> None:
    begun = threading.Semaphore(0)

    def task(sandbox: Sandbox, number: int) -> int:
        if number:
            begun.release()
            sandbox.exec("sleep 1000")
        return number

    with Fleet(3) as fleet:
        for result in fleet.map(task, range(3)):
            assert result.value == 0
            begun.acquire()
            begun.acquire()
            break
    assert Sandbox.list() == []


def test_progress_is_shown_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)

    def task(sandbox: Sandbox, number: int) -> int:
        return 1 // number

    with Fleet(1, progress=True) as fleet:
        assert [result.ok for result in fleet.map(task, [0, 1], ordered=True)] == [False, True]
    assert "2/2" in shown.getvalue()
    assert "1 failed" in shown.getvalue()
