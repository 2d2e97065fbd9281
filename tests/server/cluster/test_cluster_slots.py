"""Room is counted in slots: sandboxes with larger limits take several, and go where so many are free."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.clusters import Cluster, cluster_of

from cove import Limits, NoCapacity
from cove.errors import LimitExceeded
from cove.server.sandboxes.capacity import check_room, write_capacity
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.reservation import Reservation
from cove.server.sandboxes.slots import Slot, count_slots, forget_stale_slots, take_slots, write_slot
from cove.tasks import together

MEBIBYTE = 1 << 20
SLOT = Slot(cpus=0.5, memory=256 * MEBIBYTE)


@pytest.mark.parametrize(
    ("limits", "slots"),
    [
        (Limits(), 1),
        (Limits(cpus=0.5, memory=256 * MEBIBYTE), 1),
        (Limits(memory=256 * MEBIBYTE + 1), 2),
        (Limits(cpus=2.0, memory=256 * MEBIBYTE), 4),
        (Limits(cpus=0.25, memory=1024 * MEBIBYTE), 4),
    ],
)
def test_larger_limits_take_several_slots(limits: Limits, slots: int) -> None:
    assert SLOT.count(limits) == slots
    assert Slot().count(limits) == 1


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: sockets are below it."""
    with TemporaryDirectory(prefix="cove-slots-", dir="/tmp") as path:
        yield Path(path)


def test_a_node_has_room_for_so_many_slots(home: Path) -> None:
    directory = Directory(home)
    directory.open()
    write_slot(home, SLOT)
    write_capacity(home, 5)
    large = Limits(memory=1024 * MEBIBYTE)
    held = Reservation.hold(directory, "large")
    take_slots(directory, "large", large)
    take_slots(directory, "large", large)
    assert count_slots(directory) == 4
    check_room(directory, 1)
    with pytest.raises(LimitExceeded, match="4 are taken"):
        check_room(directory, 2)
    held.remove()
    assert count_slots(directory) == 0
    again = Reservation.hold(directory, "large")
    take_slots(directory, "large", Limits())
    assert count_slots(directory) == 1
    again.remove()
    take_slots(directory, "large", large)
    forget_stale_slots(directory)
    assert list((home / "slots").iterdir()) == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = f"max_sandboxes = 4\ndefault_limits = {{ memory = {64 * MEBIBYTE} }}"
    with cluster_of("a", "b", settings=settings) as found:
        yield found


@pytest.mark.anyio
async def test_a_sandbox_goes_where_its_slots_are_free_or_nowhere(cluster: Cluster) -> None:
    large, three = Limits(memory=256 * MEBIBYTE), Limits(memory=192 * MEBIBYTE)
    first = await cluster["a"].create(None, limits=large)
    node = cluster.node_of(first.id)
    second = await cluster[node].create(None, limits=three)
    other = cluster.node_of(second.id)
    assert other != node
    with pytest.raises(NoCapacity):
        await cluster["a"].create(None, limits=Limits(memory=128 * MEBIBYTE))
    small = await cluster[node].create(None)
    assert cluster.node_of(small.id) == other
    with pytest.raises(NoCapacity):
        await cluster["b"].create(None)
    await small.stop()
    with pytest.raises(LimitExceeded):
        await small.move(node)
    await first.destroy()
    await small.move(node)
    assert (await small.info()).node == node
    third = await cluster[other].create(None, limits=three)
    assert cluster.node_of(third.id) == node
    await second.stop()
    with pytest.raises(LimitExceeded, match="4 are taken"):
        await second.move(node)
    await together(each.destroy() for each in (second, small, third))
    used = await asyncio.to_thread(lambda: [count_slots(Directory(home)) for home in cluster.homes.values()])
    assert used == [0, 0]
