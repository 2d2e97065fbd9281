"""Pulls that are interrupted: what was fetched is gone on with, or collected, and pulls do not disturb each other."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from support.image_files import Item, make_layer, make_oci
from support.programs import program
from support.registry import REGISTRY, TokenServer, push, reply, running_fake, running_registry
from support.servers import eventually

from cove import AsyncImage, TransferProgress
from cove.images.blobs import MOST_AGE_SECONDS, Blobs

pytestmark = pytest.mark.anyio

IMAGE = make_oci([make_layer([Item("large", os.urandom(3 << 20))])])
CHOSEN = json.loads(IMAGE.files["index.json"])["manifests"][0]


def blob(name: str) -> bytes:
    return IMAGE.files[f"blobs/sha256/{name.removeprefix('sha256:')}"]


MANIFEST = blob(CHOSEN["digest"])
DIGEST = json.loads(MANIFEST)["layers"][0]["digest"]
LAYER = blob(DIGEST)
PULL = """
import asyncio
from cove import AsyncImage, TransferProgress
asyncio.run(AsyncImage.pull("{address}/made:1"))
"""


class Registry:
    """Sends the half of the layer and waits, until it `goes_on`; remembers where it was asked to begin."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.begun: list[int] = []

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.rpartition("/")[2]
        if "/manifests/" in request.path:
            reply(request, 200, MANIFEST, {"Content-Type": CHOSEN["mediaType"]})
        elif name != DIGEST:
            reply(request, 200, blob(name))
        else:
            self._send_layer(request)

    def _send_layer(self, request: BaseHTTPRequestHandler) -> None:
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.begun.append(start)
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(LAYER) - start))
        request.end_headers()
        half = len(LAYER) // 2
        request.wfile.write(LAYER[start:half])
        if start < half:
            self.goes_on.wait(20)
        request.wfile.write(LAYER[max(start, half) :])


@contextmanager
def running() -> Iterator[tuple[Registry, str]]:
    registry = Registry()
    with running_fake(registry.answer) as address:
        try:
            yield registry, address
        finally:
            registry.goes_on.set()


def fetched(home: Path) -> list[int]:
    return [path.stat().st_size for path in (home / "images" / "blobs").iterdir()]


async def until_half_is_here(home: Path) -> None:
    blobs = home / "images" / "blobs"
    await eventually(lambda: blobs.exists() and sum(fetched(home)) > len(LAYER) // 4)


async def kill_in_the_middle(address: str, home: Path) -> None:
    with program(PULL.format(address=address), home) as process:
        await until_half_is_here(home)
        process.kill()


async def test_a_pull_that_was_killed_is_gone_on_with(cove_home: Path) -> None:
    with running() as (registry, address):
        await kill_in_the_middle(address, cove_home)
        (size,) = fetched(cove_home)
        assert size >= len(LAYER) // 4
        registry.goes_on.set()
        image = await AsyncImage.pull(f"{address}/made:1")
    assert registry.begun == [0, size]
    assert fetched(cove_home) == []
    await image.delete()


async def test_what_a_killed_pull_has_left_is_pruned(cove_home: Path) -> None:
    with running() as (_, address):
        await kill_in_the_middle(address, cove_home)
    assert len(fetched(cove_home)) == 1
    await AsyncImage.prune()
    assert fetched(cove_home) == []


async def test_two_pulls_at_once_do_not_disturb_each_other(cove_home: Path) -> None:
    with running() as (registry, address), program(PULL.format(address=address), cove_home) as other:
        await until_half_is_here(cove_home)
        await AsyncImage.prune()
        assert len(fetched(cove_home)) == 1, "somebody is fetching it"
        registry.goes_on.set()
        image = await AsyncImage.pull(f"{address}/made:1")
        assert await asyncio.to_thread(other.wait, 20) == 0
    assert fetched(cove_home) == []
    await image.delete()


def test_blobs_that_nobody_comes_back_for_are_removed(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    with suppress(InterruptedError), blobs.holding(["sha256:a", "sha256:b"]) as files:
        for path in files.values():
            path.write_bytes(b"half")
        with blobs.holding(["sha256:a"]) as others:
            assert others["sha256:a"] != files["sha256:a"]
        raise InterruptedError
    old, new = files.values()
    then = time.time() - MOST_AGE_SECONDS - 1
    os.utime(old, (then, then))
    with blobs.holding(["sha256:b"]) as again:
        assert again["sha256:b"].read_bytes() == b"half"
        assert not old.exists()
        blobs.collect()
        assert new.exists()
    assert list((tmp_path / "blobs").iterdir()) == []


@pytest.mark.skipif(REGISTRY is None, reason="docker-registry is not installed")
async def test_a_real_registry_lets_in_who_brings_the_token_that_it_asks_for(cove_home: Path, tmp_path: Path) -> None:
    tokens = TokenServer(tmp_path)
    with running_registry(tmp_path) as address:
        push(address, "team/made", "1", IMAGE)
    with running_fake(tokens.answer) as server:
        with running_registry(tmp_path, **tokens.settings(server)) as address:
            told: list[TransferProgress] = []
            image = await AsyncImage.pull(f"{address}/team/made:1", progress=told.append)
        assert ((await image.info()).layers, told[-1].layers, told[-1].total_layers) == (1, 1, 1)
        await image.delete()
    assert {"scope=repository%3Ateam%2Fmade%3Apull" in path for path in tokens.asked} == {True}


async def test_layers_come_side_by_side(cove_home: Path) -> None:
    """One after the other, the first would wait for the second until both are given up."""
    image = make_oci([make_layer([Item(f"file-{number}", os.urandom(1000))]) for number in range(3)])
    manifest = image.files[f"blobs/sha256/{json.loads(image.files['index.json'])['manifests'][0]['digest'][7:]}"]
    layers = {each["digest"] for each in json.loads(manifest)["layers"]}
    all_ask = threading.Barrier(len(layers), timeout=30)

    def answer(request: BaseHTTPRequestHandler) -> None:
        name = request.path.rpartition("/")[2]
        if "/manifests/" in request.path:
            reply(request, 200, manifest, {"Content-Type": json.loads(manifest)["mediaType"]})
            return
        if name in layers:
            all_ask.wait()
        reply(request, 200, image.files[f"blobs/sha256/{name.removeprefix('sha256:')}"])

    with running_fake(answer) as address:
        pulled = await AsyncImage.pull(f"{address}/side-by-side:1")
    assert (await pulled.info()).layers == 3
    await pulled.delete()
