"""Sandboxes that are moved from node to node: all that they have comes with them, and they are never on two."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from urllib.parse import urlsplit

import pytest
from support.clusters import API_KEY, NAMES, Cluster, cluster_of
from support.move_steps import ARM, AT_SOURCE, AT_TARGET, kill_at, was_killed
from support.raw_http import Reply, connect
from support.servers import eventually
from support.services import HTTP, start

from cove import (
    AsyncSandbox,
    AsyncVolume,
    ConnectionLost,
    JournalKind,
    Limits,
    NodeUnavailable,
    SandboxAlreadyExists,
    SandboxDestroyed,
    SandboxNotFound,
    SandboxStatus,
    SandboxStopped,
    SandboxUnavailable,
    ValidationFailed,
    VolumeMount,
)
from cove.server.cluster.nodes import NodeState, read_nodes
from cove.tasks import together

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of(*NAMES) as found:
        yield found


async def on_node(cluster: Cluster, node: str, id: str | None = None, **fields: object) -> AsyncSandbox:
    """A sandbox on that node: one without a name is made there, another one may have come there."""
    others = []
    while (await (made := await cluster[node].create(id, **fields)).info()).node != node:
        if id is not None:
            await made.stop()
            await made.move(node)
            await made.start()
            break
        others.append(made)  # so that the others have less room
    await together(each.destroy() for each in others)
    return made


def moves_of(cluster: Cluster) -> list[str]:
    """What is left of moves on any node, but for what says that an id has a claim."""
    paths = [path for home in cluster.homes.values() for path in (home / "moves").glob("*")]
    return [path.name for path in paths if not path.name.startswith(("named-", "gone-"))]


def places_of(cluster: Cluster, key: str) -> list[str]:
    return [name for name, home in cluster.homes.items() if (home / "sandboxes" / key).exists()]


async def test_a_moved_sandbox_has_all_that_it_had(cluster: Cluster) -> None:
    made = await on_node(cluster, "a", labels={"team": "one"}, env={"COLOR": "red"})
    await made.files.write("/workspace/kept", b"text")
    await made.exec("chmod 700 kept; ln -s kept link; mkdir -p ~/deep; echo x > ~/deep/file; echo y > /tmp/t")
    await made.set_env({"LATER": "blue"})
    session = await made.create_session(id="work")
    await session.exec("cd ~/deep; GREETING=hello; f() { echo $GREETING $1; }")
    await made.snapshot(name="before")
    await made.files.write("/workspace/after", b"more")
    record = await cluster["a"].record(made.id)
    await made.set_lifetime(3600)
    ends = (await made.info()).ends_at
    await made.stop()
    await made.move("b")
    assert await asyncio.to_thread(places_of, cluster, record.key) == ["b"]
    assert await asyncio.to_thread(moves_of, cluster) == []
    for name in NAMES:
        info = await (await cluster[name].connect(made.id)).info()
        assert (info.node, info.status, info.ends_at) == ("b", SandboxStatus.STOPPED, ends)
        assert info.spec.labels == {"team": "one"}
    with pytest.raises(SandboxStopped):
        await made.exec("true")
    await made.start()
    told = await made.exec("cat kept after ~/deep/file /tmp/t; stat -c %a kept; readlink link; echo $COLOR $LATER")
    assert told.stdout == "textmorex\ny\n700\nkept\nred blue\n"
    again = await made.get_session("work")
    assert (await again.exec("pwd; f world")).stdout.endswith("/deep\nhello world\n")
    kinds = [event.kind async for event in made.journal()]
    assert kinds[0] is JournalKind.CREATED
    assert kinds.index(JournalKind.STOPPED) < kinds.index(JournalKind.MOVED) < kinds.index(JournalKind.STARTED)
    moved = [event async for event in made.journal() if event.kind is JournalKind.MOVED]
    assert [(event.host, event.target) for event in moved] == [("a", "b")]
    where = {"url": cluster["c"].url, "api_key": API_KEY}
    found = await AsyncSandbox.list(labels={"team": "one"}, **where)
    assert [(each.id, each.node) for each in found] == [(made.id, "b")]
    await made.destroy()
    with pytest.raises(SandboxDestroyed):
        await made.info()


async def test_a_sandbox_of_a_chosen_name_moves_on_and_back(cluster: Cluster) -> None:
    made = await on_node(cluster, "a", "chosen-mover")
    await made.exec("echo 0 > count")
    for number, node in enumerate(("b", "c", "a"), 1):
        await made.stop()
        await made.move(node)
        await made.start()
        assert (await made.info()).node == node
        assert (await made.exec(f"cat count; echo {number} > count")).stdout == f"{number - 1}\n"
    with pytest.raises(SandboxAlreadyExists):
        await cluster["b"].create("chosen-mover")
    await made.destroy()
    again = await cluster["c"].create("chosen-mover")
    assert await again.files.list("/workspace") == []
    await again.destroy()
    assert await asyncio.to_thread(claims_of, cluster, "chosen-mover") == []


def claims_of(cluster: Cluster, id: str) -> list[str]:
    paths = [path for home in cluster.homes.values() for path in (home / "claims").glob("[0-9a-f]*")]
    return [path.read_text() for path in paths if id in path.read_text()]


async def test_an_id_that_was_made_is_known_where_it_was_made_wherever_it_is(cluster: Cluster) -> None:
    made = await on_node(cluster, "a")
    await made.stop()
    await made.move()
    node = (await made.info()).node
    assert node in ("b", "c")
    for name in NAMES:
        with pytest.raises(SandboxAlreadyExists):
            await cluster[name].create(made.id)
        assert (await (await cluster[name].create(made.id, exist_ok=True)).info()).node == node
    await made.move(node)  # it is there
    await made.move("a")
    assert (await made.info()).node == "a"
    await made.start()
    await made.destroy()
    assert await asyncio.to_thread(claims_of, cluster, made.id) == []
    with pytest.raises(SandboxDestroyed):
        await made.move("b")


async def test_a_moved_sandbox_is_used_through_every_node_with_bodies_of_any_size(cluster: Cluster) -> None:
    made = await on_node(cluster, "a")
    await made.stop()
    await made.move("b")
    await made.start()
    content = b"x" * (1 << 20)
    for name in ("b", "c", "a"):
        sandbox = await cluster[name].connect(made.id)
        for number in range(8):  # of all workers
            await written(sandbox, f"/workspace/{name}-{number}", content)
    assert await made.files.read("/workspace/c-7") == content
    await made.destroy()


async def written(sandbox: AsyncSandbox, path: str, content: bytes) -> None:
    """A worker that does not know where it is says that nothing was started, and knows it then."""
    for _ in range(3):
        try:
            return await sandbox.files.write(path, content)
        except SandboxUnavailable:
            continue
    pytest.fail("it was never found")


async def test_a_moved_sandbox_is_reached_while_the_node_where_it_was_made_is_away() -> None:
    with cluster_of(*NAMES) as cluster:
        moved, left = await on_node(cluster, "a"), await on_node(cluster, "a")
        await moved.stop()
        await moved.move("b")
        await moved.start()
        silent = [cluster["a"].process.pid, *cluster["a"].children()]
        for pid in silent:
            os.kill(pid, signal.SIGSTOP)
        try:
            for name in ("b", "c"):
                await until_down(cluster, name, "a")
                for _ in range(4):
                    sandbox = await cluster[name].connect(moved.id)
                    assert (await sandbox.exec("echo there")).stdout == "there\n"
                    with pytest.raises(NodeUnavailable):
                        await (await cluster[name].connect(left.id)).exec("true")
        finally:
            for pid in silent:
                os.kill(pid, signal.SIGCONT)


async def until_down(cluster: Cluster, node: str, other: str) -> None:
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(read_nodes, cluster.homes[node]))[other].state is not NodeState.DOWN:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)  # the other workers read it twice a second


async def test_layers_that_the_target_has_are_not_sent_and_a_reset_goes_to_the_beginning(cluster: Cluster) -> None:
    base = await on_node(cluster, "a")
    await base.exec("head -c 3000000 /dev/urandom > large; echo base > file")
    snapshot = await base.snapshot()
    made = [await AsyncSandbox.create(snapshot=snapshot.id, url=cluster["a"].url, api_key=API_KEY) for _ in range(2)]
    for number, each in enumerate(made):
        assert (await each.info()).node == "a"
        await each.exec(f"echo {number} > file")
        await each.stop()
        await each.move("b")
    layers = await asyncio.to_thread(lambda: list((cluster.homes["b"] / "layers").glob("*/data/workspace/large")))
    assert len(layers) == 1
    for number, each in enumerate(made):
        await each.start()
        assert (await each.exec("cat file; wc -c < large")).stdout == f"{number}\n3000000\n"
        await each.reset()
        assert (await each.exec("cat file")).stdout == "base\n"
        await each.destroy()
    await base.destroy()
    await snapshot.delete()


async def test_one_with_a_disk_of_its_own_moves(cluster: Cluster) -> None:
    made = await on_node(cluster, "a", limits=Limits(disk=64 << 20))
    await made.exec("echo kept > file")
    await made.stop()
    await made.move("b")
    await made.start()
    assert (await made.exec("cat file")).stdout == "kept\n"
    assert "disk" in (await made.info()).limits_enforced
    await made.destroy()


async def test_what_cannot_be_moved_is_refused_before_anything_happens(cluster: Cluster) -> None:
    made = await on_node(cluster, "a")
    with pytest.raises(ValidationFailed, match="stop it first"):
        await made.move("b")
    await made.stop()
    with pytest.raises(ValidationFailed, match="the nodes of this cluster are a, b, c"):
        await made.move("z")
    with pytest.raises(SandboxNotFound):
        await (await cluster["a"].connect("nobody")).move("b")
    volume = await AsyncVolume.create("bound", url=cluster["a"].url, api_key=API_KEY)
    bound = await on_node(cluster, "a", mounts=[VolumeMount(volume="bound", target="/data")])
    await bound.stop()
    with pytest.raises(ValidationFailed, match="the volume bound of this node"):
        await bound.move("b")
    await bound.destroy()
    await volume.delete()
    assert await asyncio.to_thread(moves_of, cluster) == []
    await made.start()
    await made.destroy()


async def test_a_sandbox_under_load_is_moved_while_it_is_called(cluster: Cluster) -> None:
    """Every call that was answered has run once, and no other more than once, whichever node it ran on."""
    made = await on_node(cluster, "a", "under-load")
    answered: list[str] = []
    is_over = asyncio.Event()

    async def call(node: str) -> None:
        sandbox = await cluster[node].connect(made.id)
        try:
            for number in count():
                while not is_over.is_set():
                    try:
                        told = await sandbox.exec(f"echo {node}-{number} >> log")
                    except (SandboxUnavailable, SandboxStopped):
                        await asyncio.sleep(0.01)  # nothing was started: the same is tried again, as clients do
                        continue
                    answered.extend([f"{node}-{number}"] if told.exit_code == 0 else [])
                    break
                else:
                    return
        finally:
            is_over.set()

    async def move() -> None:
        try:
            for node in ("b", "c", "a", "b"):
                before = len(answered)
                while len(answered) < before + 5 and not is_over.is_set():
                    await asyncio.sleep(0.01)
                await made.stop()
                await made.move(node)
                await made.start()
        finally:
            is_over.set()

    await together([move(), *(call(node) for node in NAMES)])
    ran = (await made.exec("cat log")).stdout.split()
    assert len(set(ran)) == len(ran)
    assert set(answered) <= set(ran)
    assert len(answered) >= 20
    assert (await made.info()).node == "b"
    await made.destroy()


async def test_a_worker_that_is_killed_leaves_the_sandbox_on_one_node() -> None:
    with cluster_of("a", "b", before=ARM) as cluster:
        for step in ("settled", "claimed"):
            await move_and_kill(cluster, step)


@pytest.mark.slow
async def test_a_worker_that_is_killed_at_any_step_leaves_the_sandbox_on_one_node() -> None:
    with cluster_of("a", "b", before=ARM) as cluster:
        for step in (*AT_SOURCE, *AT_TARGET):
            await move_and_kill(cluster, step)


async def move_and_kill(cluster: Cluster, step: str) -> None:
    """Move a sandbox from a to b, where a worker is killed at a step; then it is on one node, with all it had."""
    made = await on_node(cluster, "a", f"killed-{step}")
    await made.exec("echo kept > file")
    session = await made.create_session(id="work")
    await session.exec("X=1")
    await made.stop()
    key = (await cluster["a"].record(made.id)).key
    killed, other = ("a", "b") if step in AT_SOURCE else ("b", "a")
    through, home = await cluster[other].connect(made.id), cluster.homes[killed]
    kill_at(home, step)
    with suppress(ConnectionLost, SandboxUnavailable):
        await through.move("b")
    assert was_killed(home)
    await eventually(lambda: moves_of(cluster) == [])
    holders = await asyncio.to_thread(places_of, cluster, key)
    assert len(holders) == 1
    assert len(await asyncio.to_thread(claims_of, cluster, made.id)) == 1
    await eventually_started(through)
    assert (await through.info()).node == holders[0]
    assert (await through.exec("cat file")).stdout == "kept\n"
    assert (await (await through.get_session("work")).exec("echo $X")).stdout == "1\n"
    await through.destroy()


async def eventually_started(sandbox: AsyncSandbox) -> None:
    """Workers that were killed come back, and those that were asked meanwhile say so."""
    while True:
        try:
            return await sandbox.start()
        except SandboxUnavailable:
            await asyncio.sleep(0.05)


async def test_a_preview_and_a_token_of_a_moved_sandbox_hold_through_every_node(cluster: Cluster) -> None:
    made = await on_node(cluster, "a")
    exposed = await made.ports.expose(3000)
    token = await made.token(["files.read", "sandbox.read"], expires=600)
    label = urlsplit(exposed.url).netloc.partition(".")[0]
    for node in ("b", "c", "a", "b"):
        await made.stop()
        await made.move(node)
        await made.start()
        await start(made, HTTP, 3000)
        (listed,) = await made.ports.list()
        assert (listed.token, urlsplit(listed.url).netloc.partition(".")[0]) == (exposed.token, label)
        for name in NAMES:
            assert (await visit(cluster, name, label)).status == 200
            assert (await visit(cluster, name, label[:-1])).status == 404
            with_token = await AsyncSandbox.connect(made.id, url=cluster[name].url, api_key=token)
            assert (await with_token.info()).node == node
    await made.ports.unexpose(3000)
    assert {(await visit(cluster, name, label)).status for name in NAMES} == {404}
    again = await made.ports.expose(3000)
    assert (await visit(cluster, "c", urlsplit(again.url).netloc.partition(".")[0])).status == 200
    await made.destroy()
    assert {(await visit(cluster, name, label)).status for name in NAMES} == {404}
    with pytest.raises(SandboxDestroyed):
        await with_token.info()


async def visit(cluster: Cluster, node: str, label: str) -> Reply:
    """What a visitor of previews gets through a node."""
    address = await asyncio.to_thread((cluster.homes[node] / "server" / "preview.json").read_bytes)
    async with connect(int(json.loads(address)["base"].rpartition(":")[2])) as client:
        return await client.ask(f"/{label}/headers")
