"""Images are built from Dockerfiles: each step once, in a sandbox, and nothing is left of a build that fails."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.image_files import saved_owners
from support.programs import program, read_line, run_program
from support.users import needs_one_user, needs_users

from cove import AsyncImage, AsyncSandbox, Image
from cove.blocking.portal import get_portal
from cove.errors import BuildFailed, ImageNotFound, ValidationFailed
from cove.images.build_cache import BuildCache
from cove.layers.store import LayerStore
from cove.model import BuildEvent, BuildOutput, BuildStep, Limits

# Seconds after which a build is cancelled: while it reads, copies, starts, runs and ends a sandbox, and keeps a layer.
MOMENTS = [0, 0.01, 0.03, *(0.05 + 0.01 * step for step in range(20))]

pytestmark = [pytest.mark.anyio, needs_busybox]


@pytest.fixture(scope="module", autouse=True)
def portal() -> None:
    """The loop of this program lives as long as the program."""
    get_portal()


@pytest.fixture
async def base(tmp_path: Path, cove_home: Path) -> AsyncIterator[str]:
    settings = {"Env": ["FROM_BASE=yes", "PATH=/bin"], "Cmd": ["sh"]}
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar", settings=settings), name="base")
    yield image.name
    for info in await AsyncImage.list():
        await (await AsyncImage.get(info.name)).delete()
    await asyncio.to_thread(BuildCache(cove_home / "images", LayerStore(cove_home)).clear)
    assert os.listdir(cove_home / "layers") == []


class Builder:
    """Builds a directory, and remembers what it heard."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[BuildEvent] = []

    def write(self, text: str, **files: str) -> None:
        (self.directory / "Dockerfile").write_text(text)
        for name, content in files.items():
            (self.directory / name).write_text(content)

    async def build(self, text: str | None = None, **options: object) -> AsyncImage:
        if text is not None:
            self.write(text)
        self.events.clear()
        return await AsyncImage.build(
            str(self.directory),
            **{"name": "made", "progress": self.events.append, **options},  # type: ignore[arg-type]  # of a test
        )

    @property
    def cached(self) -> list[bool]:
        return [event.is_cached for event in self.events if isinstance(event, BuildStep)]

    @property
    def output(self) -> bytes:
        return b"".join(event.data for event in self.events if isinstance(event, BuildOutput))


@pytest.fixture
def builder(tmp_path: Path, base: str) -> Builder:
    path = tmp_path / "context"
    path.mkdir()
    return Builder(path)


async def run(command: str, image: str = "made") -> str:
    async with AsyncSandbox.create(image=image) as sandbox:
        return (await sandbox.exec(command)).stdout


async def test_every_instruction_has_its_effect(builder: Builder) -> None:
    builder.write(
        """
ARG BASE
FROM $BASE AS first
ARG WHO=nobody
ENV GREETING="hello $WHO" PATH=$PATH:/tools
WORKDIR /srv
WORKDIR app
COPY note script .
RUN chmod 755 script && ./script > out && echo "$FROM_BASE ${PATH%%:/run/*} $WHO $(id -u)"
RUN ["/bin/sh", "-c", "cat out; pwd"]
USER web
RUN id -u > ~/who; echo kept > /workspace/kept; echo $HOME
ENTRYPOINT ["/bin/sh", "-c"]
CMD cat out
EXPOSE 80 53/udp
LABEL a=b c="d e"
SHELL ["/bin/busybox", "sh", "-c"]
RUN readlink /proc/self/exe
""",
        note="a note",
        script="#!/bin/sh\ncat note; echo $GREETING\n",
    )
    image = await builder.build(build_args={"BASE": "base", "WHO": "you"})
    assert builder.output.decode().splitlines() == [
        "yes /bin:/tools you 0",
        *("a notehello you", "/srv/app", "/var/web", "/bin/busybox"),
    ]
    info = await image.info()
    assert info.env == ("FROM_BASE=yes", "PATH=/bin:/tools", "GREETING=hello you")
    assert (info.workdir, info.user, info.labels) == ("/srv/app", "web", {"a": "b", "c": "d e"})
    assert (info.entrypoint, info.command) == (("/bin/sh", "-c"), ("/bin/sh", "-c", "cat out"))
    assert await run("cat out ~/who /workspace/kept; pwd; echo $GREETING; cat /etc/resolv.conf") == (
        "a notehello you\n33\nkept\n/srv/app\nhello you\nnameserver 127.0.0.53\n"
    )


