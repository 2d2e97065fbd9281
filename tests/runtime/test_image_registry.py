"""Pulling from a registry: verified, resumed, and nothing given away."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from support.image_files import Item, compress, describe, digest, make_layer, make_oci
from support.registry import REGISTRY, basic, push, reply, running_fake, running_registry
from support.upstream import running_upstream

from cove.errors import ImageInvalid, ImageNotFound, PermissionDenied, Unauthorized, Unreachable
from cove.images import registry
from cove.images.credentials import Credentials, find_credentials
from cove.images.manifest import Descriptor, ImageConfig, RootFs, Settings, machine_architecture
from cove.images.record import ImageRecord
from cove.images.reference import parse_reference
from cove.images.registry import Registry
from cove.images.store import open_images
from cove.layers.store import LayerStore

LAYER = make_layer([Item("hello", b"hello" * 100_000)])
BLOB = compress(LAYER, "gzip")


def registry_at(address: str, name: str = "made:1", credentials: Credentials | None = None) -> Registry:
    return Registry(parse_reference(f"{address}/{name}"), credentials)


def ignore(_digest: str, _done: int, _total: int) -> None:
    pass


@pytest.mark.skipif(REGISTRY is None, reason="docker-registry is not installed")
def test_an_image_comes_from_a_real_registry(tmp_path: Path) -> None:
    with running_registry(tmp_path) as address:
        digest_there = push(address, "team/made", "1", make_oci([LAYER], {"Env": ["A=1"]}))
        for name in ("team/made:1", f"team/made@{digest_there}"):
            there = registry_at(address, name)
            manifest = there.manifest()
            assert json.loads(there.document(manifest.config))["config"] == {"Env": ["A=1"]}
            there.fetch(manifest.layers[0], tmp_path / "blob", ignore)
            assert digest((tmp_path / "blob").read_bytes()) == manifest.layers[0].digest
            (tmp_path / "blob").unlink()
        with pytest.raises(ImageNotFound, match="team/made:2"):
            registry_at(address, "team/made:2").manifest()


def descriptor_of(data: bytes) -> Descriptor:
    return Descriptor(digest=digest(data), size=len(data))


def test_an_interrupted_blob_is_gone_on_with(tmp_path: Path) -> None:
    ranges: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        request.send_response(206 if asked else 200)
        request.send_header("Content-Length", str(len(BLOB) - start))
        request.end_headers()
        request.wfile.write(BLOB[start : start + len(BLOB) // 3])  # and no more

    with running_fake(answer) as address:
        registry_at(address).fetch(descriptor_of(BLOB), tmp_path / "blob", ignore)
    assert (tmp_path / "blob").read_bytes() == BLOB
    third = len(BLOB) // 3
    assert ranges[:3] == [None, f"bytes={third}-", f"bytes={2 * third}-"]


def test_a_registry_that_sends_all_again_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(BLOB[:1000])
    with running_fake(lambda request: reply(request, 200, BLOB)) as address:
        registry_at(address).fetch(descriptor_of(BLOB), tmp_path / "blob", ignore)
    assert (tmp_path / "blob").read_bytes() == BLOB


def test_other_bytes_than_were_promised_are_refused(tmp_path: Path) -> None:
    with running_fake(lambda request: reply(request, 200, bytes(len(BLOB)))) as address:
        with pytest.raises(ImageInvalid, match="other bytes"):
            registry_at(address).fetch(descriptor_of(BLOB), tmp_path / "blob", ignore)
        assert (tmp_path / "blob").stat().st_size == 0
        with pytest.raises(ImageInvalid, match="other bytes"):
            registry_at(address).document(descriptor_of(BLOB))
        with pytest.raises(ImageInvalid, match="another manifest"):
            registry_at(address, f"made@{digest(b'x')}").manifest()


def test_more_bytes_than_were_promised_are_not_taken(tmp_path: Path) -> None:
    with running_fake(lambda request: reply(request, 200, BLOB + bytes(1 << 20))) as address:
        registry_at(address).fetch(descriptor_of(BLOB), tmp_path / "blob", ignore)
    assert (tmp_path / "blob").read_bytes() == BLOB


def test_a_token_is_asked_for_with_the_credentials_and_shown_to_the_registry_alone(tmp_path: Path) -> None:
    seen: list[tuple[str, str | None]] = []
    blobs: dict[str, str] = {}

    def answer_other(request: BaseHTTPRequestHandler) -> None:
        seen.append(("other", request.headers.get("Authorization")))
        reply(request, 200, BLOB)

    def answer(request: BaseHTTPRequestHandler) -> None:
        shown = request.headers.get("Authorization")
        seen.append((request.path.partition("?")[0].rpartition("/")[2][:6], shown))
        if request.path.startswith("/token"):
            assert "scope=repository%3Amade%3Apull" in request.path
            reply(request, 200, b'{"token": "T"}')
        elif shown != "Bearer T":
            host = request.headers["Host"]
            challenge = f'Bearer realm="http://{host}/token",service="s",scope="repository:made:pull"'
            reply(request, 401, headers={"WWW-Authenticate": challenge})
        else:
            reply(request, 307, headers={"Location": blobs["at"]})

    with running_fake(answer_other) as other, running_fake(answer) as address:
        blobs["at"] = f"http://{other}/blob"
        registry = registry_at(address, credentials=Credentials("me", "secret"))
        registry.fetch(descriptor_of(BLOB), tmp_path / "blob", ignore)
    assert seen == [
        ("sha256", None),
        ("token", basic("me", "secret")),
        ("sha256", "Bearer T"),
        ("other", None),
    ]


def test_credentials_go_to_no_token_server_without_tls() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        reply(request, 401, headers={"WWW-Authenticate": 'Bearer realm="http://elsewhere.example/token"'})

    with running_fake(answer) as address, pytest.raises(PermissionDenied, match="without TLS"):
        registry_at(address, credentials=Credentials("me", "secret")).manifest()


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_credentials_go_to_nobody_that_a_registry_leads_to(tmp_path: Path, scheme: str) -> None:
    seen: list[tuple[str, str | None]] = []
    places: dict[str, str] = {}

    def answer_other(request: BaseHTTPRequestHandler) -> None:
        seen.append((request.path, request.headers["Authorization"]))
        challenge = 'Basic realm="mine"' if scheme == "Basic" else f'Bearer realm="http://{places["other"]}/token"'
        reply(request, 401, headers={"WWW-Authenticate": challenge})

    def answer(request: BaseHTTPRequestHandler) -> None:
        reply(request, 307, headers={"Location": f"http://{places['other']}/blob"})

    with running_fake(answer_other) as other, running_fake(answer) as address:
        places["other"] = other
        registry = registry_at(address, credentials=Credentials("me", "secret"))
        with pytest.raises(PermissionDenied, match="which wants credentials"):
            registry.fetch(descriptor_of(BLOB), tmp_path / "blob", ignore)
    assert seen == [("/blob", None)]


def test_a_registry_with_tls_names_no_token_server_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = b'WWW-Authenticate: Bearer realm="http://registry.example/token"'
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n%b\r\n\r\n" % challenge)
        await writer.drain()
        writer.close()

    with running_upstream(tmp_path) as world:
        monkeypatch.setenv("SSL_CERT_FILE", str(world.ca))
        port = world.serve(refuse, "registry.example", tls=True)
        found = Registry(
            parse_reference("registry.example/made:1"),
            Credentials("me", "secret"),
            connect=lambda *_: socket.create_connection(("127.0.0.1", port)),
        )
        with pytest.raises(PermissionDenied, match="without TLS"):
            found.manifest()
    assert len(asked) == 1


def test_who_is_refused_is_told_what_to_do() -> None:
    with (
        running_fake(lambda request: reply(request, 401)) as address,
        pytest.raises(Unauthorized, match="docker login"),
    ):
        registry_at(address).manifest()


@pytest.mark.parametrize(
    ("status", "headers", "error", "says"),
    [
        (302, {"Location": "/again"}, ImageInvalid, "from one address to the next"),
        (302, {"Location": "http://127.0.0.1:99999999/"}, ImageInvalid, "impossible address"),
        (302, {"Location": "/v2/\xe9"}, ImageInvalid, "impossible address"),
        (302, {"Location": "http://[/"}, ImageInvalid, "impossible address"),
        (500, {}, Unreachable, "answered 500"),
        (418, {}, ImageInvalid, "answered 418"),
        (200, {}, ImageInvalid, "manifest of the image cannot be read"),
    ],
)
def test_a_registry_that_misbehaves_ends_in_an_error(
    status: int, headers: dict[str, str], error: type[Exception], says: str
) -> None:
    with (
        running_fake(lambda request: reply(request, status, b"", headers)) as address,
        pytest.raises(error, match=says),
    ):
        registry_at(address).manifest()


def test_an_endless_document_is_not_read_to_its_end() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while True:
                request.wfile.write(b" " * 65536)
        except OSError:
            pass

    with running_fake(answer) as address, pytest.raises(ImageInvalid, match="larger than"):
        registry_at(address).manifest()


def drip(request: BaseHTTPRequestHandler, data: bytes) -> None:
    """Send byte by byte, so that no single wait is long, until the other end is gone."""
    with contextlib.suppress(OSError):
        while True:
            request.wfile.write(data)
            time.sleep(0.01)


def drip_head(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    drip(request, b"x")


def drip_document(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    drip(request, b" ")


@pytest.mark.parametrize("answer", [drip_head, drip_document])
def test_who_sends_byte_by_byte_is_broken_off(
    answer: Callable[[BaseHTTPRequestHandler], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "ANSWER_SECONDS", 0.3)
    with running_fake(answer) as address, pytest.raises((Unreachable, ImageInvalid)):
        registry_at(address).manifest()


def test_a_blob_that_comes_too_slowly_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SECONDS", 0.2)
    monkeypatch.setattr(registry, "MOST_TRIES", 2)
    with running_fake(drip_document) as address, pytest.raises(Unreachable, match="fewer than 32768 bytes"):
        registry_at(address).fetch(descriptor_of(BLOB * 100), tmp_path / "blob", ignore)


def test_two_writers_of_one_name_leave_it_whole(tmp_path: Path) -> None:
    store = open_images(tmp_path, LayerStore(tmp_path))
    config = ImageConfig(RootFs([]), Settings(), machine_architecture())
    records = [
        ImageRecord(id=str(number), name="made:1", created_at=datetime.now(UTC), layers=(), config=config, size=0)
        for number in range(20)
    ]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(store.keep, records))
    assert [record.name for record in store.list()] == ["made:1"]


def test_an_index_leads_to_the_image_for_this_machine() -> None:
    image = make_oci([LAYER])
    entry = json.loads(image.files["index.json"])["manifests"][0]
    attestation = {**describe(b"x", entry["mediaType"]), "platform": {"os": "unknown", "architecture": "unknown"}}
    arm = {**describe(b"y", entry["mediaType"]), "platform": {"os": "linux", "architecture": "riscv64"}}
    index_type = "application/vnd.oci.image.index.v1+json"
    index = json.dumps({"mediaType": index_type, "manifests": [attestation, arm, entry]}).encode()

    def answer(request: BaseHTTPRequestHandler) -> None:
        wanted = request.path.rpartition("/")[2]
        path = f"blobs/sha256/{wanted.removeprefix('sha256:')}"
        reply(request, 200, image.files.get(path, index), {"Content-Type": index_type if wanted == "1" else "a/b"})

    with running_fake(answer) as address:
        assert registry_at(address).manifest().layers[0].digest == digest(compress(LAYER, "gzip"))


def test_credentials_are_found_where_docker_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"auths": {"https://a.example/v1/": {"auth": "bWU6c2VjcmV0"}, "b.example": {}}}))
    assert find_credentials("a.example", path) == Credentials("me", "secret")
    assert find_credentials("b.example", path) is None
    assert find_credentials("c.example", path) is None
    assert find_credentials("a.example", tmp_path / "missing") is None
    assert "secret" not in repr(Credentials("me", "secret"))
