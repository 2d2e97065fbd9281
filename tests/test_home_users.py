"""User ids of sandboxes: given once, taken back with their sandbox, and not the same in two state directories."""

import os
import subprocess
from pathlib import Path

import pytest

from cove.linux.cgroup import find_hierarchies
from cove.linux.strays import end_strays
from cove.runtime.home import Home
from cove.runtime.user_ids import FIRST_USER_ID, USER_IDS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root gives sandboxes users of their own")


@pytest.fixture
def homes(cove_home: Path, other_home: Path) -> tuple[Home, Home]:
    pair = Home(cove_home), Home(other_home)
    for home in pair:
        home.open()
    return pair


def test_two_state_directories_do_not_give_the_same_ids(homes: tuple[Home, Home]) -> None:
    places = [home.allocate() for home in homes for _ in range(5)]
    try:
        ids = [place.user_id for place in places]
        assert len(set(ids)) == len(ids)
        assert all(user is not None and FIRST_USER_ID <= user < FIRST_USER_ID + USER_IDS for user in ids)
    finally:
        for place, home in zip(places, [home for home in homes for _ in range(5)], strict=True):
            home.release(place)


def test_ids_go_on_from_the_last_one_and_not_from_the_first_that_is_free(homes: tuple[Home, Home]) -> None:
    home = homes[0]
    first = home.allocate()
    home.release(first)
    second = home.allocate()
    home.release(second)
    assert (first.user_id or 0) + 1 == second.user_id


def test_a_reservation_without_a_sandbox_is_taken_back(homes: tuple[Home, Home]) -> None:
    home = homes[1]
    living = home.allocate()
    stray, empty = home.path / "users/2000000007", home.path / "users/2000000008"
    stray.write_text("nosuchplace1")
    empty.write_text("")
    home.collect(find_hierarchies())
    assert [path.name for path in (home.path / "users").iterdir()] == [str(living.user_id)]
    home.release(living)


def test_only_who_has_exactly_the_mark_is_a_stray() -> None:
    marked = subprocess.Popen(["sleep", "1000", "100s"])
    similar = subprocess.Popen(["sleep", "1000", "100"])
    try:
        assert end_strays("100s") == 1
        assert marked.wait(10) == -9
        assert similar.poll() is None
    finally:
        similar.kill()
        similar.wait()