@needs_users
async def test_owners_are_those_that_the_steps_say(builder: Builder) -> None:
    builder.write(
        """
FROM base AS one
COPY --chown=web a /data/one
COPY --chown=7:8 a /data/two
COPY a /data/three
RUN cp /data/three /data/four && chown 9:10 /data/four
USER web
RUN touch /data/refused; touch /var/web/mine
FROM base
COPY --from=one --chown=web /data/two /data/
COPY --from=one /data/four /var/web/mine /data/
RUN ls -ln /data /var/web
""",
        a="1",
    )
    await builder.build()
    owners = {line.split()[-1]: line.split()[2:4] for line in builder.output.decode().splitlines() if line[:1] == "-"}
    assert owners == {"two": ["33", "34"], "four": ["9", "10"], "mine": ["33", "34"]}
    assert b"/data/refused: Permission denied" in builder.output
    with pytest.raises(BuildFailed, match=r"line 2: COPY.*no user 'other'"):
        await builder.build("FROM base\nCOPY --chown=other a /\n")


@needs_one_user
async def test_owners_are_recorded_where_all_files_belong_to_one(builder: Builder, tmp_path: Path) -> None:
    builder.write("FROM base AS one\nCOPY --chown=7:8 a /data/one\nFROM base\nCOPY --from=one /data /data\n", a="1")
    image = await builder.build()
    await image.save(tmp_path / "saved.tar")
    assert saved_owners(tmp_path / "saved.tar")["data/one"] == (7, 8)


async def test_stages_copy_from_one_another_and_only_those_that_are_needed_are_built(builder: Builder) -> None:
    text = """
FROM base AS build
RUN mkdir /out && echo made > /out/file && cat /bin/busybox > /out/sh && chmod 755 /out/sh
FROM nowhere AS unneeded
RUN exit 1
FROM scratch AS small
COPY --from=build --chmod=700 /out/ /bin/
COPY --from=0 /out/file /workspace/
FROM small
ENV LAST=1
"""
    info = await (await builder.build(text)).info()
    assert (info.env, info.command) == (("LAST=1",), ())
    assert await run("/bin/sh -c 'read line < /bin/file; echo $line; read line < /workspace/file; echo $line'") == (
        "made\nmade\n"
    )
    small = await (await builder.build(target="small", name="small")).info()
    assert (small.env, small.layers) == ((), info.layers)
    assert builder.cached == [True] * 3
    with pytest.raises(ValidationFailed, match="no stage 'other'"):
        await builder.build(target="other")
    with pytest.raises(ImageNotFound):
        await builder.build(target="unneeded")


async def test_a_step_is_done_again_when_what_it_depends_on_has_changed(builder: Builder) -> None:
    builder.write("FROM base\nARG A=1\nCOPY a /a\nRUN echo one $A > /one\nRUN cat /a > /two\n", a="1", b="1")
    before = await (await builder.build()).info()
    assert builder.cached == [False] * 3
    again = await (await builder.build()).info()
    assert (builder.cached, again.id) == ([True] * 3, before.id)
    builder.write("FROM base\nARG A=1\nCOPY a /a\nRUN echo one $A > /one\nRUN cat /a > /two\n", a="1", b="2")
    (builder.directory / "a").touch()
    await builder.build()
    assert builder.cached == [True] * 3
    await builder.build(build_args={"A": "2"})
    assert builder.cached == [True, False, False]
    builder.write("FROM base\nARG A=1\nCOPY a /a\nRUN echo one $A > /one\nRUN cat /a > /two\n", a="2")
    await builder.build()
    assert builder.cached == [False] * 3
    assert await run("cat /two") == "2"
    await builder.build(cache=False)
    assert builder.cached == [False] * 3


