"""What an image has where sandboxes have parts of their own: found there, and never by a link."""

import os
import stat
from io import BytesIO
from pathlib import Path

import pytest
from support.image_files import Item, directory, make_layer, symlink

from cove.images.merged_view import OPAQUE
from cove.images.parts import has_directory
from cove.images.sources import LayerBlob
from cove.images.store import ImageStore, open_images
from cove.layers.store import LayerStore


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    (tmp_path / "sandboxes").mkdir()
    layers = LayerStore(tmp_path)
    layers.open()
    return open_images(tmp_path, layers)


def add(store: ImageStore, *layers: list[Item]) -> list[Path]:
    ids: list[str] = []
    for items in layers:
        store.add_layer(f"sha256-{len(ids)}", ids, BytesIO(make_layer(items)), LayerBlob(None, None, ""))
        ids.append(f"sha256-{len(ids)}")
    return [store.layers.data(id) for id in ids]


def is_opaque(path: Path) -> bool:
    return OPAQUE in os.listxattr(path)


BELOW = [Item("workspace/a", b"1"), Item("home/user/b", b"2"), Item("home/other/c", b"3"), directory("tmp", 0o1777)]


def test_parts_lie_beside_the_root(store: ImageStore) -> None:
    (data,) = add(store, BELOW)
    assert (data / "workspace/a").read_bytes() == b"1"
    assert (data / "home/b").read_bytes() == b"2"
    assert (data / "root/home/other/c").read_bytes() == b"3"
    assert stat.S_IMODE((data / "tmp").stat().st_mode) == 0o1777
    assert sorted(os.listdir(data / "root")) == ["home"]


HIDING = {
    "a deleted directory": ([Item(".wh.workspace"), Item("home/.wh.user")], {"workspace", "home"}),
    "a deleted parent": ([Item(".wh.home")], {"home"}),
    "a replaced parent": ([Item("home/.wh..wh..opq"), Item("home/user/new", b"n")], {"home"}),
    "a replaced image": ([Item(".wh..wh..opq")], {"workspace", "home", "tmp"}),
    "a link": ([Item(".wh.workspace"), symlink("workspace", "/proc/1/root")], {"workspace"}),
    "a file": ([Item("workspace", b"x")], {"workspace"}),
    "another file": ([Item("workspace/new", b"x")], set()),
}


@pytest.mark.parametrize("what", HIDING)
def test_what_a_layer_hides_is_hidden_in_its_parts(store: ImageStore, what: str) -> None:
    items, hidden = HIDING[what]
    _, data = add(store, BELOW, items)
    found = {name for name in ("workspace", "home", "tmp") if (data / name).is_dir() and is_opaque(data / name)}
    assert found == hidden
    assert not any((data / name).is_symlink() for name in ("workspace", "home", "tmp"))


def test_a_file_that_is_deleted_in_a_part_is_a_whiteout_there(store: ImageStore) -> None:
    _, data = add(store, BELOW, [Item("workspace/.wh.a")])
    status = (data / "workspace/a").lstat()
    assert (stat.S_ISCHR(status.st_mode), status.st_rdev) == (True, 0)


def test_a_part_through_a_link_stays_in_the_root(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (data,) = add(store, [symlink("home", str(tmp_path / "host")), Item("home/user/x", b"x")])
    assert not (data / "home").exists()
    assert not any((tmp_path / "host").iterdir())


def test_a_directory_is_found_in_every_part(store: ImageStore) -> None:
    data = add(store, BELOW, [directory("srv/app"), directory("workspace/app"), symlink("link", "srv/app")])
    for path in ("/srv/app", "/workspace", "/workspace/app", "/home/user", "/link", "/tmp"):
        assert has_directory(data, path), path
    for path in ("/workspace/a", "/absent", "/workspace/absent", "/link/absent"):
        assert not has_directory(data, path), path


def test_directories_are_as_old_as_the_image_says(store: ImageStore) -> None:
    """Otherwise a saved image would be another one each time it is loaded."""
    below, above = add(store, [directory("home"), *BELOW], [Item(".wh.workspace"), Item("home/user/new", b"n")])
    assert {int(path.stat().st_mtime) for path in (below / "root" / "home", below / "tmp")} == {1_700_000_000}
    assert {int(path.stat().st_mtime) for path in (below / "root", above / "root", above / "workspace")} == {0}
    assert not (above / "root" / "workspace").exists()
