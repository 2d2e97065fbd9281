"""Archives of images that lie: nothing of them is kept."""

import io
import json
import os
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.image_files import ImageFiles, Item, digest, directory, make_docker, make_layer, make_oci, symlink

from cove.archive.tar import Refused
from cove.errors import ImageInvalid
from cove.images import layer_unpack
from cove.images.layer_stream import LayerStream
from cove.images.layer_unpack import unpack_layer
from cove.images.store import ImageStore, open_images
from cove.layers.store import LayerStore

LAYER = make_layer([Item("hello", b"hello")])
OTHER = make_layer([Item("other", b"other")])


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    (tmp_path / "home" / "sandboxes").mkdir(parents=True)
    layers = LayerStore(tmp_path / "home")
    layers.open()
    return open_images(tmp_path / "home", layers)


def blob_of(image: ImageFiles, has: bytes) -> str:
    return next(name for name, data in image.files.items() if name.startswith("blobs/") and has in data)


def index_of(image: ImageFiles) -> dict[str, object]:
    found: dict[str, object] = json.loads(image.files["index.json"])
    return found


def wrong_config() -> ImageFiles:
    image = make_oci([LAYER], {"Env": ["A=1"]})
    image.files[blob_of(image, b"diff_ids")] += b" "
    return image


def wrong_manifest() -> ImageFiles:
    image = make_oci([LAYER])
    image.files[blob_of(image, b"schemaVersion")] += b" "
    return image


def wrong_layer() -> ImageFiles:
    image = make_oci([LAYER], how="none")
    image.files[blob_of(image, b"hello")] = OTHER
    return image


def wrong_diff_id() -> ImageFiles:
    image = make_docker([LAYER])
    image.files["0/layer.tar"] = OTHER
    return image


def more_layers_than_the_configuration() -> ImageFiles:
    image = make_docker([LAYER])
    saved = json.loads(image.files["manifest.json"])
    saved[0]["Layers"] *= 2
    image.files["manifest.json"] = json.dumps(saved).encode()
    return image


def a_layer_that_is_not_there() -> ImageFiles:
    image = make_oci([LAYER], how="none")
    del image.files[blob_of(image, b"hello")]
    return image


def two_images() -> ImageFiles:
    image = make_docker([LAYER])
    image.files["manifest.json"] = json.dumps(json.loads(image.files["manifest.json"]) * 2).encode()
    return image


def an_index_of_itself() -> ImageFiles:
    image = make_oci([LAYER])
    index = (
        b'{"manifests": [%s]}'
        % json.dumps(
            {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest(b""), "size": 0}
        ).encode()
    )
    image.files["index.json"] = index
    image.files[f"blobs/sha256/{digest(b'').partition(':')[2]}"] = b""
    return image


def a_digest_that_is_a_path() -> ImageFiles:
    image = make_oci([LAYER])
    index = index_of(image)
    index["manifests"] = [{"mediaType": "", "digest": "sha256:../../../../etc/passwd", "size": 1}]
    image.files["index.json"] = json.dumps(index).encode()
    return image


def another_machine() -> ImageFiles:
    image = make_oci([LAYER])
    entry = json.loads(image.files["index.json"])["manifests"][0]
    entry["platform"] = {"os": "linux", "architecture": "s390x"}
    image.files["index.json"] = json.dumps({"manifests": [entry]}).encode()
    return image


def a_document_without_end() -> ImageFiles:
    return ImageFiles({"index.json": b" " * (5 << 20)})


def too_many_layers() -> ImageFiles:
    return make_docker([LAYER] * 129)


LYING: list[tuple[Callable[[], ImageFiles], str]] = [
    (wrong_config, "damaged"),
    (wrong_manifest, "damaged"),
    (wrong_layer, "damaged"),
    (wrong_diff_id, "damaged"),
    (more_layers_than_the_configuration, "damaged"),
    (a_layer_that_is_not_there, "lacks"),
    (two_images, "one at a time"),
    (an_index_of_itself, "cannot be read"),
    (a_digest_that_is_a_path, "not a digest"),
    (another_machine, "s390x"),
    (a_document_without_end, "larger than"),
    (too_many_layers, "at most 128"),
]


@pytest.mark.parametrize(("make", "says"), LYING, ids=[make.__name__ for make, _ in LYING])
def test_is_refused_and_nothing_is_kept(
    store: ImageStore, tmp_path: Path, make: Callable[[], ImageFiles], says: str
) -> None:
    with pytest.raises(ImageInvalid, match=says):
        store.load(make().write(tmp_path / "image.tar"), "lying")
    store.layers.collect()
    assert store.list() == []
    assert list(store.layers.path.iterdir()) == []
    assert list(store.path.iterdir()) == []


