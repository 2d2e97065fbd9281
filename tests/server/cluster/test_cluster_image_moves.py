"""Sandboxes on an image are moved: its layers are fetched by digest, and what they wrote keeps its owners."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.clusters import API_KEY, Cluster, cluster_of
from support.image_files import Item
from support.move_steps import ARM, AT_SOURCE, AT_TARGET, kill_at, was_killed
from support.servers import eventually

from cove import AsyncImage, AsyncSandbox, ConnectionLost, SandboxStatus, SandboxUnavailable, UserUnavailable
from cove.layers.store import LayerStore, is_of_image

pytestmark = [pytest.mark.anyio, needs_busybox]

OWNED = Item("srv/owned", b"text", uid=1234, gid=33, mode=0o640)
ONCE = Item("srv/once", b"x" * 100_000)
LOOK = "ls -ldn /srv/owned /srv/more /srv/link /var/web /opt/own; ls -ln /srv /workspace /tmp; cat /srv/more"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of("a", "b") as found:
        asyncio.run(load(found, tmp_path_factory.mktemp("image")))
        yield found


async def load(cluster: Cluster, path: Path) -> None:
    archive = await asyncio.to_thread(write_busybox, path / "image.tar", OWNED, settings={"Env": ["PATH=/bin"]})
    await AsyncImage.load(archive, name="moved:1", url=cluster["a"].url, api_key=API_KEY)


async def on_image(cluster: Cluster, id: str | None = None) -> AsyncSandbox:
    """A sandbox on the image, on the node that has it, with files of several owners."""
    made = await cluster["a"].create(id, image="moved:1")
    assert (await made.info()).node == "a"
    told = await made.exec(
        "echo more > /srv/more; chown 7:8 /srv/more; chmod 604 /srv/more; ln -s more /srv/link; mkdir -p /opt/own; "
        "chown 9:9 /opt/own; chmod 750 /opt/own; rm /var/web/*; echo mine > /workspace/file; echo t > /tmp/t"
    )
    assert told.exit_code == 0, told.stderr
    return made


def moves_of(cluster: Cluster) -> list[str]:
    """Moves that are not decided yet, on any node."""
    return [
        path.name for home in cluster.homes.values() for kind in ("in", "out") for path in home.glob(f"moves/{kind}-*")
    ]


def image_layers(cluster: Cluster, node: str) -> list[str]:
    return sorted(filter(is_of_image, (path.name for path in LayerStore(cluster.homes[node]).path.iterdir())))


async def test_a_moved_sandbox_on_an_image_has_its_files_with_their_owners(cluster: Cluster) -> None:
    made = await on_image(cluster)
    session = await made.create_session(id="work")
    await session.exec("cd /opt; X=1")
    await made.snapshot()
    await made.exec("echo later >> /srv/more; chown 3:4 /srv/owned")
    shown = (await made.exec(LOOK)).stdout
    if os.geteuid() == 0:  # a plain user's sandbox shows all files as root's, whoever is recorded
        assert " 7 " in shown
        assert " 3 " in shown
    await made.stop()
    await made.move("b")
    assert (await made.info()).node == "b"
    assert await asyncio.to_thread(image_layers, cluster, "b") == await asyncio.to_thread(image_layers, cluster, "a")
    await made.start()
    assert (await made.exec(LOOK)).stdout == shown
    assert (await (await made.get_session("work")).exec("pwd; echo $X")).stdout == "/opt\n1\n"
    await made.exec("chown 5:6 /srv/more; echo third >> /srv/more")
    again = (await made.exec(LOOK)).stdout
    await made.stop()
    await made.move("a")
    await made.start()
    assert (await made.exec(LOOK)).stdout == again
    await made.reset()
    owner = ["1234", "33"] if os.geteuid() == 0 else ["0", "0"]
    assert (await made.exec("ls -ln /srv/owned; ls /srv/more")).stdout.split()[2:4] == owner
    await made.destroy()


async def test_the_image_may_be_gone_and_its_layers_are_sent_once(cluster: Cluster, tmp_path: Path) -> None:
    archive = await asyncio.to_thread(write_busybox, tmp_path / "other.tar", ONCE)
    image = await AsyncImage.load(archive, name="gone:1", url=cluster["a"].url, api_key=API_KEY)
    made = [await cluster["a"].create(None, image="gone:1") for _ in range(2)]
    await image.delete(force=True)
    for number, each in enumerate(made):
        assert (await each.info()).node == "a"
        await each.files.write("/workspace/number", str(number))
        await each.stop()
        await each.move("b")
    assert len(await asyncio.to_thread(fetched, cluster)) == 1
    for number, each in enumerate(made):
        await each.start()
        assert (await each.files.read("/srv/once")) == b"x" * 100_000
        assert (await each.exec("cat /workspace/number")).stdout == str(number)
        await each.destroy()
    await eventually(lambda: not fetched(cluster))


def fetched(cluster: Cluster) -> list[Path]:
    return list((cluster.homes["b"] / "layers").glob("sha256-*/data/root/srv/once"))


# Node b is one whose disk cannot show layers.
COPIES = (
    "import os; import cove.runtime.allocation as a; from cove.model import SnapshotMethod as m; "
    "os.environ['COVE_HOME'].endswith('/b') and setattr(a, '_method', lambda home: m.COPY); "
)


async def test_a_node_that_cannot_show_layers_refuses_before_anything_happens(tmp_path: Path) -> None:
    with cluster_of("a", "b", before=COPIES) as cluster:
        await load(cluster, tmp_path)
        made = await on_image(cluster)
        shown = (await made.exec(LOOK)).stdout
        await made.stop()
        with pytest.raises(UserUnavailable, match="layers of images cannot be shown"):
            await made.move("b")
        assert await asyncio.to_thread(moves_of, cluster) == []
        assert await asyncio.to_thread(image_layers, cluster, "b") == []
        await made.start()
        assert ((await made.info()).node, (await made.exec(LOOK)).stdout) == ("a", shown)
        await made.destroy()


async def test_a_worker_that_is_killed_leaves_a_sandbox_on_an_image_on_one_node(tmp_path: Path) -> None:
    await kill_at_steps(tmp_path, ("fetched", "claimed"))


@pytest.mark.slow
async def test_a_worker_that_is_killed_at_any_step_leaves_a_sandbox_on_an_image_on_one_node(tmp_path: Path) -> None:
    await kill_at_steps(tmp_path, (*AT_SOURCE, *AT_TARGET))


async def kill_at_steps(path: Path, steps: tuple[str, ...]) -> None:
    with cluster_of("a", "b", before=ARM) as cluster:
        await load(cluster, path)
        for step in steps:
            await move_and_kill(cluster, step)


async def move_and_kill(cluster: Cluster, step: str) -> None:
    made = await on_image(cluster, f"on-image-{step}")
    shown = (await made.exec(LOOK)).stdout
    await made.stop()
    key = (await cluster["a"].record(made.id)).key
    killed, other = ("a", "b") if step in AT_SOURCE else ("b", "a")
    through, home = await cluster[other].connect(made.id), cluster.homes[killed]
    kill_at(home, step)
    with suppress(ConnectionLost, SandboxUnavailable):
        await through.move("b")
    assert was_killed(home)
    await eventually(lambda: moves_of(cluster) == [])
    holders = [name for name, each in cluster.homes.items() if (each / "sandboxes" / key).exists()]
    assert len(holders) == 1
    while True:
        try:
            await through.start()
            break
        except SandboxUnavailable:
            await asyncio.sleep(0.05)
    info = await through.info()
    assert (info.node, info.status) == (holders[0], SandboxStatus.RUNNING)
    assert (await through.exec(LOOK)).stdout == shown
    await through.destroy()
