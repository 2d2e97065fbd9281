"""Removing trees: what another removes at the same time is no failure."""

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
