"""Layers that come from another node: each once, verified, gone on with after a break; nothing half is left."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from support.image_files import Item, directory, hard_link, make_layer, make_oci, symlink
from support.images import open_store
from support.shipping_nodes import PlayedSource, fetching_to, played_source

from cove.errors import LimitExceeded, NodeLost, NotFound, PlacementUnavailable, ValidationFailed
from cove.images.store import ImageStore
from cove.images.whole_layer import pack_whole
from cove.layers.digest import Hashing
from cove.layers.record import Layer, Snapshot
from cove.layers.store import LayerStore
from cove.model import SandboxSpec, TransferProgress
from cove.server.cluster.fetching import Fetching
from cove.server.cluster.shipment import (
    Holding,
    decode_shipment,
    describe_shipment,
    find_holding,
    find_record,
    forget_copy,
)
from cove.server.sandboxes.directory import Directory
from cove.tasks import end, owned, together

pytestmark = pytest.mark.anyio

SPEC = SandboxSpec(image="app")
BASE = make_layer([directory("srv"), Item("srv/large", os.urandom(3 << 20)), Item("srv/one", b"1", uid=33, gid=34)])


def second(content: bytes) -> bytes:
    items = [
        Item("srv/.wh.one"),
        Item("home/user/file", content, mode=0o600, uid=7),
        Item("srv/many", bytes(1 << 20)),
        hard_link("srv/again", "srv/many"),
        symlink("srv/link", "/etc/passwd"),
        directory("tmp/sticky", 0o1777),
    ]
    return make_layer(items)


def load(home: Path, name: str, content: bytes = b"x", tenant: str = "") -> None:
    store = open_store(home)
    store = ImageStore(home, LayerStore(home, tenant)) if tenant else store
    path = make_oci([BASE, second(content)]).write(home / "image.tar")
    store.load(path, name)
    path.unlink()


@pytest.fixture
def there(tmp_path: Path) -> Path:
    home = tmp_path / "there"
    home.mkdir()
    load(home, "app")
    return home


def make_home(home: Path) -> Path:
    home.mkdir()
    open_store(home)
    (home / "ids").mkdir()
    return home


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return make_home(tmp_path / "here")


@pytest.fixture
async def source(there: Path) -> AsyncIterator[tuple[PlayedSource, int]]:
    async with played_source(there) as found:
        yield found


@pytest.fixture
def fetching(here: Path, source: tuple[PlayedSource, int]) -> Fetching:
    return fetching_to(here, d=source[1])


async def provide(fetching: Fetching, here: Path, spec: SandboxSpec = SPEC, tenant: str = "") -> None:
    await fetching.provide(Directory(here, tenant), spec)


async def digests(home: Path, noun: str = "image", name: str = "app") -> dict[str, str]:
    def compute() -> dict[str, str]:
        found = {}
        for id in find_record(home, noun, name, "").layers:
            hashing = Hashing(lambda _: None)
            pack_whole(LayerStore(home), id, hashing, lambda: None)
            found[id] = hashing.digest
        return found

    return await asyncio.to_thread(compute)


def on_disk(home: Path) -> list[str]:
    return sorted(os.listdir(home / "layers"))


async def held(home: Path, noun: str = "image", name: str = "app", tenant: str = "") -> Holding | None:
    return await asyncio.to_thread(find_holding, home, noun, name, tenant)


async def test_what_is_fetched_is_the_same_with_its_owners_and_told_as_it_comes(
    fetching: Fetching, source: tuple[PlayedSource, int], here: Path, there: Path
) -> None:
    told: list[TransferProgress] = []
    made = await fetching.fetch("image", "app", "d", progress=told.append)
    assert made == await held(here)
    assert (await held(there), made.origin) == (Holding(id=made.id), "d")
    assert await digests(here) == await digests(there)
    assert (told[-1].layers, told[-1].total_layers) == (2, 2)
    assert told[-1].bytes > len(BASE)
    assert len(source[0].layers_asked()) == 2
    await provide(fetching, here)
    assert len(source[0].layers_asked()) == 2


async def test_of_many_who_need_a_layer_at_once_one_fetches_it(
    source: tuple[PlayedSource, int], here: Path, there: Path
) -> None:
    workers = [fetching_to(here, d=source[1]) for _ in range(2)]
    await together(provide(each, here) for each in workers * 4)
    asked = source[0].layers_asked()
    assert sorted(asked) == sorted(await digests(there))
    assert await digests(here) == await digests(there)


def flip(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


@pytest.mark.parametrize("change", [flip, lambda data: data[:-512], lambda data: data + bytes(512), lambda _: b""])
async def test_wrong_bytes_are_refused_and_nothing_of_them_stays(
    fetching: Fetching, source: tuple[PlayedSource, int], here: Path, change: object
) -> None:
    source[0].change = change  # type: ignore[assignment]  # one of those above
    with pytest.raises(ValidationFailed, match="refused"):
        await fetching.fetch("image", "app", "d")
    assert await asyncio.to_thread(on_disk, here) == []
    with pytest.raises(PlacementUnavailable, match="node d: refused"):
        await provide(fetching, here)
    assert await held(here) is None


async def test_a_source_that_is_lost_in_the_middle_is_gone_on_with_when_it_is_back(
    fetching: Fetching, source: tuple[PlayedSource, int], here: Path, there: Path
) -> None:
    source[0].most = 1 << 20
    with pytest.raises(NodeLost):
        await fetching.fetch("image", "app", "d")
    assert (await asyncio.to_thread(on_disk, here), await held(here)) == ([], None)
    source[0].most = None
    await provide(fetching, here)
    assert await digests(here) == await digests(there)


async def test_layers_that_are_there_are_not_fetched_again(
    fetching: Fetching, source: tuple[PlayedSource, int], here: Path, there: Path
) -> None:
    await fetching.fetch("image", "app", "d")
    await asyncio.to_thread(load, there, "app", b"other")
    source[0].asked.clear()
    await provide(fetching, here)
    assert source[0].layers_asked() == list(await digests(there))[1:]
    assert await digests(here) == await digests(there)


async def test_a_cancelled_fetch_leaves_nothing_half(
    fetching: Fetching, source: tuple[PlayedSource, int], here: Path
) -> None:
    source[0].most, source[0].stalls = 1 << 20, asyncio.Event()
    task = owned(fetching.fetch("image", "app", "d"))
    await source[0].stalled.wait()
    await end(task)
    assert task.cancelled()
    assert await asyncio.to_thread(on_disk, here) == []
    source[0].most = None
    await provide(fetching, here)
    assert await held(here) is not None


async def test_a_copy_is_used_no_more_when_its_origin_has_something_else_or_nothing(
    fetching: Fetching, here: Path, there: Path
) -> None:
    await provide(fetching, here)
    await asyncio.to_thread(load, there, "app", b"newer")
    await provide(fetching, here)
    now = await held(there)
    assert now is not None
    assert await held(here) == Holding(id=now.id, origin="d")
    await asyncio.to_thread(ImageStore(there, LayerStore(there)).delete, "app")
    await provide(fetching, here)
    assert (await held(here), await asyncio.to_thread(on_disk, here)) == (None, [])


async def test_a_copy_is_used_and_given_on_while_its_origin_does_not_answer(
    here: Path, there: Path, tmp_path: Path
) -> None:
    async with played_source(there) as (_, port):
        await provide(fetching_to(here, d=port), here)
    await provide(fetching_to(here, d=port), here)
    third = await asyncio.to_thread(make_home, tmp_path / "third")
    async with played_source(here) as (_, second_port):
        away = fetching_to(third, d=port, e=second_port)
        await provide(away, third)
    assert await held(third) == await held(here)


async def test_what_no_node_has_is_left_to_who_makes_the_sandbox_unless_one_is_silent(
    fetching: Fetching, here: Path, source: tuple[PlayedSource, int]
) -> None:
    await provide(fetching, here, SandboxSpec(image="nothing"))
    await provide(fetching, here, SandboxSpec(snapshot="nothing"))
    assert source[0].layers_asked() == []
    alone = fetching_to(here, d=source[1], e=1)
    with pytest.raises(PlacementUnavailable, match="e does not answer"):
        await provide(alone, here, SandboxSpec(image="nothing"))
    with pytest.raises(NotFound):
        await fetching.fetch("image", "nothing", "d")


async def test_what_is_a_tenants_stays_the_tenants(here: Path, there: Path) -> None:
    await asyncio.to_thread(load, there, "mine", b"x", "team")
    async with played_source(there) as (_, port):
        fetching = fetching_to(here, d=port)
        await provide(fetching, here, SandboxSpec(image="mine"))
        await provide(fetching, here, SandboxSpec(image="mine"), "others")
        assert await asyncio.to_thread(on_disk, here) == []
        await provide(fetching, here, SandboxSpec(image="mine"), "team")
    assert await held(here, name="mine") is None
    assert await held(here, name="mine", tenant="others") is None
    found = await asyncio.to_thread(find_record, here, "image", "mine", "team")
    assert (found.tenant, found.origin) == ("team", "d")


def make_snapshot(home: Path) -> Snapshot:
    """A snapshot without a system, of two layers, and with a session."""
    store = LayerStore(home)
    for id in ("lower", "upper"):
        building = store.building()
        for part in ("home", "tmp", "workspace"):
            (building / "data" / part).mkdir(parents=True)
        (building / "data" / "workspace" / id).write_text(id)
        os.setxattr(building / "data" / "workspace" / id, "user.mine", b"kept")
        store.adopt(
            building, Layer(id=id, owner=os.geteuid(), created_at=find_record(home, "image", "app", "").created_at)
        )
    store.sessions("snap").mkdir()
    (store.sessions("snap") / "index").write_bytes(b"[]")
    created = store.read("upper").created_at
    return store.keep(Snapshot(id="snap", created_at=created, layers=("lower", "upper"), name="named", tenant="team"))


async def test_a_snapshot_comes_with_its_sessions_and_its_owner(fetching: Fetching, here: Path, there: Path) -> None:
    made = await asyncio.to_thread(make_snapshot, there)
    await provide(fetching, here, SandboxSpec(snapshot="snap"), "others")
    assert await held(here, "snapshot", "snap") is None
    await provide(fetching, here, SandboxSpec(snapshot="snap"), "team")
    found = await asyncio.to_thread(find_record, here, "snapshot", "snap", "team")
    assert found == msgspec.structs.replace(made, origin="d")
    assert await digests(here, "snapshot", "snap") == await digests(there, "snapshot", "snap")
    store = LayerStore(here)
    assert (store.sessions("snap") / "index").read_bytes() == b"[]"
    assert os.getxattr(store.data("upper") / "workspace" / "upper", "user.mine") == b"kept"


@pytest.mark.parametrize("id", ["../up", ".new-x", "a/b", "", "x" * 200])
def test_a_layer_with_a_name_that_none_has_is_refused(there: Path, id: str) -> None:
    made = describe_shipment(there, "image", "app", "", lambda: None)
    record = msgspec.structs.replace(made.record, layers=(id,))
    layer = msgspec.structs.replace(made.layers[0], id=id)
    with pytest.raises(ValidationFailed):
        decode_shipment(
            msgspec.json.encode(msgspec.structs.replace(made, record=record, layers=(layer,))), "image", "app"
        )


@pytest.mark.parametrize("change", [{"digest": "sha256:x"}, {"size": -1}, {"size": 1 << 50}])
def test_a_layer_that_cannot_be_is_refused(there: Path, change: dict[str, object]) -> None:
    made = describe_shipment(there, "image", "app", "", lambda: None)
    archive = msgspec.structs.replace(made.layers[0].archive, **change)
    layers = (msgspec.structs.replace(made.layers[0], archive=archive), *made.layers[1:])
    with pytest.raises(ValidationFailed):
        decode_shipment(msgspec.json.encode(msgspec.structs.replace(made, layers=layers)), "image", "app")


def test_what_is_another_thing_or_too_much_is_refused(there: Path) -> None:
    made = describe_shipment(there, "image", "app", "", lambda: None)
    for wrong in (b"", b"{", b"[]", b"\xff", msgspec.json.encode(msgspec.structs.replace(made, layers=()))):
        with pytest.raises(ValidationFailed):
            decode_shipment(wrong, "image", "app")
    with pytest.raises(ValidationFailed):
        decode_shipment(msgspec.json.encode(made), "snapshot", "app")
    archive = msgspec.structs.replace(made.layers[0].archive, size=33 << 30)
    layers = (msgspec.structs.replace(made.layers[0], archive=archive), *made.layers[1:])
    with pytest.raises(LimitExceeded):
        decode_shipment(msgspec.json.encode(msgspec.structs.replace(made, layers=layers)), "image", "app")


async def test_a_disk_without_room_and_too_many_jobs_refuse_before_anything_is_fetched(
    fetching: Fetching, source: tuple[PlayedSource, int], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = __import__("shutil").disk_usage(here)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda _: usage._replace(free=1 << 20))
        with pytest.raises(LimitExceeded, match="disk"):
            await provide(fetching, here)
    none = fetching_to(here, d=source[1])
    none._most_jobs = 0
    with pytest.raises(LimitExceeded, match="max_image_jobs"):
        await provide(none, here)
    assert source[0].layers_asked() == []


def test_only_copies_are_forgotten(there: Path) -> None:
    forget_copy(there, "image", "app", "")
    forget_copy(there, "image", "nothing", "")
    assert find_holding(there, "image", "app", "") is not None


async def test_a_copy_of_the_servers_image_is_no_tenants_to_forget(fetching: Fetching, here: Path) -> None:
    await provide(fetching, here)
    await asyncio.to_thread(forget_copy, here, "image", "app", "team")
    assert await held(here) is not None
    await asyncio.to_thread(forget_copy, here, "image", "app", "")
    assert await held(here) is None
