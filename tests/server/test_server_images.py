"""Pulling by a server: only from registries that its configuration allows."""

import asyncio
import json
import socket
import urllib.request
from pathlib import Path

import pytest
from support.image_files import Item, make_layer, make_oci
from support.registry import REGISTRY, push, reply, running_fake, running_registry
from support.servers import Server, serving
from support.serving import address

from cove import AsyncImage, AsyncSandbox, TransferProgress
from cove.errors import ImageNotFound, PermissionDenied
from cove.images.registry_guard import RegistryGuard

pytestmark = pytest.mark.anyio

LAYER = make_layer([Item("hello", b"hello")])


@pytest.mark.skipif(REGISTRY is None, reason="docker-registry is not installed")
async def test_a_server_pulls_from_a_registry_that_it_allows(other_home: Path, tmp_path: Path) -> None:
    with running_registry(tmp_path) as registry:
        push(registry, "team/made", "1", make_oci([LAYER]))
        settings = tmp_path / "cove.toml"
        settings.write_text(f'allow_registries = ["{registry}"]\n[network]\nprivate = ["{registry}"]\n')
        with serving(other_home, "--config", str(settings), "--on-stop", "destroy") as server:
            where = address(server)
            told: list[TransferProgress] = []
            image = await AsyncImage.pull(f"{registry}/team/made:1", progress=told.append, **where)
            assert told[-1].layers == told[-1].total_layers == 1
            assert image.name == f"{registry}/team/made:1"
            async with AsyncSandbox.create(image=image.name, **where) as sandbox:
                assert await sandbox.files.read("/hello") == b"hello"
            with pytest.raises(ImageNotFound, match="made:2"):
                await AsyncImage.pull(f"{registry}/team/made:2", **where)
            for other in ("127.0.0.1:1/x", "localhost/x", "registry.invalid/x", "169.254.169.254/x"):
                with pytest.raises(PermissionDenied, match="does not pull"):
                    await AsyncImage.pull(other, **where)
            await image.delete()


async def test_how_far_a_load_is_comes_as_events_or_not_at_all(shared_server: Server, tmp_path: Path) -> None:
    path = make_oci([LAYER, make_layer([Item("two")])]).write(tmp_path / "image.tar")
    told = await asyncio.to_thread(post, shared_server, path, "text/event-stream")
    events = [part.split("\ndata: ") for part in told.removesuffix("\n\n").split("\n\n")]
    assert [name for name, _ in events[:-1]] == ["event: progress"] * (len(events) - 1)
    assert events[-1][0] == "event: image"
    assert json.loads(events[-2][1])["layers"] == 2
    image = json.loads(events[-1][1])["image"]
    assert json.loads(await asyncio.to_thread(post, shared_server, path, "*/*"))["id"] == image["id"]
    await (await AsyncImage.get("told", **address(shared_server))).delete()


def post(server: Server, path: Path | str, accept: str) -> str:
    headers = {"Authorization": f"Bearer {server.key}", "Accept": accept}
    request = urllib.request.Request(f"{server.url}/v1/images?name=told", Path(path).read_bytes(), headers)
    with urllib.request.urlopen(request) as answer:
        body: bytes = answer.read()
        assert answer.status == (201 if accept == "*/*" else 200)
    return body.decode()


async def test_a_server_that_names_no_registry_pulls_from_none(shared_server: Server) -> None:
    with pytest.raises(PermissionDenied, match="allow_registries"):
        await AsyncImage.pull("127.0.0.1:5000/x", **address(shared_server))


def connect(guard: RegistryGuard, host: str, port: int) -> None:
    guard.connect(host, port, 5.0).close()


def test_an_allowed_name_may_not_lead_to_a_private_address_unless_that_is_said_of_it() -> None:
    with running_fake(lambda request: reply(request, 200)) as at:
        port = int(at.rpartition(":")[2])
        for private in ((), (f"localhost:{port + 1}",), ("other",)):
            with pytest.raises(PermissionDenied, match="refused"):
                connect(RegistryGuard(("localhost", "127.0.0.1"), private), "localhost", port)
            with pytest.raises(PermissionDenied, match="refused"):
                connect(RegistryGuard(("localhost", "127.0.0.1"), private), "127.0.0.1", port)
        connect(RegistryGuard(("localhost",), ("localhost",)), "LOCALHOST", port)
        connect(RegistryGuard((f"localhost:{port}",), (f"localhost:{port}",)), "localhost", port)


def test_metadata_addresses_are_never_reached() -> None:
    guard = RegistryGuard(("169.254.169.254",), ("169.254.169.254",))
    with pytest.raises(PermissionDenied, match="refused"):
        connect(guard, "169.254.169.254", 80)


def test_a_name_with_a_star_stands_for_the_names_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(host: str, *_: object, **__: object) -> list[object]:
        asked.append(host)
        raise socket.gaierror(-2, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    guard = RegistryGuard(("*.registry.example",), ())
    for host in ("a.registry.example", "a.b.registry.example"):
        with pytest.raises(OSError, match="unknown"):
            connect(guard, host, 443)
    for host in ("registry.example", "aregistry.example", "registry.example.evil", "example", ""):
        with pytest.raises(PermissionDenied, match="does not pull"):
            connect(guard, host, 443)
    assert asked == ["a.registry.example", "a.b.registry.example"]
