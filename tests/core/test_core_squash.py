"""Which layers are merged, and how the merged one takes their places."""

import pytest

from cove.core.squash import Merge, add_merge, choose_run, plan_merge, shorten

pytestmark = pytest.mark.pure


def test_the_cheapest_neighbours_are_chosen() -> None:
    assert choose_run([9] * 10 + [1] * 16 + [9] * 5, []) == range(10, 26)
    assert choose_run([1] * 31, []) == range(16)


def test_no_run_crosses_a_boundary() -> None:
    assert choose_run([1] * 31, [10]) == range(10, 26)
    assert choose_run([1] * 20, [8]) == range(8, 20)
    assert choose_run([1] * 20, [20]) == range(16)
    assert not choose_run([1, 1], [1])
    assert not choose_run([], [])


def test_a_merged_layer_takes_the_place_of_its_run() -> None:
    merge = plan_merge(["b", "c"], is_bottom=False)
    assert shorten(("a", "b", "c", "d"), [merge]) == ("a", merge.into, "d")
    assert shorten(("a", "b", "d", "c"), [merge]) == ("a", "b", "d", "c")
    assert shorten(("b",), [merge]) == ("b",)


def test_a_merged_layer_of_the_bottom_is_only_used_there() -> None:
    merge = plan_merge(["a", "b"], is_bottom=True)
    assert shorten(("a", "b", "c"), [merge]) == (merge.into, "c")
    assert shorten(("x", "a", "b"), [merge]) == ("x", "a", "b")
    assert merge.into != plan_merge(["a", "b"], is_bottom=False).into


def test_merged_layers_can_be_merged_again() -> None:
    first = plan_merge(["a", "b"], is_bottom=True)
    second = plan_merge([first.into, "c"], is_bottom=True)
    assert shorten(("a", "b", "c", "d"), [first, second]) == (second.into, "d")


def test_the_last_merges_are_remembered_once_each() -> None:
    merges: tuple[Merge, ...] = ()
    made = [plan_merge([str(number)], is_bottom=False) for number in range(6)]
    for each in (*made, made[4]):
        merges = add_merge(merges, each)
    assert merges == (made[2], made[3], made[5], made[4])
