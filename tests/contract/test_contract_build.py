"""Builds of images, in this program and on a server: the same Dockerfiles, the same answers, and nothing left."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.servers import Server, left_behind
from support.serving import Where

from cove import AsyncImage, AsyncSandbox, BuildEvent, BuildOutput, BuildStep, NetworkPolicy
from cove.errors import BuildFailed, ImageNotFound, ValidationFailed
from cove.model import Limits

pytestmark = [pytest.mark.anyio, needs_busybox]


@pytest.fixture
async def base(where: Where, shared_server: Server, cove_home: Path, tmp_path: Path) -> AsyncIterator[str]:
    home = cove_home if not where else shared_server.home
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar"), name="build-base", **where)
    yield "build-base"
    for info in await AsyncImage.list(**where):
        if info.name.startswith(("made", "build-base")):
            await (await AsyncImage.get(info.name, **where)).delete()
    assert image.name not in {each.name for each in await AsyncImage.list(**where)}
    await AsyncImage.prune(**where)
    assert not [name for name in os.listdir(home / "layers") if name.startswith(".new-")]
    assert left_behind(shared_server.home) == []


@pytest.fixture
def context(tmp_path: Path, base: str) -> Path:
    path = tmp_path / "context"
    path.mkdir()
    return path


def write(directory: Path, text: str, **files: str) -> str:
    (directory / "Dockerfile").write_text(text)
    for name, content in files.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return str(directory)


async def run(where: Where, command: str, image: str = "made") -> str:
    async with AsyncSandbox.create(image=image, **where) as sandbox:
        return (await sandbox.exec(command)).stdout


async def test_a_directory_is_built_and_its_steps_are_told(where: Where, context: Path) -> None:
    told: list[BuildEvent] = []
    text = "FROM build-base\nARG WHO\nENV WHO=$WHO\nCOPY a d /srv/\nRUN cat /srv/a; echo wrong >&2; printf '\\377'\n"
    directory = write(context, text, a="file\n", d__b="b")
    (context / "link").symlink_to("/etc/passwd")
    os.chmod(context / "a", 0o750)
    image = await AsyncImage.build(directory, name="made", build_args={"WHO": "you"}, progress=told.append, **where)
    assert image.name == "made:latest"
    steps = [(each.number, each.total, each.line, each.is_cached) for each in told if isinstance(each, BuildStep)]
    assert steps == [(1, 3, 3, False), (2, 3, 4, False), (3, 3, 5, False)]
    output = {
        stream: b"".join(e.data for e in told if isinstance(e, BuildOutput) and e.stream == stream)
        for stream in ("stdout", "stderr")
    }
    assert output == {"stdout": b"file\n\xff", "stderr": b"wrong\n"}
    assert await run(where, "cat /srv/a /srv/b; busybox stat -c %a /srv/a; echo $WHO") == "file\nb750\nyou\n"
    told.clear()
    await AsyncImage.build(directory, name="made", build_args={"WHO": "you"}, progress=told.append, **where)
    assert [each.is_cached for each in told if isinstance(each, BuildStep)] == [False, True, True]


async def test_what_is_ignored_is_not_copied_and_the_dockerfile_may_be(where: Where, context: Path) -> None:
    rules = "*\n!kept\n!d/kept\nd/not\n"
    directory = write(
        context, "", kept="1", other="2", d__kept="3", d__not="4", files__Recipe="FROM build-base\nCOPY . /srv/\n"
    )
    (context / ".dockerignore").write_text(rules)
    await AsyncImage.build(directory, name="made", dockerfile="files/Recipe", **where)
    assert sorted((await run(where, "busybox find /srv -type f")).split()) == ["/srv/d/kept", "/srv/kept"]


async def test_a_dockerfile_may_be_elsewhere_and_is_no_part_of_the_directory(
    where: Where, context: Path, tmp_path: Path
) -> None:
    directory = write(context, "not this one", a="1")
    recipe = tmp_path / "Recipe"
    recipe.write_text("FROM build-base\nCOPY . /srv/\nRUN exit 3\n")
    with pytest.raises(BuildFailed, match=f"^{recipe}, line 3: RUN exit 3 failed with exit code 3") as failed:
        await AsyncImage.build(directory, name="made", dockerfile=str(recipe), **where)
    assert (failed.value.line, failed.value.exit_code) == (3, 3)
    recipe.write_text("FROM build-base\nCOPY . /srv/\n")
    await AsyncImage.build(directory, name="made", dockerfile=str(recipe), **where)
    assert (await run(where, "ls -A /srv")).split() == ["Dockerfile", "a"]


async def test_what_cannot_be_built_is_named(where: Where, context: Path) -> None:
    for text, error, says in (
        ("FROM absent-image\nRUN true\n", ImageNotFound, "absent-image"),
        ("FROM build-base\nCOPY missing /\n", BuildFailed, "Dockerfile, line 2.*missing"),
        ("FROM build-base\nCOPY ../x /\n", BuildFailed, "leads out"),
        ("FROM build-base\nWHAT x\n", ValidationFailed, "WHAT|unknown"),
    ):
        with pytest.raises(error, match=says):
            await AsyncImage.build(write(context, text), name="made", **where)
    with pytest.raises(ValidationFailed, match="no other"):
        await AsyncImage.build(str(context), name="made", dockerfile="other", **where)
    with pytest.raises(ValidationFailed, match="directory, or a preset"):
        await AsyncImage.build(name="made", **where)
    with pytest.raises(ValidationFailed, match="cannot read /absent"):
        await AsyncImage.build(str(context), name="made", dockerfile="/absent", **where)
    with pytest.raises(ImageNotFound, match="absent-base"):
        await AsyncImage.build(preset="python", name="made", base="absent-base", **where)
    assert "made:latest" not in {each.name for each in await AsyncImage.list(**where)}


async def test_a_run_reaches_what_was_allowed_and_has_its_limits(where: Where, context: Path) -> None:
    text = "FROM build-base\nRUN busybox wc -l < /etc/resolv.conf; ulimit -n\n"
    told: list[BuildEvent] = []
    await AsyncImage.build(
        write(context, text),
        name="made",
        network=NetworkPolicy(allow=["allowed.example"]),
        limits=Limits(pids=50, open_files=77),
        progress=told.append,
        **where,
    )
    output = b"".join(each.data for each in told if isinstance(each, BuildOutput))
    assert output.splitlines()[:2] == [b"1", b"77"], output


async def test_a_build_that_nobody_waits_for_leaves_nothing(where: Where, context: Path) -> None:
    directory = write(context, "FROM build-base\nRUN echo begun; sleep 1000\n", a="x" * 100_000)
    begun = asyncio.Event()

    def hear(event: BuildEvent) -> None:
        if isinstance(event, BuildOutput):
            begun.set()

    building = asyncio.ensure_future(AsyncImage.build(directory, name="made", progress=hear, **where))
    await begun.wait()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert "made:latest" not in {each.name for each in await AsyncImage.list(**where)}


async def test_the_limit_on_disk_is_one_for_all_steps(where: Where, context: Path) -> None:
    write_mebibytes = "busybox dd if=/dev/urandom of=/{} bs=1M count={} 2> /dev/null"
    steps = "".join(f"RUN {write_mebibytes.format(name, count)}\n" for name, count in (("a", 12), ("b", 12), ("c", 8)))
    directory = write(context, f"FROM build-base\n{steps}")
    with pytest.raises(BuildFailed, match="line 4"):
        await AsyncImage.build(directory, name="made", limits=Limits(disk=32 << 20), cache=False, **where)
    directory = write(context, "FROM build-base\nCOPY a /1\nCOPY a /2\nCOPY a /3\n", a="a" * (3 << 20))
    with pytest.raises(BuildFailed, match=r"line 4.*limit on disk"):
        await AsyncImage.build(directory, name="made", limits=Limits(disk=8 << 20), cache=False, **where)
    await AsyncImage.build(directory, name="made", limits=Limits(disk=16 << 20), cache=False, **where)
