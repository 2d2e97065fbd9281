"""What a layer of an image can do to the host that unpacks it: nothing."""

import os
import stat
import tarfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.image_files import (
    Compression,
    Item,
    compress,
    digest,
    directory,
    hard_link,
    make_docker,
    make_layer,
    symlink,
)

from cove.archive.tar import Refused
from cove.images import sources
from cove.images.layer_stream import CHUNK, LayerStream
from cove.images.layer_unpack import unpack_layer
from cove.images.merged_view import OPAQUE
from cove.images.store import open_images
from cove.layers.store import LayerStore
from cove.local.threads import Stopped
from cove.model import TransferProgress

Unpack = Callable[..., Path]


@pytest.fixture
def unpack(tmp_path: Path) -> Unpack:
    """Unpack layers one upon the other; return the directory of the last."""

    def run(*layers: list[Item]) -> Path:
        made: list[str] = []
        for items in layers:
            path = tmp_path / f"layer-{len(made)}"
            path.mkdir()
            stream = LayerStream(BytesIO(make_layer(items)))
            unpack_layer(str(path), made, stream, root=0 if os.geteuid() == 0 else None)
            made.append(str(path))
        return Path(made[-1])

    return run


HOSTILE = {
    "a path that goes up": [Item("../outside", b"x")],
    "a path that goes up inside": [Item("a/../../outside", b"x")],
    "a deletion of the parent": [Item("a/.wh...", b"")],
    "a deletion of nothing": [Item("a/.wh.", b"")],
    "a path through a link that is a file's": [Item("a", b"x"), Item("a/b", b"x")],
    "links that lead to each other": [symlink("a", "b"), symlink("b", "a"), Item("a/x", b"x")],
    "a hard link out": [hard_link("a", "../../etc/passwd")],
    "a hard link to what is not there": [hard_link("a", "etc/passwd")],
    "a hard link to a directory": [directory("d"), hard_link("a", "d")],
    "a hard link to a link": [symlink("l", "/etc/passwd"), hard_link("a", "l")],
    "a file in the place of a directory": [directory("d"), Item("d/x", b"x"), Item("d", b"x")],
    "a link in the place of a directory": [directory("d"), symlink("d", "/etc")],
    "nested too deeply": [Item("/".join(["d"] * 300) + "/x", b"x")],
    "a name that is too long": [Item("d" * 5000, b"x")],
    "an old sparse file": [Item("s", b"", kind=tarfile.GNUTYPE_SPARSE)],
}


@pytest.mark.parametrize("items", HOSTILE.values(), ids=HOSTILE.keys())
def test_is_refused(unpack: Unpack, tmp_path: Path, items: list[Item]) -> None:
    with pytest.raises((Refused, OSError)):
        unpack(items)
    assert {path.name for path in tmp_path.iterdir()} == {"layer-0"}


