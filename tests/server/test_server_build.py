"""Builds by a server: what a client may not ask for, hostile archives, and deaths in the middle."""

import asyncio
import io
import json
import os
import re
import signal
import tarfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from support.busybox import needs_busybox, write_busybox
from support.image_files import Item, make_docker, make_layer
from support.raw_http import connect
from support.servers import Server, eventually, left_behind, serving
from support.serving import address

from cove import AsyncImage, BuildEvent, BuildOutput, NetworkPolicy
from cove.errors import BuildFailed, CoveError, LimitExceeded, PermissionDenied, SandboxUnavailable, ValidationFailed
from cove.model import Limits
from cove.server.sandboxes.destroy_sandbox import collect_garbage

pytestmark = [pytest.mark.anyio, needs_busybox]

RECIPE = b"FROM build-base\nCOPY . /srv/\n"


@pytest.fixture
async def server(shared_server: Server, tmp_path: Path) -> AsyncIterator[Server]:
    image = await AsyncImage.load(write_busybox(tmp_path / "base.tar"), name="build-base", **address(shared_server))
    yield shared_server
    await image.delete()
    await AsyncImage.prune(**address(shared_server))
    assert [name for name in os.listdir(shared_server.home / "layers") if name.startswith(".new-")] == []
    assert left_behind(shared_server.home) == []


def archive(*members: tuple[str, bytes | str]) -> bytes:
    """Bytes are files; a string is what a link leads to."""
    with io.BytesIO() as data:
        with tarfile.open(fileobj=data, mode="w") as made:
            for name, content in members:
                member = tarfile.TarInfo(name)
                if isinstance(content, str):
                    member.type, member.linkname = tarfile.SYMTYPE, content
                    made.addfile(member)
                else:
                    member.size = len(content)
                    made.addfile(member, io.BytesIO(content))
        return data.getvalue()


