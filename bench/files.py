"""Files: small ones, large ones, many of them, each beside what the host itself needs."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.fresh import Value, run_fresh_beside
from bench.harness import (
    Figure,
    Plan,
    Unit,
    at_least,
    interleave,
    rate,
    single,
    timed,
    timed_blocking,
    value_at_most,
)
from bench.proc import peak_bytes, reset_peak
from cove import AsyncSandbox

_SMALL = b"x" * 1024
_ENTRIES = 10_000
_MEMORY_LIMIT = 64e6


async def run(plan: Plan) -> list[Figure]:
    """Latency of small files, throughput of large ones, listings."""
    place = Path(tempfile.mkdtemp(prefix="cove-bench-", dir="/tmp"))
    try:
        async with AsyncSandbox.create() as sandbox:
            return [
                *await _small(sandbox, place, plan),
                *await _listing(sandbox, place, plan),
                *await _large(sandbox, place, plan),
                *await _memory(plan),
            ]
    finally:
        shutil.rmtree(place)


async def _small(sandbox: AsyncSandbox, place: Path, plan: Plan) -> list[Figure]:
    files = sandbox.files
    await files.write("small", _SMALL)
    (place / "small").write_bytes(_SMALL)
    summaries = await interleave(
        [
            timed(lambda: files.read("small")),
            timed_blocking((place / "small").read_bytes),
            timed(lambda: files.write("small", _SMALL)),
            timed_blocking(lambda: _write_by_rename(place)),
            timed(lambda: files.exists("small")),
            timed_blocking((place / "small").exists),
        ],
        repetitions=plan.times(1000, 200),
        warm_up=20,
    )
    rows = (
        ("read 1 KB", "host: read", 0.0005),
        ("write 1 KB", "host: create, write, rename", 0.0005),
        ("exists", "host: stat", 0.0005),
    )
    return [
        Figure(
            name=f"files: {name}",
            unit=Unit.SECONDS,
            subject=summaries[2 * at],
            floor=summaries[2 * at + 1],
            floor_name=floor,
            target=value_at_most(limit),
        )
        for at, (name, floor, limit) in enumerate(rows)
    ]


def _write_by_rename(place: Path) -> None:
    building = place / "building"
    building.write_bytes(_SMALL)
    building.rename(place / "small")


async def _listing(sandbox: AsyncSandbox, place: Path, plan: Plan) -> list[Figure]:
    (await sandbox.exec(f"mkdir many; cd many; seq {_ENTRIES} | xargs touch")).check()
    (place / "many").mkdir()
    for number in range(_ENTRIES):
        (place / f"many/{number}").touch()
    flat, deep, floor = await interleave(
        [
            timed(lambda: sandbox.files.list("many")),
            timed(lambda: sandbox.files.list("many", recursive=True)),
            timed_blocking(lambda: [entry.stat(follow_symlinks=False) for entry in os.scandir(place / "many")]),
        ],
        repetitions=plan.times(30, 10),
    )
    return [
        Figure(
            name=f"files: {name} of {_ENTRIES} entries",
            unit=Unit.SECONDS,
            subject=subject,
            floor=floor,
            floor_name="host: scandir and stat",
            target=value_at_most(0.15),
        )
        for name, subject in (("list", flat), ("recursive list", deep))
    ]


async def _large(sandbox: AsyncSandbox, place: Path, plan: Plan) -> list[Figure]:
    size = plan.times(1 << 30, 1 << 28)
    tree = place / "tree"
    tree.mkdir()
    with (tree / "big").open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
    files = sandbox.files
    await files.upload(tree, "tree")

    def copy() -> None:
        subprocess.run(["cp", tree / "big", place / "copy"], check=True)
        (place / "copy").unlink()

    async def upload(tree_or_file: Path) -> None:
        await files.upload(tree_or_file, "up")
        await (files.remove_tree("up") if tree_or_file.is_dir() else files.remove("up"))

    async def download(path: str) -> None:
        await files.download(path, place / "down")
        shutil.rmtree(place / "down") if (place / "down").is_dir() else (place / "down").unlink()

    labels = ("upload of a file", "download of a file", "upload of a tree", "download of a tree")
    *subjects, floor = await interleave(
        [
            rate(size, timed(lambda: upload(tree / "big"))),
            rate(size, timed(lambda: download("tree/big"))),
            rate(size, timed(lambda: upload(tree))),
            rate(size, timed(lambda: download("tree"))),
            rate(size, timed_blocking(copy)),
        ],
        repetitions=plan.times(5, 3),
        unit=Unit.BYTES_PER_SECOND,
    )
    return [
        Figure(
            name=f"files: {label}, {size >> 20} MiB",
            unit=Unit.BYTES_PER_SECOND,
            subject=subject,
            floor=floor,
            floor_name="host: cp",
            target=at_least(0.5),
        )
        for label, subject in zip(labels, subjects, strict=True)
    ]


async def _memory(plan: Plan) -> list[Figure]:
    size = plan.times(1 << 30, 1 << 28)
    found = await run_fresh_beside("bench.files", "measure_memory", size)
    return [
        Figure(
            name=f"files: memory growth, {size >> 20} MiB up and down as a tree",
            unit=Unit.BYTES,
            subject=single(float(found["growth"] or 0)),
            target=value_at_most(_MEMORY_LIMIT),
        )
    ]


async def measure_memory(size: int) -> dict[str, Value]:
    """How far the memory of this process rises above what it used before."""
    with tempfile.TemporaryDirectory(prefix="cove-bench-", dir="/tmp") as place:
        os.mkdir(f"{place}/in")
        with open(f"{place}/in/big", "wb") as file:
            file.truncate(size)
        async with AsyncSandbox.create() as sandbox:
            await sandbox.files.write("warm", b"up")
            before = reset_peak()
            await sandbox.files.upload(f"{place}/in", "tree")
            await sandbox.files.download("tree", f"{place}/out")
            return {"growth": peak_bytes() - before}