async def test_layers_of_steps_are_kept_by_the_cache_and_go_with_it(builder: Builder, cove_home: Path) -> None:
    image = await builder.build("FROM base\nRUN echo 1 > /one\n")
    await image.delete()
    await builder.build()
    assert builder.cached == [True]
    await image.delete()
    await asyncio.to_thread(BuildCache(cove_home / "images", LayerStore(cove_home)).clear)
    await builder.build()
    assert builder.cached == [False]


async def test_a_step_that_fails_says_where_and_why_and_leaves_no_image(builder: Builder) -> None:
    text = "FROM base\nRUN echo fine\n\nRUN echo out; echo wrong >&2; \\\n  exit 3\n"
    with pytest.raises(BuildFailed, match=r"(?s)line 4: RUN echo out.* failed with exit code 3.*wrong") as caught:
        await builder.build(text)
    assert (caught.value.line, caught.value.exit_code) == (4, 3)
    assert sorted(caught.value.output.split()) == ["out", "wrong"]
    with pytest.raises(ImageNotFound):
        await AsyncImage.get("made")
    with pytest.raises(BuildFailed, match="line 2: RUN"):
        await builder.build('FROM base\nRUN ["/no/program"]\n')
    with pytest.raises(BuildFailed, match="line 2: COPY missing /: missing is not there"):
        await builder.build("FROM base\nCOPY missing /\n")
    with pytest.raises(BuildFailed, match=r"line 2: COPY \.\./x /: \.\./x leads out"):
        await builder.build("FROM base\nCOPY ../x /\n")
    with pytest.raises(BuildFailed, match="line 2: COPY Dockerfile /bin/sh/x: /bin/busybox is no directory"):
        await builder.build("FROM base\nCOPY Dockerfile /bin/sh/x\n")
    with pytest.raises(BuildFailed, match="line 3: RUN true: the image has no user 'somebody'"):
        await builder.build("FROM base\nUSER somebody\nRUN true\n")
    with pytest.raises(ImageNotFound, match="no image other"):
        await builder.build("FROM other\n")


async def test_wrong_requests_say_what_to_do(builder: Builder, tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed, match="no Dockerfile"):
        await builder.build()
    with pytest.raises(ValidationFailed, match="cannot build"):
        await AsyncImage.build(str(tmp_path / "missing"), name="made")
    with pytest.raises(ValidationFailed, match="name"):
        await AsyncImage.build(str(builder.directory))
    with pytest.raises(ValidationFailed, match="not both"):
        await AsyncImage.build()
    with pytest.raises(ValidationFailed, match="python"):
        await AsyncImage.build(preset="perl")
    with pytest.raises(ValidationFailed, match="FROM"):
        await builder.build(base="base")
    (tmp_path / "outside").write_text("FROM base\n")
    (builder.directory / "Dockerfile").symlink_to(tmp_path / "outside")
    with pytest.raises(ValidationFailed, match="no Dockerfile"):
        await builder.build()
    assert (await builder.build(dockerfile=str(tmp_path / "outside"))).name == "made:latest"
    for wrong in ("a\0b", "\ud800"):
        with pytest.raises(ValidationFailed, match="build_args"):
            await builder.build(dockerfile=str(tmp_path / "outside"), build_args={"A": wrong})


async def test_a_build_has_no_network_and_ends_in_time(builder: Builder) -> None:
    await builder.build("FROM base\nRUN ls /sys/class/net 2>/dev/null; cat /proc/net/route\n")
    assert b"00000000" not in builder.output
    with pytest.raises(BuildFailed, match="line 2: RUN sleep 1000 was ended when the time of the build was over"):
        await builder.build("FROM base\nRUN sleep 1000\n", timeout=1)


