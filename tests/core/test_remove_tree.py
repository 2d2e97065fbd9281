"""Removing trees: what another removes at the same time is no failure."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cove.archive.remove_tree import remove_tree

pytestmark = pytest.mark.pure


def test_a_tree_and_a_directory_in_it_can_be_removed_at_the_same_time(tmp_path: Path) -> None:
    for round in range(50):
        top = tmp_path / str(round)
        inner = [top / name for name in "abcd"]
        for directory in inner:
            directory.mkdir(parents=True)
            for number in range(10):
                (directory / str(number)).touch()
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(remove_tree, [str(top), *map(str, inner)]))
    assert list(tmp_path.iterdir()) == []


def test_one_that_lifts_directories_within_the_tree_of_another_delays_it_only(tmp_path: Path) -> None:
    for round in range(5):
        top = tmp_path / str(round)
        for number in range(10):
            (top / "in" / str(number) / "a" / "b" / "c").mkdir(parents=True)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(remove_tree, [str(top), str(top / "in"), str(top), str(top / "in")]))
    assert list(tmp_path.iterdir()) == []


def test_what_is_filled_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "top"
    (top / "in").mkdir(parents=True)
    rmdir = os.rmdir

    def refill(name: str, *, dir_fd: int | None = None) -> None:
        if dir_fd is None:
            (top / "again").touch()
        rmdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", refill)
    with pytest.raises(OSError, match="not empty"):
        remove_tree(str(top))
