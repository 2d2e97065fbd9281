"""Images: load beside tar and sha256sum, create beside the host's system, and steps of a build that are cached."""

import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from bench.harness import Figure, Plan, Skipped, Unit, at_most, interleave, summarize, timed_blocking, value_at_most
from bench.server import server
from cove import AsyncImage, AsyncSandbox
from cove.local.state import default_home
from cove.model import BuildEvent, BuildStep

_BUSYBOX = Path("/bin/busybox")
_ARCHIVE_BYTES = 142_000_000
_STEPS = 20
_NAME = "bench-image"


async def run(plan: Plan) -> list[Figure]:
    """All parts, in a directory beside the state directory: on the same disk."""
    if not _BUSYBOX.exists():
        raise Skipped("needs a static busybox: Debian's busybox-static")
    beside = default_home().parent
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=beside) as directory:
        archive = Path(directory, "root.tar")
        _write_archive(archive)
        load = await _load(plan, archive, Path(directory))
        image = await AsyncImage.load(archive, name=_NAME)
        try:
            created = await _create(plan, "image: create")
            cached = await _cached(plan, Path(directory, "build"))
        finally:
            await image.delete(force=True)
        return [load, created, await _create_on_server(plan, archive), cached]


def _write_archive(path: Path) -> None:
    """Pack a busybox and as many of this machine's own programs and libraries as the size asks for."""
    with tarfile.open(path, "w") as archive:
        archive.add(_BUSYBOX, "bin/busybox", recursive=False)
        link = tarfile.TarInfo("bin/sh")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        archive.addfile(link)
        for file in _files():
            if path.stat().st_size > _ARCHIVE_BYTES:
                break
            archive.add(file, file.lstrip("/"), recursive=False)


def _files() -> Iterator[str]:
    for top in ("/usr/share", "/usr/lib"):
        for parent, _, names in os.walk(top):
            for name in sorted(names):
                file = os.path.join(parent, name)
                if os.path.isfile(file) and not os.path.islink(file) and os.access(file, os.R_OK):
                    yield file


async def _load(plan: Plan, archive: Path, directory: Path) -> Figure:
    async def load() -> float:
        began = time.perf_counter()
        image = await AsyncImage.load(archive, name=f"{_NAME}-load")
        seconds = time.perf_counter() - began
        await image.delete()
        return seconds

    def unpack() -> None:
        subprocess.run(["sha256sum", archive], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["tar", "xf", archive, "-C", target], check=True)

    target = directory / "unpacked"
    target.mkdir()
    floor = timed_blocking(unpack)

    async def clean() -> float:
        seconds = await floor()
        shutil.rmtree(target)
        target.mkdir()
        return seconds

    subject, plain = await interleave([load, clean], repetitions=plan.times(7, 3))
    return Figure(
        name=f"image: load {archive.stat().st_size // 1_000_000} MB",
        unit=Unit.SECONDS,
        subject=subject,
        floor=plain,
        floor_name="tar x, sha256sum",
        target=at_most(3),
    )


async def _create(plan: Plan, name: str, url: str | None = None) -> Figure:
    async def create(image: str) -> float:
        began = time.perf_counter()
        sandbox = await AsyncSandbox.create(image=image, url=url)
        seconds = time.perf_counter() - began
        await sandbox.destroy()
        return seconds

    subject, floor = await interleave(
        [lambda: create(_NAME), lambda: create("host")], repetitions=plan.times(40, 12), warm_up=2
    )
    return Figure(
        name=name,
        unit=Unit.SECONDS,
        subject=subject,
        floor=floor,
        floor_name="create on the host's system",
        target=value_at_most(floor.p50 + (0.010 if os.geteuid() == 0 else 0.005)),
        facts={"added_seconds": subject.p50 - floor.p50},
    )


async def _create_on_server(plan: Plan, archive: Path) -> Figure:
    """Without a warm pool, which would serve the host's system alone.

    No limit on processors either: what runs at a priority of real time may not be in a group that has one.
    """
    before = os.environ.get("COVE_HOME")
    settings = archive.with_name("cove.toml")
    settings.write_text('[default_limits]\ncpus = "unlimited"\n')
    with server("--warm", "0", "--config", str(settings)) as (url, home, _):
        os.environ["COVE_HOME"] = home
        try:
            await AsyncImage.load(archive, name=_NAME, url=url)
            return await _create(plan, "image: create on a server", url)
        finally:
            os.environ.pop("COVE_HOME")
            os.environ.update({} if before is None else {"COVE_HOME": before})


async def _cached(plan: Plan, directory: Path) -> Figure:
    directory.mkdir()
    steps = "".join(f'RUN ["/bin/sh", "-c", "echo {number} > /file-{number}"]\n' for number in range(_STEPS))
    (directory / "Dockerfile").write_text(f"FROM {_NAME}\n{steps}")

    async def build(name: str, *, cache: bool) -> list[float]:
        moments: list[float] = []

        def note(event: BuildEvent) -> None:
            if isinstance(event, BuildStep):
                moments.append(time.perf_counter())

        image = await AsyncImage.build(str(directory), name=name, cache=cache, progress=note)
        await image.delete()
        return [later - before for before, later in pairwise(moments)]

    done = await build(f"{_NAME}-built", cache=False)
    cached = [each for _ in range(plan.times(10, 3)) for each in await build(f"{_NAME}-built", cache=True)]
    return Figure(
        name="image: a step of a build that is cached",
        unit=Unit.SECONDS,
        subject=summarize(cached),
        floor=summarize(done),
        floor_name="the step itself, `echo`",
        target=value_at_most(0.020),
    )
