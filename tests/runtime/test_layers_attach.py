"""Layers shown in a living jail: overlays by attach, sealed mounts, frozen processes."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cove import AsyncSandbox
from cove.attach import Action, MountBusy, NetworkSysctls, NoNamespaces, ShowLayers, plan
from cove.attach.actions import prelude
from cove.linux.mounts import detach_mount, map_owner, owner_mapping
from cove.local.threads import in_thread
from cove.runtime.freeze import frozen
from cove.runtime.jail import Jail
from cove.runtime.sandbox import Sandbox

pytestmark = pytest.mark.anyio

PARTS = {"workspace": "/workspace", "home": "/home/user", "tmp": "/tmp"}


def inner(sandbox: AsyncSandbox) -> Sandbox:
    assert isinstance(sandbox, Sandbox)
    return sandbox


def make_tree(path: Path, owner: int | None, *, has_work: bool = False) -> Path:
    for name in (*(f"data/{part}" for part in PARTS), *(["work"] if has_work else [])):
        (path / name).mkdir(parents=True, mode=0o700)
    if owner is not None:
        for each in (path, *path.rglob("*")):
            os.chown(each, owner, owner)
    return path


@asynccontextmanager
async def sources(stack: list[Path], owner: int | None, user: int | None) -> AsyncIterator[list[str | int]]:
    """Paths for a plain user; for root, detached mounts whose files belong to the sandbox's user."""
    if user is None:
        yield [str(path) for path in stack]
        return
    found = await in_thread(detach_all, stack, owner, user)
    yield [*found]
    for mount in found:
        os.close(mount)


def detach_all(stack: list[Path], owner: int | None, user: int) -> list[int]:
    found = []
    for path in stack:
        found.append(detach_mount(str(path)))
        if owner is not None and path.name == "data":
            with owner_mapping(owner, user) as namespace:
                map_owner(found[-1], namespace, read_only=True)
    return found


@pytest.mark.pure
def test_layers_are_merged_out_of_sight_and_sealed_before_the_swap() -> None:
    action = ShowLayers(["/l/a", "/l/b"], "/p/u", PARTS, below=["/workspace/data"], sealed=True)
    steps = plan([action])
    assert [step.verb for step in steps] == [
        *("user", "copy", "bench", "layer", "layer", "layer", "merge"),
        *("mounts", "readonly", "swap", "swap", "swap"),
    ]
    assert steps[6].fields == ("1:0", "workspace", "home", "tmp")
    assert steps[9].fields == ("workspace", "/workspace", "/workspace/data")


@pytest.mark.pure
def test_what_is_put_together_early_is_not_planned_again_and_changes_nothing_inside() -> None:
    actions: list[Action] = [NoNamespaces(), NetworkSysctls({"ipv4/a": "0"}), ShowLayers(["/l/a"], "/p/u", PARTS)]
    assert [step.verb for step in prelude(actions)] == [
        *("user", "settings", "copy", "bench", "layer", "layer", "merge")
    ]
    rest = [step.verb for step in plan(actions, has_begun=True)]
    assert rest == ["setting", "net", "sysctl", "mounts", "swap", "swap", "swap"]


async def test_layers_of_another_owner_are_shown_in_a_living_jail_and_never_written(tmp_path: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        place = inner(sandbox)._place
        owner = None if place.user_id is None else 1234
        layer = make_tree(tmp_path / "layer", None)
        (layer / "data/workspace/old").mkdir()
        (layer / "data/workspace/old/file").write_text("from below")
        (layer / "data/tmp/secret").write_text("closed")
        (layer / "data/tmp/secret").chmod(0)
        if owner is not None:
            for each in (layer, *layer.rglob("*")):
                os.chown(each, owner, owner)
        upper = make_tree(place.path / "upper", place.user_id, has_work=True)
        async with sources([layer / "data", upper], owner, place.user_id) as (below, top):
            await inner(sandbox)._jail.attach([ShowLayers([below], top, PARTS)])
        result = await sandbox.exec(
            "cat old/file && stat -c %U old && rm -r old && mkdir old && echo new > old/new && ls -A old "
            "&& chmod 600 /tmp/secret && cat /tmp/secret"
        )
        assert result.stdout == "from belowuser\nnew\nclosed", result.stderr
        assert sorted(path.name for path in layer.rglob("*")) == sorted(["data", *PARTS, "old", "file", "secret"])
        assert (upper / "data/workspace/old/new").read_text() == "new\n"


async def test_a_mount_is_not_sealed_while_somebody_writes_and_then_nothing_has_changed() -> None:
    async with AsyncSandbox.create() as sandbox:
        place, jail = inner(sandbox)._place, inner(sandbox)._jail
        upper = make_tree(place.path / "upper", place.user_id, has_work=True)
        writer = await sandbox.start_process("exec 3>/tmp/held; echo ready; sleep 1000")
        await writer.wait_for_log("ready")
        async with sources([upper], None, place.user_id) as (top,):
            with pytest.raises(MountBusy):
                await jail.attach([ShowLayers([], top, PARTS, sealed=True)])
        assert (await sandbox.exec("echo still > /workspace/a && cat /workspace/a")).stdout == "still\n"
        await writer.kill("KILL")
        await writer.wait()
        async with sources([upper], None, place.user_id) as (top,):
            await jail.attach([ShowLayers([], top, PARTS, sealed=True)])
        assert (await sandbox.exec("ls -A /workspace /tmp; echo new > b")).exit_code == 0
        assert (upper / "data/workspace/b").exists()
        assert (place.workspace / "a").exists()


async def test_nothing_runs_while_a_sandbox_is_frozen() -> None:
    async with AsyncSandbox.create() as sandbox:
        jail, place = inner(sandbox)._jail, inner(sandbox)._place
        counter = await sandbox.start_process("i=0; echo on; while :; do i=$((i+1)); echo $i > /tmp/n; done")
        await counter.wait_for_log("on")
        await sandbox.exec("until [ -s /tmp/n ]; do :; done")
        before = await in_thread(read_while_frozen, jail, place.tmp / "n")
        await sandbox.exec(f"until [ -s /tmp/n ] && [ $(cat /tmp/n) -gt {int(before or 0)} ]; do :; done", timeout=20)
        assert [process.id for process in await sandbox.list_processes() if process.ended_at is None] == [counter.id]


def read_while_frozen(jail: Jail, path: Path) -> str:
    with frozen(jail.groups, jail.pid):
        before = path.read_text()
        for _ in range(200):
            assert path.read_text() == before
    return before
