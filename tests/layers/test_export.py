"""Exports to a directory, a file and a bucket: incremental, verified, and never half."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cove.archive.stream import Stream
from cove.core.snapshot_index import IndexedLayer, SnapshotIndex, layer_file
from cove.errors import CoveError, FileNotFound, ServiceNotResponding, ValidationFailed
from cove.layers.bucket import Bucket
from cove.layers.changes import find_changes
from cove.layers.export import Export, Transfer, export_snapshot, load_layer, read_index
from cove.layers.places import DirectoryOrigin, DirectoryPlace, FileOrigin, FilePlace, Origin, Place
from cove.layers.record import Snapshot
from cove.layers.store import LayerStore
from cove.model import ExportInfo, TransferProgress

FACTS = SnapshotIndex(version=1, created_at=datetime(2026, 1, 1, tzinfo=UTC), layers=(), name="n", labels={"a": "b"})


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    """The data of two layers; the upper one deletes and adds."""
    lower, upper = tmp_path / "l0", tmp_path / "l1"
    for top in (lower, upper):
        (top / "workspace").mkdir(parents=True)
    for number in range(20):
        (lower / "workspace" / f"f{number}").write_bytes(os.urandom(5000))
    (lower / "workspace" / "text").write_text("same line\n" * 100_000)
    os.mknod(upper / "workspace" / "f0", 0o020000, os.makedev(0, 0))
    (upper / "workspace" / "new").write_text("new")
    return [lower, upper]


def export(
    place: Place,
    layers: list[Path],
    working: Path,
    known: dict[Path, IndexedLayer] | None = None,
    id: str = "one",
    transfer: Transfer | None = None,
) -> ExportInfo:
    working.mkdir(exist_ok=True)
    going = Export(place, working, transfer or Transfer(len(layers)))
    return export_snapshot(going, id, FACTS, [(data, (known or {}).get(data)) for data in layers])


def load(origin: Origin, to: Path) -> tuple[SnapshotIndex, list[Path]]:
    index = read_index(origin)
    made = []
    for number, layer in enumerate(index.layers):
        data = to / str(number)
        data.mkdir(parents=True)
        load_layer(origin, layer, data, Transfer(len(index.layers)))
        made.append(data)
    return index, made


def check_loaded(index: SnapshotIndex, made: list[Path], layers: list[Path], info: ExportInfo) -> None:
    assert (index.name, index.labels, index.digest) == ("n", {"a": "b"}, info.digest)
    assert find_changes(layers, []) == []
    for old, new in zip(layers, made, strict=True):
        assert find_changes([old], [new]) == []
    assert [each.path for each in find_changes(made[:1], made[1:])] == ["/workspace/f0", "/workspace/new"]


def test_an_export_to_a_directory_is_loaded_and_incremental(layers: list[Path], tmp_path: Path) -> None:
    place, told = tmp_path / "out", list[TransferProgress]()
    info = export(DirectoryPlace(place), layers, tmp_path / "w", transfer=Transfer(2, told.append))
    assert (info.layers, info.sent_layers) == (2, 2)
    assert info.sent_bytes == sum(path.stat().st_size for path in (place / "layers").iterdir()) < 500_000
    assert told[-1] == TransferProgress(layers=2, total_layers=2, bytes=told[-1].bytes)
    assert told[-1].bytes > 1_000_000
    check_loaded(*load(DirectoryOrigin(place), tmp_path / "in"), layers, info)
    index = read_index(DirectoryOrigin(Path(info.location)))
    known = dict(zip(layers, index.layers, strict=True))
    third = tmp_path / "l2"
    (third / "workspace").mkdir(parents=True)
    again = export(DirectoryPlace(place), [*layers, third], tmp_path / "w2", known, "two")
    assert (again.layers, again.sent_layers) == (3, 1)
    unknown = export(DirectoryPlace(place), layers, tmp_path / "w3", id="three")
    assert (unknown.sent_layers, unknown.digest) == (0, info.digest)
    with pytest.raises(ValidationFailed, match="3 exports"):
        DirectoryOrigin(place)
    check_loaded(*load(DirectoryOrigin(Path(info.location)), tmp_path / "in2"), layers, info)


def test_an_export_to_one_file_is_loaded_from_any_stream(layers: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.tar"
    info = export(FilePlace(path), [*layers, layers[1]], tmp_path / "w")
    assert (info.location, info.layers, info.sent_layers) == (str(path), 3, 2)
    assert os.listdir(path.parent) == ["state.tar"]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        origin = FileOrigin(Stream(descriptor))
        index = read_index(origin)
        first, second = (tmp_path / name for name in ("a", "b"))
        for layer, data in zip(index.layers, (first, second), strict=False):
            data.mkdir()
            load_layer(origin, layer, data, Transfer(2))
    finally:
        os.close(descriptor)
    assert find_changes([layers[0]], [first]) == []
    assert find_changes([layers[1]], [second]) == []


def test_a_layer_that_is_there_already_is_passed_over_in_a_file(layers: list[Path], tmp_path: Path) -> None:
    export(FilePlace(tmp_path / "state.tar"), layers, tmp_path / "w")
    descriptor = os.open(tmp_path / "state.tar", os.O_RDONLY)
    try:
        origin = FileOrigin(Stream(descriptor))
        index = read_index(origin)
        (tmp_path / "b").mkdir()
        load_layer(origin, index.layers[1], tmp_path / "b", Transfer(1))
    finally:
        os.close(descriptor)
    assert find_changes([layers[1]], [tmp_path / "b"]) == []


def test_damaged_files_are_refused(layers: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "out"
    info = export(DirectoryPlace(place), layers, tmp_path / "w")
    first, second = (place / layer_file(layer.digest) for layer in read_index(DirectoryOrigin(place)).layers)
    whole = first.read_bytes()
    attacks: list[Callable[[], object]] = [
        lambda: first.write_bytes(whole[:-10]),
        lambda: first.write_bytes(whole + b"x"),
        lambda: first.write_bytes(whole[:1000] + b"xxxx" + whole[1004:]),
        lambda: first.write_bytes(second.read_bytes()),
        lambda: first.write_bytes(b""),
        lambda: (first.unlink(), os.mkfifo(first))[1],  # type: ignore[func-returns-value]  # two steps
        lambda: first.unlink(),
    ]
    for number, attack in enumerate(attacks):
        attack()
        with pytest.raises(CoveError):
            load(DirectoryOrigin(place), tmp_path / f"in{number}")
    first.write_bytes(whole)
    check_loaded(*load(DirectoryOrigin(place), tmp_path / "in"), layers, info)


def test_a_bomb_in_an_export_is_stopped(tmp_path: Path) -> None:
    bomb = subprocess.run(
        ["sh", "-c", "head -c 300M /dev/zero | zstd -19 -q 2> /dev/null || true"], capture_output=True, check=True
    ).stdout
    if not bomb:
        pytest.skip("zstd is not installed")
    digest = "sha256:" + "0" * 64
    place = tmp_path / "out"
    (place / "layers").mkdir(parents=True)
    (place / "snapshots").mkdir()
    (place / layer_file(digest)).write_bytes(bomb)
    record = {"version": 1, "created_at": "2026-01-01T00:00:00Z", "layers": [{"digest": digest, "size": 1000}]}
    (place / "snapshots" / "x.json").write_text(json.dumps(record))
    with pytest.raises(ValidationFailed):
        load(DirectoryOrigin(place), tmp_path / "in")


def test_what_is_no_export_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFound):
        DirectoryOrigin(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValidationFailed, match="no index"):
        read_index(DirectoryOrigin(tmp_path / "x.json"))
    with open("/dev/zero", "rb", buffering=0) as endless, pytest.raises(ValidationFailed):
        read_index(FileOrigin(Stream(endless.fileno())))


class Told(Exception):
    """The caller gives up."""


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_an_export_that_is_given_up_leaves_nothing_half(layers: list[Path], tmp_path: Path, kind: str) -> None:
    for steps in (0, 5, 10, 20, 24, 26, 28, 30):
        left = steps

        def check() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Told

        out = tmp_path / f"{kind}{steps}" / "out"
        place = DirectoryPlace(out) if kind == "directory" else FilePlace(out)
        with suppress(Told):
            export(place, layers, tmp_path / f"w-{kind}{steps}", transfer=Transfer(2, check=check))
        files = [path for path in (tmp_path / f"{kind}{steps}").rglob("*") if path.is_file()]
        assert not [path for path in files if path.name.startswith(".")]
        if any(path.suffix == ".json" for path in files):
            load(DirectoryOrigin(out), tmp_path / f"in-{kind}{steps}")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket of a real server."""
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    address = ""
    while "http://" not in address:
        address = server.stderr.readline()
        assert address, "the server ended"
    endpoint = "http://" + address.split("http://")[1].split()[0]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "secret-of-mine"),
            ("AWS_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        request = urllib.request.Request(f"{endpoint}/exports", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        Bucket("s3://exports").has("x")  # starts the threads of the client, which end with this program
        yield "s3://exports/team/a"
    server.kill()
    server.wait()
    server.stderr.close()


def test_an_export_to_a_bucket_is_loaded_and_incremental(layers: list[Path], tmp_path: Path, bucket: str) -> None:
    (layers[0] / "workspace" / "large").write_bytes(os.urandom(20 << 20))
    info = export(Bucket(bucket), layers, tmp_path / "w")
    assert (info.sent_layers, info.location) == (2, f"{bucket}/snapshots/one.json")
    check_loaded(*load(Bucket(bucket), tmp_path / "in"), layers, info)
    again = export(Bucket(bucket), layers, tmp_path / "w2", id="two")
    assert (again.sent_layers, again.digest) == (0, info.digest)
    with pytest.raises(ValidationFailed, match="2 exports"):
        Bucket(bucket).index()
    check_loaded(*load(Bucket(info.location), tmp_path / "in2"), layers, info)


def test_a_bucket_that_is_not_there_is_told_without_secrets(
    layers: list[Path], tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFound):
        Bucket(f"{bucket}/nothing").index()
    with pytest.raises(CoveError) as failure:
        export(Bucket("s3://missing/x"), layers, tmp_path / "w")
    assert "secret-of-mine" not in str(failure.value)
    for url in ("s3://", "http://x/y", "s3://user:key@bucket/x", "s3://b/x?y=z"):
        with pytest.raises(ValidationFailed):
            Bucket(url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ServiceNotResponding):
        export(Bucket(bucket), layers, tmp_path / "w3")


def test_an_upload_that_is_given_up_names_nothing(layers: list[Path], tmp_path: Path, bucket: str) -> None:
    (layers[0] / "workspace" / "large").write_bytes(os.urandom(30 << 20))

    def check() -> None:
        if (tmp_path / "w").exists() and any(path.suffix == ".zst" for path in (tmp_path / "w").iterdir()):
            raise Told

    with pytest.raises(Told):
        export(Bucket(f"{bucket}/given-up"), layers, tmp_path / "w", transfer=Transfer(2, check=check))
    with pytest.raises(FileNotFound):
        Bucket(f"{bucket}/given-up").index()


def test_a_record_without_a_time_zone_spoils_no_list(tmp_path: Path) -> None:
    store = LayerStore(tmp_path)
    store.open()
    for number, zone in enumerate((UTC, None, UTC)):
        made_at = datetime(2026, 1, 3 - number, tzinfo=zone)
        store.keep(Snapshot(id=f"s{number}", created_at=made_at, layers=()))
    record = (tmp_path / "snapshots" / "s1.json").read_bytes()
    (tmp_path / "snapshots" / "s1.json").write_bytes(record.replace(b"00:00:00Z", b"00:00:00"))
    assert [each.id for each in store.list()] == ["s2", "s1", "s0"]