def post(server: Server, body: bytes, accept: str = "*/*", **fields: str) -> tuple[int, str]:
    request = urllib.request.Request(
        f"{server.url}/v1/build_image?{urlencode({'name': 'made-by-hand', **fields})}",
        body,
        {"Authorization": f"Bearer {server.key}", "Accept": accept},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_an_archive_is_built_by_anybody_who_speaks_http(server: Server) -> None:
    body = archive(("Dockerfile", RECIPE + b"ARG A\nRUN echo $A\n"), ("a", b"1"))
    status, told = await asyncio.to_thread(post, server, body, "text/event-stream", build_args='{"A": "b"}')
    events = [part.split("\ndata: ") for part in told.removesuffix("\n\n").split("\n\n")]
    assert (status, [name for name, _ in events]) == (200, [f"event: {n}" for n in ("step", "step", "output", "image")])
    assert json.loads(events[2][1]) == {"type": "output", "stream": "stdout", "text": "b\n"}
    status, text = await asyncio.to_thread(post, server, body, limits='{"pids": 50}', cache="true")
    assert (status, json.loads(text)["name"]) == (201, "made-by-hand:latest")
    await (await AsyncImage.get("made-by-hand", **address(server))).delete()


@pytest.mark.parametrize(
    ("members", "fields", "says"),
    [
        ([("Dockerfile", RECIPE)], {"dockerfile": "/etc/passwd"}, "by its path in the archive"),
        ([("Dockerfile", RECIPE)], {"dockerfile": "../../key"}, "has no"),
        ([("Dockerfile", "/etc/passwd")], {}, "has no Dockerfile|no FROM"),
        ([("x", "/etc/passwd")], {"dockerfile": "x", "outside": "/here/x"}, "no file x"),
        ([("Dockerfile", RECIPE)], {"dockerfile": "../x", "outside": "x"}, "no file ../x"),
        ([("../escaped", b"1")], {}, "cannot be unpacked"),
        ([("d", "/tmp"), ("d/escaped", b"1")], {}, "cannot be unpacked"),
        ([("Dockerfile", b"FROM build-base\nCOPY out /srv/\n"), ("out", "/etc/passwd")], {}, "out is not there"),
        ([("Dockerfile", RECIPE)], {"build_args": "{"}, "not valid JSON"),
        ([("Dockerfile", RECIPE)], {"limits": '{"pid": 1}'}, "unknown field"),
        ([("Dockerfile", RECIPE)], {"network": "wide"}, "wide"),
        ([("Dockerfile", RECIPE)], {"shown": "x"}, "unknown field"),
    ],
)
async def test_what_a_client_sends_reaches_nothing_else(
    server: Server, members: list[tuple[str, bytes | str]], fields: dict[str, str], says: str
) -> None:
    status, text = await asyncio.to_thread(post, server, archive(*members), **fields)
    assert status == 400, text
    assert re.search(says, text), text
    assert "root:" not in text


async def test_what_is_no_archive_is_named_so(server: Server) -> None:
    for body in (b"", b"garbage" * 1000, archive(("Dockerfile", RECIPE))[:700]):
        status, text = await asyncio.to_thread(post, server, body)
        assert (status, "cannot be unpacked" in text) == (400, True), text


async def test_a_directory_has_no_more_than_its_build_may_write(server: Server) -> None:
    body = archive(("Dockerfile", RECIPE), ("a", bytes(5 << 20)))
    for size, sent in ((4 << 20, 413), (8 << 20, 201)):
        status, text = await asyncio.to_thread(post, server, body, limits=f'{{"disk": {size}}}', cache="false")
        assert (status, status == 201 or "may have 4 MiB" in text) == (sent, True), text
    await (await AsyncImage.get("made-by-hand", **address(server))).delete()


async def test_a_client_can_only_narrow_what_the_server_allows(other_home: Path, tmp_path: Path) -> None:
    settings = tmp_path / "cove.toml"
    settings.write_text("[maximum_limits]\npids = 100\n[default_limits]\nopen_files = 65\n")
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "Dockerfile").write_text("FROM build-base\nRUN ulimit -n\n")
    with serving(other_home, "--config", str(settings), "--on-stop", "destroy") as server:
        where = address(server)
        await AsyncImage.load(write_busybox(tmp_path / "base.tar"), name="build-base", **where)
        told: list[BuildEvent] = []

        async def build(**options: object) -> None:
            await AsyncImage.build(
                str(tmp_path / "context"),
                name="made",
                progress=told.append,
                **options,  # type: ignore[arg-type]  # of this test
                **where,
            )

        await build()
        assert [each.data for each in told if isinstance(each, BuildOutput)] == [b"65\n"]
        with pytest.raises(PermissionDenied, match="network='host'"):
            await build(network="host")
        with pytest.raises(PermissionDenied, match="pids"):
            await build(limits=Limits(pids=200))
        with pytest.raises((PermissionDenied, ValidationFailed)):
            await build(network=NetworkPolicy(allow=["127.0.0.1:1"], record="/etc/cassette"))


async def start_build(server: Server, context: Path, text: str) -> "asyncio.Future[AsyncImage]":
    """Begin, and return when the first output was heard."""
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(text)
    begun = asyncio.Event()

    def hear(event: BuildEvent) -> None:
        if isinstance(event, BuildOutput):
            begun.set()

    building = asyncio.ensure_future(AsyncImage.build(str(context), name="made", progress=hear, **address(server)))
    await begun.wait()
    return building


async def test_a_worker_or_a_build_that_is_killed_leaves_nothing(other_home: Path, tmp_path: Path) -> None:
    text = "FROM build-base\nRUN echo begun; sleep 1000\n"
    with serving(other_home, "--on-stop", "destroy") as server:
        await AsyncImage.load(write_busybox(tmp_path / "base.tar"), name="build-base", **address(server))
        kept = set(os.listdir(other_home / "layers"))
        building = await start_build(server, tmp_path / "context", text)
        (builder,) = server.runtimes()
        os.kill(builder, signal.SIGKILL)
        with pytest.raises(SandboxUnavailable, match="build it again"):
            await building
        building = await start_build(server, tmp_path / "context", text)
        for pid, role in server.children().items():
            if role == "worker":
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(CoveError):
            await building
        await eventually(lambda: server.runtimes() == [])
        assert [each.name for each in await AsyncImage.list(**address(server))] == ["build-base:latest"]

        def is_clean() -> bool:
            collect_garbage(other_home)  # as the server does, every now and then
            return set(os.listdir(other_home / "layers")) == kept and left_behind(other_home) == []

        await eventually(is_clean)


