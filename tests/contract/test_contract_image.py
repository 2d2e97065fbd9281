"""Sandboxes on an image, in this program and on a server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.servers import Server
from support.serving import MakeSandbox

from cove.errors import ImageNotFound
from cove.images.store import ImageStore
from cove.layers.store import LayerStore

pytestmark = [pytest.mark.anyio, needs_busybox]


@pytest.fixture
def image(cove_home: Path, shared_server: Server, tmp_path: Path) -> Iterator[str]:
    path = Path(write_busybox(tmp_path / "image.tar", settings={"Env": ["GREETING=hello"], "User": "web"}))
    stores = [_open(home) for home in (cove_home, shared_server.home)]
    for store in stores:
        store.load(path, "contract")
    yield "contract"
    for store in stores:
        store.delete("contract")


def _open(home: Path) -> ImageStore:
    layers = LayerStore(home)
    (home / "sandboxes").mkdir(exist_ok=True)
    layers.open()
    store = ImageStore(home, layers)
    store.open()
    return store


async def test_a_sandbox_has_the_system_of_its_image(make_sandbox: MakeSandbox, image: str) -> None:
    async with make_sandbox(image=image) as sandbox:
        assert (await sandbox.exec("id -u; echo $GREETING; echo $HOME")).stdout == "33\nhello\n/var/web\n"
        assert (await sandbox.info()).spec.image == image
        await sandbox.set_env({"MORE": "1"})
        await sandbox.exec("touch /usr/kept")
        await sandbox.restart()
        assert (await sandbox.exec("ls /usr; echo $GREETING $MORE")).stdout == "bin\nkept\nhello 1\n"


async def test_the_user_is_chosen_when_it_is_created(make_sandbox: MakeSandbox, image: str) -> None:
    async with make_sandbox(image=image, user="root") as sandbox:
        assert (await sandbox.exec("id -u; cd; pwd")).stdout == "0\n/root\n"


async def test_an_image_that_is_not_there_is_named(make_sandbox: MakeSandbox, image: str) -> None:
    with pytest.raises(ImageNotFound, match="absent"):
        async with make_sandbox(image="absent"):
            pass
