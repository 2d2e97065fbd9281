"""Exports and changes of a large tree, each beside what the host itself needs."""

import os
import random
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench.harness import Figure, Plan, Unit, at_most, interleave, timed_blocking
from cove.core.snapshot_index import SnapshotIndex
from cove.layers.changes import find_changes
from cove.layers.digest import layer_digest
from cove.layers.export import Export, Transfer, export_snapshot, load_layer, read_index
from cove.layers.places import DirectoryOrigin, DirectoryPlace

_FILES = 20_000
_BYTES = 1 << 30
_CHANGED = 1200
_FACTS = SnapshotIndex(version=1, created_at=datetime.now(UTC), layers=())


async def run(plan: Plan) -> list[Figure]:
    """Pack, load and compare a tree of 1 GB in 20 000 files."""
    place = Path(tempfile.mkdtemp(prefix="cove-bench-", dir="/tmp"))
    try:
        _fill(place / "lower" / "workspace", plan.times(_FILES, 2000), plan.times(_BYTES, 100 << 20))
        return [*await _changes(place, plan), *await _exports(place, plan)]
    finally:
        shutil.rmtree(place)


def _fill(top: Path, files: int, size: int) -> None:
    """Half of each file is random, half repeats, as code and data do."""
    for number in range(files):
        path = top / f"d{number // 100}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.randbytes(size // files // 2) + b"0123456789abcdef" * (size // files // 32))


async def _changes(place: Path, plan: Plan) -> list[Figure]:
    lower, upper = place / "lower", place / "upper"
    for number in range(_CHANGED):
        path = Path("workspace") / f"d{number % 20}" / f"f{number % 20 * 100 + number // 20}"
        (upper / path).parent.mkdir(parents=True, exist_ok=True)
        (upper / path).write_bytes(random.randbytes(20_000))
    same = place / "same"
    shutil.copytree(upper, same)
    _make_equal(lower, same)
    changed, equal, walk = await interleave(
        [
            timed_blocking(lambda: find_changes([lower], [upper])),
            timed_blocking(lambda: find_changes([lower], [same])),
            timed_blocking(partial(_walk, upper)),
        ],
        repetitions=plan.times(20, 5),
    )
    floor_name = f"walk and lstat of {_CHANGED} files"
    return [
        Figure(
            name=f"state: changes of {_CHANGED} files",
            unit=Unit.SECONDS,
            subject=changed,
            floor=walk,
            floor_name=floor_name,
            target=at_most(3.0),
        ),
        Figure(
            name=f"state: changes of {_CHANGED} files with equal contents",
            unit=Unit.SECONDS,
            subject=equal,
            floor=walk,
            floor_name=floor_name,
        ),
    ]


def _make_equal(lower: Path, same: Path) -> None:
    for path in same.rglob("*"):
        if path.is_file() and (lower / path.relative_to(same)).exists():
            shutil.copy2(lower / path.relative_to(same), path)


def _walk(top: Path) -> None:
    for where, _, names in os.walk(top):
        for name in names:
            os.lstat(os.path.join(where, name))


async def _exports(place: Path, plan: Plan) -> list[Figure]:
    lower = place / "lower"
    export, again, load, digest, tar, untar = await interleave(
        [
            timed_blocking(lambda: _export(place)),
            timed_blocking(lambda: _export_again(place)),
            timed_blocking(lambda: _load(place)),
            timed_blocking(lambda: layer_digest(lower)),
            timed_blocking(lambda: _tar(place, "rm -f t.zst; tar -C lower -c . | zstd -q -3 -T2 -o t.zst")),
            timed_blocking(lambda: _tar(place, "rm -rf u; mkdir u; zstd -q -d -c t.zst | tar -C u -x")),
        ],
        repetitions=plan.times(3, 2),
    )
    rows = (
        ("export", export, tar, "tar | zstd -3 -T2", at_most(2.5)),
        ("export again, nothing new", again, tar, "tar | zstd -3 -T2", at_most(0.1)),
        ("digest", digest, tar, "tar | zstd -3 -T2", None),
        ("load", load, untar, "zstd -d | tar -x", at_most(2.5)),
    )
    return [
        Figure(name=f"state: {name}", unit=Unit.SECONDS, subject=subject, floor=floor, floor_name=text, target=target)
        for name, subject, floor, text, target in rows
    ]


def _export(place: Path) -> None:
    shutil.rmtree(place / "out", ignore_errors=True)
    shutil.rmtree(place / "working", ignore_errors=True)
    (place / "working").mkdir()
    going = Export(DirectoryPlace(place / "out"), place / "working", Transfer(1))
    export_snapshot(going, "x", _FACTS, [(place / "lower", None)])


def _export_again(place: Path) -> None:
    if not (place / "out").exists():
        _export(place)
    index = read_index(DirectoryOrigin(place / "out"))
    going = Export(DirectoryPlace(place / "out"), place / "working", Transfer(1))
    export_snapshot(going, "x", _FACTS, [(place / "lower", index.layers[0])])


def _load(place: Path) -> None:
    shutil.rmtree(place / "in", ignore_errors=True)
    (place / "in").mkdir()
    origin = DirectoryOrigin(place / "out")
    load_layer(origin, read_index(origin).layers[0], place / "in", Transfer(1))


def _tar(place: Path, script: str) -> None:
    subprocess.run(["sh", "-c", script], cwd=place, check=True)