async def test_the_disk_limit_holds_for_a_step(builder: Builder) -> None:
    fill = "FROM base\nRUN head -c 40000000 /dev/zero > /big && sleep 60\n"
    with pytest.raises(BuildFailed, match="line 2"):
        await builder.build(fill, limits=Limits(disk=16 << 20))
    (builder.directory / "big").write_bytes(bytes(20 << 20))
    with pytest.raises(BuildFailed, match=r"line 2: COPY big /: the files take more than the limit on disk"):
        await builder.build("FROM base\nCOPY big /\n", limits=Limits(disk=16 << 20))
    (builder.directory / "big").unlink()
    await builder.build("FROM base\nRUN echo small > /small; rm /bin/tty\n", limits=Limits(disk=16 << 20))
    assert await run("cat /small; ls /bin/tty 2>/dev/null") == "small\n"


async def test_what_a_step_leaves_running_ends_with_it(builder: Builder) -> None:
    await builder.build("FROM base\nRUN (while :; do echo x >> /log; sleep 0; done) & echo begun\n")
    assert builder.output == b"begun\n"


async def test_a_step_that_replaces_etc_by_a_link_reaches_nothing_of_the_host(builder: Builder, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("precious")
    await builder.build(f"FROM base\nRUN mkdir -p /x && cp -a /etc/passwd /x; rm -rf /etc; ln -s {tmp_path} /etc\n")
    assert (tmp_path / "hosts").read_text() == "precious"
    assert (await run("cat /proc/self/mounts")).count("/etc/") <= 1


async def test_a_cancelled_build_leaves_nothing(builder: Builder, cove_home: Path) -> None:
    builder.write("FROM base\nCOPY Dockerfile /\nRUN echo 1 > /one\n")
    for moment in MOMENTS:
        building = asyncio.ensure_future(builder.build(cache=False))
        await asyncio.wait([building], timeout=moment)
        building.cancel()
        await asyncio.wait([building])
        assert not [name for name in os.listdir(cove_home / "layers") if name.startswith(".")]
        assert os.listdir(cove_home / "sandboxes") == []
    await builder.build()
    assert await run("cat /one") == "1\n"


async def test_two_builds_of_the_same_do_not_disturb_each_other(builder: Builder) -> None:
    builder.write("FROM base\nCOPY Dockerfile /\nRUN echo 1 > /one\n")
    images = await asyncio.gather(*(builder.build(name=f"made:{number}", cache=False) for number in range(3)))
    for image in images:
        assert await run("cat /one", image.name) == "1\n"


KILLED = """
import asyncio
from cove import AsyncImage

async def main():
    await AsyncImage.load({archive!r}, name="base")
    await AsyncImage.build({directory!r}, name="made", progress=lambda event: print(type(event).__name__, flush=True))

asyncio.run(main())
"""


async def test_a_build_that_is_killed_leaves_nothing_half(builder: Builder, other_home: Path, tmp_path: Path) -> None:
    builder.write("FROM base\nRUN echo 1 > /one\nRUN echo 2 > /two; echo; sleep 1000\n")
    text = KILLED.format(archive=str(tmp_path / "image.tar"), directory=str(builder.directory))
    with program(text, other_home) as child:
        while read_line(child) != "BuildOutput":
            assert child.poll() is None
        child.kill()
        child.wait()
    builder.write("FROM base\nRUN echo 1 > /one\nRUN echo 2 > /two; echo\n")
    run_program(text, other_home)
    layers = os.listdir(other_home / "layers")
    assert len(layers) == 3
    assert all(name.startswith("sha256-") for name in layers)
    assert os.listdir(other_home / "sandboxes") == []


def test_the_blocking_form_builds_too(tmp_path: Path, cove_home: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\nENV A=1\n")
    image = Image.build(str(tmp_path), name="tiny")
    assert image.info().env == ("A=1",)
    image.delete()
    BuildCache(cove_home / "images", LayerStore(cove_home)).clear()
