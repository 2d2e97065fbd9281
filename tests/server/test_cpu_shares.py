"""Processors are shared out between tenants: all that runs for one of them is in one control group."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.servers import Server, eventually, serving

from cove import AsyncApiKey, AsyncSandbox
from cove.linux.cgroup import SHARE, Hierarchies, find_hierarchies, group_path
from cove.server.sandboxes.cpu_shares import enter_share, enter_workers, remove_empty_shares

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    home = Path(tempfile.mkdtemp(prefix="cove-shares-", dir="/tmp"))
    home.chmod(0o711)
    with serving(home, "--on-stop", "destroy") as running:
        yield running
    shutil.rmtree(home)


def share_of(pid: int | str) -> str:
    """The tenant's group that a process is in or below; of another process, its group."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "cpu" or (not controllers and "cpu" in find_hierarchies().controllers):
            return next((part for part in path.split("/") if part.startswith(SHARE)), path)
    return ""


async def tenant(server: Server, name: str) -> str:
    return (await AsyncApiKey.create(name, url=server.url, api_key=server.key)).key


def shares(server: Server, sandbox: AsyncSandbox, tenant: str) -> set[str]:
    """Of the process that runs the sandbox, and of a command inside."""
    directory = server.directory.of(tenant)
    record = directory.find(sandbox.id)
    assert record is not None
    holder = directory.holder(record.key)
    assert holder is not None
    path = group_path(find_hierarchies().v1.get("cpu", find_hierarchies().unified or ""), record.key)
    return {share_of(holder[0]), next(part for part in path.split("/") if part.startswith(SHARE))}


def groups_of_workers(server: Server) -> set[str]:
    workers = [pid for pid, role in server.children().items() if role == "worker"]
    return {share_of(pid).rpartition("/")[2] for pid in workers}


async def test_each_tenant_has_one_share_whatever_it_runs(server: Server) -> None:
    found = await asyncio.to_thread(find_hierarchies)
    if "cpu" not in found.v1 and "cpu" not in found.controllers:
        pytest.skip("processors cannot be shared out here")
    a, b = await tenant(server, "a"), await tenant(server, "b")
    boxes = [await AsyncSandbox.create(url=server.url, api_key=key) for key in (a, a, b)]
    own = await server.create()
    try:
        first, second, other = [
            await asyncio.to_thread(shares, server, box, name) for box, name in zip(boxes, ("a", "a", "b"), strict=True)
        ]
        assert first == second
        assert len(first) == len(other) == 1
        assert first != other
        assert SHARE not in await asyncio.to_thread(share_of, await server.runtime(own.id))
        assert await asyncio.to_thread(groups_of_workers, server) == {"workers"}
    finally:
        for box in (*boxes, own):
            await box.destroy()

    def is_gone() -> bool:
        remove_empty_shares(found)
        return not any(list(Path(tree).glob(name)) for tree in found.all for name in (*first, *other))

    await eventually(is_gone)


def test_without_a_controller_nothing_changes(tmp_path: Path) -> None:
    without = Hierarchies(str(tmp_path))
    assert enter_share(without, tmp_path, "a") == without
    enter_workers(without)
    unusable = replace(without, v1={"cpu": str(tmp_path / "missing" / "cove")})
    assert enter_share(unusable, tmp_path, "a") == unusable
    enter_workers(unusable)
    remove_empty_shares(without)
    assert list(tmp_path.iterdir()) == []


def test_a_group_is_found_in_its_share_or_beside_it(tmp_path: Path) -> None:
    for path in ("one", f"{SHARE}1/two"):
        (tmp_path / path).mkdir(parents=True)
    assert group_path(str(tmp_path), "one") == str(tmp_path / "one")
    assert group_path(str(tmp_path), "two") == str(tmp_path / f"{SHARE}1" / "two")
    assert group_path(str(tmp_path), "three") == str(tmp_path / "three")
    remove_empty_shares(Hierarchies(str(tmp_path)))
    assert (tmp_path / f"{SHARE}1" / "two").is_dir()