async def test_output_that_nobody_reads_holds_the_build_back(server: Server, tmp_path: Path) -> None:
    """Whoever reads slowly costs the server no memory, and misses nothing."""
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM build-base\nRUN busybox yes 0123456 | busybox head -c 30000000; exit 1\n")
    seen = 0

    def hear(event: BuildEvent) -> None:
        nonlocal seen
        seen += len(event.data) if isinstance(event, BuildOutput) else 0

    with pytest.raises(BuildFailed, match="exit code 1"):
        await AsyncImage.build(str(context), name="made", progress=hear, **address(server))
    assert seen == 30_000_000


async def test_no_more_images_are_worked_on_at_a_time_than_may_be(other_home: Path, tmp_path: Path) -> None:
    settings = tmp_path / "cove.toml"
    settings.write_text('max_image_jobs = 1\nworkers = 2\nallow_registries = ["registry.example"]\n')
    archive_path = write_busybox(tmp_path / "base.tar")
    with serving(other_home, "--config", str(settings), "--on-stop", "destroy") as server:
        where = address(server)
        image = await AsyncImage.load(archive_path, name="build-base", **where)
        kept = set(os.listdir(other_home / "layers"))
        building = await start_build(server, tmp_path / "context", "FROM build-base\nRUN echo begun; sleep 1000\n")
        for _ in range(4):  # whichever worker is asked
            with pytest.raises(LimitExceeded, match="works on 1 images at a time"):
                await AsyncImage.build(str(tmp_path / "context"), name="other", **where)
            with pytest.raises(LimitExceeded):
                await AsyncImage.load(archive_path, name="other", **where)
            with pytest.raises(LimitExceeded):
                await AsyncImage.pull("registry.example/other", **where)
            with pytest.raises(LimitExceeded):
                await image.save(str(tmp_path / "saved.tar"))
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building

        async def has_place() -> bool:
            try:
                await image.save(str(tmp_path / "saved.tar"))
            except LimitExceeded:
                return False
            return True

        async with asyncio.timeout(30):
            while not await has_place():
                await asyncio.sleep(0.05)
        await eventually(lambda: server.runtimes() == [])  # the process ends after its work
        assert set(os.listdir(other_home / "layers")) == kept
        assert left_behind(other_home) == []


async def test_who_sends_or_reads_slowly_holds_no_place(other_home: Path, tmp_path: Path) -> None:
    settings = tmp_path / "cove.toml"
    settings.write_text("max_image_jobs = 1\nworkers = 1\n")
    large = make_docker([make_layer([Item("large", os.urandom(40 << 20))])]).write(tmp_path / "large.tar")
    with serving(other_home, "--config", str(settings), "--on-stop", "destroy") as server:
        port = urlsplit(server.url).port
        assert port is not None
        where = address(server)
        await AsyncImage.load(large, name="large", **where)
        async with connect(port) as load, connect(port) as build, connect(port) as save:
            for client, path in ((load, "/v1/images?name=slow"), (build, "/v1/build_image?name=slow")):
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\n"
                client.send(f"{head}Content-Length: {64 << 20}\r\n\r\n".encode())
                for _ in range(32):  # more than lies in the buffers of sockets: it is being read
                    client.send(bytes(1 << 20))
                    await client.writer.drain()
            head = f"GET /v1/images/large/archive HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}"
            save.send(f"{head}\r\n\r\n".encode())
            assert (await save.head()).status == 200
            await AsyncImage.load(large, name="other", **where)
            assert [info.name for info in await AsyncImage.list(**where)] == ["large:latest", "other:latest"]