def test_a_link_to_the_host_is_followed_within_the_image_only(unpack: Unpack, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    layer = unpack([symlink("etc", str(tmp_path / "host")), Item("etc/passwd", b"evil")])
    assert not any((tmp_path / "host").iterdir())
    assert layer.joinpath(*(tmp_path / "host" / "passwd").parts[1:]).read_bytes() == b"evil"


def test_links_that_go_up_stay_below_the_top(unpack: Unpack, tmp_path: Path) -> None:
    layer = unpack([symlink("up", "../../../.."), Item("up/x", b"evil")])
    assert (layer / "x").read_bytes() == b"evil"
    assert not (tmp_path / "x").exists()


def test_devices_pipes_and_rights_of_others_are_left_out(unpack: Unpack) -> None:
    layer = unpack(
        [
            Item("sda", kind=tarfile.BLKTYPE),
            Item("tty", kind=tarfile.CHRTYPE),
            Item("pipe", kind=tarfile.FIFOTYPE),
            Item("su", b"#!", mode=0o6755),
            directory("tmp", 0o3777),
            Item("x", b"", pax={"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.security.capability": "x"}),
        ]
    )
    assert {path.name for path in layer.iterdir()} == {"su", "tmp", "x"}
    assert stat.S_IMODE((layer / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((layer / "tmp").stat().st_mode) == 0o1777
    assert os.listxattr(layer / "x") == []


def test_a_deletion_becomes_a_whiteout_only_where_something_is_below(unpack: Unpack) -> None:
    layer = unpack([Item("etc/old", b"x"), Item("etc/kept", b"x")], [Item("etc/.wh.old"), Item("etc/.wh.never")])
    status = (layer / "etc" / "old").lstat()
    assert (stat.S_ISCHR(status.st_mode), status.st_rdev) == (True, 0)
    assert [path.name for path in (layer / "etc").iterdir()] == ["old"]


def test_the_content_of_a_deletion_is_passed_over(unpack: Unpack) -> None:
    """It could be read as the next members otherwise, by this reader alone."""
    hidden = Item("never", b"x")
    layer = unpack(
        [Item("etc/old", b"x")],
        [Item("etc/.wh.old", make_layer([hidden])[:1024]), Item("etc/.wh..wh..opq", b"1"), Item("a")],
    )
    assert {path.name for path in layer.rglob("*")} == {"etc", "old", "a"}


def test_a_replaced_directory_hides_what_is_below(unpack: Unpack) -> None:
    below = [Item("etc/old", b"x"), Item("opt/old", b"x")]
    layer = unpack(below, [Item("etc/.wh..wh..opq"), Item(".wh.opt"), directory("opt"), Item("opt/new", b"x")])
    assert os.getxattr(layer / "etc", OPAQUE) == os.getxattr(layer / "opt", OPAQUE) == b"y"
    assert (layer / "opt" / "new").is_file()


def test_a_path_through_a_link_of_a_lower_layer_goes_where_it_leads(unpack: Unpack) -> None:
    below = [directory("usr/bin"), symlink("bin", "usr/bin")]
    layer = unpack(below, [Item("bin/tool", b"x")])
    assert (layer / "usr" / "bin" / "tool").is_file()
    assert not (layer / "bin").exists()


def test_a_deleted_link_of_a_lower_layer_leads_nowhere(unpack: Unpack) -> None:
    below = [directory("usr/bin"), symlink("bin", "usr/bin")]
    layer = unpack(below, [Item(".wh.bin"), directory("bin"), Item("bin/tool", b"x")])
    assert (layer / "bin" / "tool").is_file()


def test_a_directory_that_the_layer_does_not_describe_is_as_below(unpack: Unpack) -> None:
    layer = unpack([directory("tmp", 0o1777)], [Item("tmp/x", b"x")])
    assert stat.S_IMODE((layer / "tmp").stat().st_mode) == 0o1777


def test_a_file_with_holes_keeps_its_size(unpack: Unpack) -> None:
    places = b"2\n4096\n3\n1048576\n0\n"
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "holes"}
    content = places.ljust(512, b"\0") + b"end"
    layer = unpack([Item("s", content, pax={**sparse, "GNU.sparse.realsize": "1048576"})])
    assert (layer / "holes").stat().st_size == 1048576
    assert (layer / "holes").read_bytes()[4096:4099] == b"end"


@pytest.mark.parametrize("how", ["none", "gzip", "zstd"])
def test_both_digests_are_of_all_that_came(tmp_path: Path, how: Compression) -> None:
    layer = make_layer([Item("x", b"content" * 100_000)]) + bytes(4096)
    blob = compress(layer, how)
    stream = LayerStream(BytesIO(blob))
    unpack_layer(str(tmp_path), [], stream, root=None)
    assert stream.finish() == (digest(blob), digest(layer))


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_is_in_memory(tmp_path: Path, how: Compression) -> None:
    bomb = compress(make_layer([Item("x", bytes(64 << 20))]), how)
    stream = LayerStream(BytesIO(bomb), most=8 << 20)
    with pytest.raises(Refused, match="more than may be unpacked"):
        unpack_layer(str(tmp_path), [], stream, root=None)
    assert stream.size < 9 << 20


@pytest.mark.parametrize("how", ["none", "gzip", "zstd"])
def test_a_layer_that_ends_in_the_middle_is_refused(tmp_path: Path, how: Compression) -> None:
    blob = compress(make_layer([Item("x", os.urandom(1 << 20))]), how)
    with pytest.raises(Refused):
        unpack_layer(str(tmp_path), [], LayerStream(BytesIO(blob[: len(blob) // 2])), root=None)


@pytest.mark.parametrize("how", ["gzip", "zstd"])
@pytest.mark.parametrize("part", [2, 3, 5])
def test_a_damaged_layer_is_refused_or_has_another_digest(tmp_path: Path, how: Compression, part: int) -> None:
    layer = make_layer([Item("x", os.urandom(1000) * 100)])
    blob = bytearray(compress(layer, how))
    blob[len(blob) // part] ^= 0xFF
    stream = LayerStream(BytesIO(bytes(blob)))
    try:
        unpack_layer(str(tmp_path), [], stream, root=None)
        found = stream.finish()
    except Refused:
        return
    assert found[1] != digest(layer)


class Recorded:
    """A decompressor that notes how much it is given at once."""

    given: ClassVar[list[int]] = []

    def __init__(self, bits: int) -> None:
        self._inner = DECOMPRESSOR(bits)

    def decompress(self, data: bytes, most: int) -> bytes:
        self.given.append(len(data))
        return self._inner.decompress(data, most)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


DECOMPRESSOR = zlib.decompressobj


def test_a_blob_of_many_members_is_given_to_the_decompressor_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of each member's input is copied: with large pieces the cost were that of their square."""
    monkeypatch.setattr(zlib, "decompressobj", Recorded)
    stream = LayerStream(BytesIO(compress(b"", "gzip") * 1000 + compress(b"text", "gzip")))
    assert stream.read(4) == b"text"
    assert len(Recorded.given) > 1000
    assert max(Recorded.given) <= 4096


def test_members_and_what_pads_them_are_one_stream_wherever_pieces_end() -> None:
    contents = [b"", b"a" * 3_000_000, os.urandom(300_000), b"b"]
    for padding in (0, 1, 511, CHUNK, 2 * CHUNK + 3):
        blob = b"".join(compress(content, "gzip") + bytes(padding) for content in contents)
        stream = LayerStream(BytesIO(blob))
        assert stream.read(sum(map(len, contents))) == b"".join(contents)
        assert not stream.read_some()


def test_whoever_gives_up_in_the_middle_of_a_layer_leaves_nothing(tmp_path: Path) -> None:
    store = open_images(tmp_path, LayerStore(tmp_path))
    store.layers.open()
    (tmp_path / "sandboxes").mkdir()
    archive = tmp_path / "root.tar"
    archive.write_bytes(make_layer([Item("large", os.urandom(4 * CHUNK))]))
    told: list[int] = []

    def give_up(progress: TransferProgress) -> None:
        told.append(progress.bytes)
        if len(told) == 3:
            raise Stopped

    with pytest.raises(Stopped), open(archive, "rb") as file:
        store.load_archive(file, "given-up", give_up)
    assert os.listdir(tmp_path / "layers") == []
    assert store.list() == []


def test_each_directory_is_looked_up_once_however_deep_and_on_however_many_layers(
    unpack: Unpack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = "/".join(["d"] * 100)
    opened = 0
    original = os.open

    def counting(*arguments: Any, **options: Any) -> int:
        nonlocal opened
        opened += 1
        return original(*arguments, **options)

    lowest = unpack(*([directory(deep)] for _ in range(10)))
    lowers = [str(lowest.with_name(f"layer-{number}")) for number in range(10)]
    (tmp_path / "top").mkdir()
    layer = make_layer([Item(f"fresh/{deep}/{number}/x") for number in range(50)])
    monkeypatch.setattr(os, "open", counting)
    unpack_layer(str(tmp_path / "top"), lowers, LayerStream(BytesIO(layer)), root=None)
    assert len(list((tmp_path / "top" / "fresh" / deep).iterdir())) == 50
    assert opened < 20_000


def test_a_name_that_is_replaced_leads_where_it_leads_then(unpack: Unpack) -> None:
    made = unpack(
        [directory("a"), directory("b"), symlink("l", "a"), Item("l/1"), symlink("l", "b"), Item("l/2")],
    )
    assert [sorted(os.listdir(made / name)) for name in ("a", "b")] == [["1"], ["2"]]


def test_whoever_gives_up_is_heard_at_every_entry(tmp_path: Path) -> None:
    """A small blob has many entries: nothing of it is read for a long time."""
    store = open_images(tmp_path, LayerStore(tmp_path))
    store.layers.open()
    (tmp_path / "sandboxes").mkdir()
    root = make_layer([Item(f"f{number}") for number in range(300)])
    docker = make_docker([root]).write(tmp_path / "docker.tar")
    (tmp_path / "root.tar.gz").write_bytes(compress(root, "gzip"))
    for archive, most in ((docker, 200), (tmp_path / "root.tar.gz", 400), (tmp_path / "root.tar.gz", 1)):
        left = most

        def give_up() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Stopped

        with pytest.raises(Stopped), open(archive, "rb") as file:
            store.load_archive(file, "given-up", check=give_up)
    assert os.listdir(tmp_path / "layers") == []


def test_directories_of_an_archive_count_for_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_MEMBERS", 20)
    (tmp_path / "many.tar").write_bytes(make_layer([directory(f"d{number}") for number in range(21)]))
    with open(tmp_path / "many.tar", "rb") as file, pytest.raises(Refused, match="more files than an image has"):
        sources.ArchiveFiles(file.fileno(), lambda: None)
