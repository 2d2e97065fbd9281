"""Sandboxes that wait for an id on an image: taken by who asks for that image, and by nobody else."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.image_files import Item
from support.images import open_store
from support.programs import places
from support.servers import Server, eventually, left_behind, serving

from cove import NetworkPolicy, SandboxSpec
from cove.errors import CoveError, ImageInUse, ImageNotFound
from cove.model import Limits
from cove.server.configuration import built_in_defaults, load
from cove.server.sandboxes.warm_pool import WarmPool

pytestmark = [pytest.mark.anyio, needs_busybox]

SETTINGS = {"Env": ["GREETING=hello"], "User": "web"}
WARM = load(None, {}, built_in_defaults(Path("/tmp"))).admit(SandboxSpec(image="kept"))


@pytest.fixture
def server(other_home: Path, tmp_path: Path) -> Iterator[Server]:
    store = open_store(other_home)
    for name in ("kept", "other"):
        store.load(Path(write_busybox(tmp_path / "image.tar", settings=SETTINGS)), name)
    settings = tmp_path / "cove.toml"
    settings.write_text("[warm_images]\nkept = 1\nabsent = 1\n")
    with serving(other_home, "--config", str(settings), "--on-stop", "destroy") as running:
        yield running
    assert left_behind(other_home) == []


async def waiting(server: Server) -> set[str]:
    """The keys of those that wait, when there are as many as there should be."""
    pool = WarmPool(server.directory)
    await eventually(lambda: pool.count(WARM) == 1)
    return set(await asyncio.to_thread(places, server.home))


async def test_one_that_waits_is_taken_with_what_its_creator_asks_for(server: Server) -> None:
    warm = await waiting(server)
    policy = NetworkPolicy(allow=["allowed.example"])
    sandbox = await server.create("first", image="kept:latest", env={"A": "1"}, workdir="/tmp", network=policy)
    assert (await server.record("first")).key in warm
    seen = await sandbox.exec("echo $A $GREETING; pwd; id -u; echo $HOME; busybox nslookup denied.example")
    assert seen.stdout.startswith("1 hello\n/tmp\n33\n/var/web\n")
    assert seen.exit_code != 0
    assert (await sandbox.info()).spec.network == policy
    pids = (await sandbox.info()).limits_enforced
    await sandbox.restart()
    assert (await sandbox.exec("echo $A $GREETING; id -u")).stdout == "1 hello\n33\n"
    assert (await sandbox.info()).limits_enforced == pids
    snapshot = await sandbox.snapshot()
    await sandbox.destroy()
    await snapshot.delete()
    await waiting(server)


async def test_who_asks_for_something_else_gets_something_else(server: Server) -> None:
    warm = await waiting(server)
    for fields in (
        {"image": "other"},
        {"image": "kept", "limits": Limits(pids=100)},
        {"image": "kept", "user": "root"},
    ):
        sandbox = await server.create("first", **fields)
        assert (await server.record("first")).key not in warm
        await sandbox.destroy()
    with pytest.raises(ImageNotFound):
        await server.create("second", image="absent")


async def test_an_image_that_was_replaced_is_not_given_out_as_it_was(server: Server, tmp_path: Path) -> None:
    warm = await waiting(server)
    path = write_busybox(tmp_path / "new.tar", Item("srv/new", b"new"), settings=SETTINGS)
    store = await asyncio.to_thread(open_store, server.home)
    with pytest.raises(ImageInUse):
        await asyncio.to_thread(store.delete, "kept")
    await asyncio.to_thread(store.load, Path(path), "kept")
    sandbox = await server.create("first", image="kept")
    assert (await server.record("first")).key not in warm
    assert (await sandbox.exec("cat /srv/new")).stdout == "new"
    await sandbox.destroy()


def test_the_configuration_of_warm_images_is_checked(tmp_path: Path) -> None:
    settings = tmp_path / "cove.toml"
    for text in ("warm_images = 1", "[warm_images]\nx = -1", "[warm_images]\n'Not A Name' = 1"):
        settings.write_text(text)
        with pytest.raises(CoveError):
            load(settings, {})