def test_links_in_an_archive_lead_to_its_own_members_only(store: ImageStore, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        for name, target in (("index.json", "/etc/passwd"), ("manifest.json", "../../../etc/passwd")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    record = store.load(tmp_path / "image.tar", "links")  # a root file system that has links of these names
    assert (store.layers.data(record.layers[0]) / "root" / "index.json").is_symlink()


def test_a_directory_gives_no_file_through_a_link(store: ImageStore, tmp_path: Path) -> None:
    image = make_oci([LAYER], how="none")
    image.write_directory(tmp_path / "layout")
    blob = tmp_path / "layout" / blob_of(image, b"hello")
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ImageInvalid, match="lacks"):
        store.load(tmp_path / "layout", "linked")


@pytest.mark.parametrize("name", ["/{}/elsewhere", "../elsewhere", "linked/elsewhere", "a\0b"])
@pytest.mark.parametrize("place", ["Config", "Layers"])
def test_a_directory_gives_no_file_that_is_not_in_it(store: ImageStore, tmp_path: Path, name: str, place: str) -> None:
    make_docker([LAYER]).write_directory(tmp_path / "image")
    (tmp_path / "image" / "linked").symlink_to(tmp_path)
    saved = json.loads((tmp_path / "image" / "manifest.json").read_bytes())
    inside = tmp_path / "image" / (saved[0]["Config"] if place == "Config" else saved[0]["Layers"][0])
    inside.rename(tmp_path / "elsewhere")
    named = name.format(str(tmp_path).lstrip("/"))
    saved[0][place] = named if place == "Config" else [named]
    (tmp_path / "image" / "manifest.json").write_text(json.dumps(saved))
    with pytest.raises(ImageInvalid, match="not its own"):
        store.load(tmp_path / "image", "outside")


def test_a_sparse_member_of_an_archive_is_refused(store: ImageStore, tmp_path: Path) -> None:
    """Its content is not where that of another file would be: what follows it would be found elsewhere."""
    facts = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": "9000"}
    (tmp_path / "image.tar").write_bytes(make_layer([Item("s", b"1\n0\n0\n".ljust(512, b"\0"), pax=facts)]))
    with pytest.raises(ImageInvalid, match="sparse"):
        store.load(tmp_path / "image.tar", "sparse")


@pytest.mark.parametrize("size", ["1048577", str((1 << 62) - 1), str(1 << 62), "9" * 30])
def test_a_sparse_member_takes_no_more_than_it_has(tmp_path: Path, size: str) -> None:
    """One that says it is larger than a file can be is refused; another has holes."""
    facts = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "huge", "GNU.sparse.realsize": size}
    layer = make_layer([Item("s", b"1\n0\n0\n".ljust(512, b"\0"), pax=facts)])
    try:
        unpack_layer(str(tmp_path), [], LayerStream(io.BytesIO(layer)), root=None)
    except (Refused, OSError):
        assert int(size) > 1 << 40
        return
    assert (tmp_path / "huge").stat().st_size == int(size)
    assert (tmp_path / "huge").stat().st_blocks * 512 < 1 << 16


def test_a_member_that_is_larger_than_its_archive_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("huge")
    info.size = 1 << 40
    layer = info.tobuf(tarfile.GNU_FORMAT) + b"x" * 1000
    with pytest.raises(Refused, match="ends in the middle"):
        unpack_layer(str(tmp_path), [], LayerStream(io.BytesIO(layer)), root=None)


def test_more_entries_than_may_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_unpack, "MOST_ENTRIES", 10)
    layer = make_layer([Item(f"f{number}") for number in range(11)])
    with pytest.raises(OSError, match="more than may be"):
        unpack_layer(str(tmp_path), [], LayerStream(io.BytesIO(layer)), root=None)


def test_directories_that_no_entry_names_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_unpack, "MOST_ENTRIES", 200)
    deep = "/".join(["d"] * 150)
    for name, most in (("once", 1), ("twice", 2)):
        (tmp_path / name).mkdir()
        layer = make_layer([directory(f"{number}/{deep}") for number in range(most)])
        with pytest.raises(OSError, match="more than may be") if most > 1 else nullcontext():
            unpack_layer(str(tmp_path / name), [], LayerStream(io.BytesIO(layer)), root=None)


def test_a_killed_load_leaves_what_is_collected(store: ImageStore, tmp_path: Path) -> None:
    building = store.layers.building()
    (building / "data").mkdir()
    os.symlink("/etc", building / "data" / "link")
    store.load(make_oci([make_layer([symlink("a", "b")])]).write(tmp_path / "image.tar"), "other")
    store.layers.collect()
    assert not building.exists()
    assert Path("/etc/passwd").exists()
