"""Where layers cannot be shown as overlays, snapshots, restore, copies and transactions work by copying."""

import asyncio
import dataclasses
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.layers import layers_of_sandboxes
from support.servers import eventually

from cove import AsyncSandbox, AsyncSnapshot, Mount, SessionNotFound
from cove.attach import actions
from cove.core.jail import copy_mark
from cove.errors import SandboxDestroyed, SandboxUnavailable
from cove.layers import place
from cove.linux.pidfd import kill_orphans
from cove.local.threads import in_thread
from cove.model import SnapshotMethod
from cove.runtime import tree_copy
from cove.runtime.jail import Jail
from cove.runtime.provider import EMBEDDED
from cove.runtime.sandbox import Sandbox

pytestmark = pytest.mark.anyio

FILL = """
mkdir -m 750 d; echo one > d/f; ln d/f d/link; ln -s f d/s; echo gone > x
echo h > ~/h; chmod 0 ~/h; mkfifo /tmp/p
"""
TELL = "cat d/f; find . ~ /tmp \\( -type f -printf '%p %m %n %s %T@\\n' -o -printf '%p %y %m %l\\n' \\) | sort"


@pytest.fixture(autouse=True)
async def copying(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = await EMBEDDED._examine()
    monkeypatch.setattr(EMBEDDED, "_machine", dataclasses.replace(machine, snapshots=SnapshotMethod.COPY))


async def test_restore_brings_files_and_sessions_back_and_ends_what_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.info()).snapshots is SnapshotMethod.COPY
        (await sandbox.exec(FILL)).check()
        session, gone = await sandbox.create_session(id="s", cwd="d"), await sandbox.create_session()
        await session.exec("v=1; f() { echo $v; }")
        await gone.delete()
        told = (await sandbox.exec(TELL)).stdout
        first = await sandbox.snapshot()
        await sandbox.exec("rm -r d x; chmod 777 .; echo two > ~/two")
        await session.exec("v=2; cd /")
        second = await sandbox.snapshot()
        later = await sandbox.create_session()
        process = await sandbox.start_process("exec sleep 1000")
        for snapshot, wanted, value in (
            (first, told, "1 /workspace/d"),
            (second, None, "2 /"),
            (first, told, "1 /workspace/d"),
        ):
            await sandbox.restore(snapshot)
            assert wanted is None or (await sandbox.exec(TELL)).stdout == wanted
            assert (await session.exec('echo "$(f) $PWD"')).stdout == f"{value}\n"
        assert (await process.wait()).exit_code == 137
        with pytest.raises(SessionNotFound):
            await later.exec("true")
        assert (
            await session.exec("pwd; cat f; echo three > f; cat /workspace/d/link")
        ).stdout == "/workspace/d\none\nthree\n"
        changed = {(each.path, each.kind.value) for each in await sandbox.changes(since=first)}
        assert changed == {("/workspace/d/f", "modified"), ("/workspace/d/link", "modified")}
        assert await sandbox.changes(since=second) != []
        await sandbox.restart()
        assert (await sandbox.exec("cat d/f")).stdout == "three\n"
        report = await sandbox.reset()
        assert (report.method, report.files) == ("empty", 0)
        assert (await sandbox.exec("ls -A . ~ /tmp")).stdout == ".:\n\n/home/user:\n\n/tmp:\n"
        for snapshot in (first, second):
            await snapshot.delete()


async def test_copies_have_the_files_and_nothing_in_common() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(FILL)).check()
        await (await sandbox.create_session(id="s")).exec("v=1")
        told = (await sandbox.exec(TELL)).stdout
        copies = await sandbox.fork(count=2)
        try:
            for number, copy in enumerate(copies):
                assert (await copy.exec(TELL)).stdout == told
                assert (await (await copy.get_session("s")).exec("echo $v")).stdout == "1\n"
                await copy.exec(f"echo {number} >> d/f; chmod 600 ~/h; echo more >> ~/h")
                assert [each.path for each in await copy.changes()] == [
                    "/home/user/h",
                    "/workspace/d/f",
                    "/workspace/d/link",
                ]
            assert (await sandbox.exec(TELL)).stdout == told
            report = await copies[0].reset()
            assert (report.method, report.files) == ("copy", 0)
            assert report.digest == (await copies[0].reset()).digest
            assert (await copies[0].exec(TELL)).stdout == told
            await copies[1].restart()
            assert (await copies[1].exec("cat d/f")).stdout == "one\n1\n"
        finally:
            for copy in copies:
                await copy.destroy()
        assert isinstance(sandbox, Sandbox)
        store = sandbox.layers.store
    assert await in_thread(layers_of_sandboxes, store.path.parent) == []


async def test_a_transaction_is_rolled_back_or_kept() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(FILL)).check()
        session = await sandbox.create_session()
        told = (await sandbox.exec(TELL)).stdout
        async with sandbox.transaction():
            await session.exec("v=kept; mkdir new; cd new; rm -r ../d")
        assert (await sandbox.exec(TELL)).stdout == told
        assert (await session.exec("echo $v; pwd")).stdout == "kept\n/workspace\n"
        async with sandbox.transaction() as change:
            await sandbox.exec("echo two > d/f")
            await change.commit()
        assert (await sandbox.exec("cat d/f")).stdout == "two\n"
        await sandbox.begin_transaction()
        await sandbox.exec("echo three > d/f")
        await sandbox.restart()
        assert (await sandbox.exec("cat d/f")).stdout == "two\n", "a start takes back what was open"
        id = await sandbox.begin_transaction()
        await sandbox.exec("touch late")
        await sandbox.renew_transaction(id, lease=0.05)
        async with asyncio.timeout(20):
            while (await sandbox.exec("[ -e late ]")).ok:
                pass
        assert (await session.exec("echo $v")).stdout == "kept\n"


async def test_mounts_stay_and_a_process_that_holds_files_is_no_obstacle(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    source = tmp_path_factory.mktemp("mounted")
    (source / "f").write_text("host")
    for path in (source, *source.parents):
        if path.stat().st_uid == os.geteuid() and str(path) != "/":
            path.chmod(path.stat().st_mode | 0o011)
    async with AsyncSandbox.create(mounts=[Mount(source=str(source), target="/workspace/in/data")]) as sandbox:
        await sandbox.exec("echo own > in/own")
        snapshot = await sandbox.snapshot()
        holder = await sandbox.start_process("exec 3>> in/own; echo more >&3; echo held; sleep 1000")
        await holder.wait_for_log("held")
        await sandbox.restore(snapshot)
        assert (await sandbox.exec("cat in/own in/data/f")).stdout == "own\nhost"
        await snapshot.delete()


async def test_a_chain_made_with_overlays_is_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as context:
        machine = await EMBEDDED._examine()
        context.setattr(EMBEDDED, "_machine", dataclasses.replace(machine, snapshots=SnapshotMethod.OVERLAY))
        async with AsyncSandbox.create() as sandbox:
            if (await sandbox.info()).snapshots is not SnapshotMethod.OVERLAY:
                pytest.skip("this machine has no overlays")
            (await sandbox.exec(FILL)).check()
            made = [await sandbox.snapshot()]
            await sandbox.exec("rm x; rm -r d; mkdir d; echo new > d/f")
            made.append(await sandbox.snapshot())
    async with AsyncSandbox.create(snapshot=made[1]) as copy:
        assert (await copy.exec("cat d/f; ls . d; cat x 2>&1 | wc -l")).stdout == "new\n.:\nd\n\nd:\nf\n1\n"
        await copy.restore(made[0])
        assert (await copy.exec("cat d/f x")).stdout == "one\ngone\n"
    for info in await AsyncSnapshot.list():
        await (await AsyncSnapshot.get(info.id)).delete()


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program that copies never end."""
    for module in (tree_copy, actions):
        monkeypatch.setattr(module, "COPY_PROGRAM", "/usr/bin/tail")
        monkeypatch.setattr(module, "COPY_OPTIONS", ("-f", "/dev/null"))


def copiers(key: str) -> list[str]:
    mark = copy_mark(key).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


async def destroy_while(copying: "asyncio.Future[object] | asyncio.Future[None]", sandbox: Sandbox, home: Path) -> None:
    key = sandbox.layers.place.place.name
    async with asyncio.timeout(60):
        await sandbox.destroy()
        with pytest.raises(SandboxDestroyed):
            await copying
    assert copiers(key) == []
    assert not (home / "sandboxes" / key).exists()
    assert layers_of_sandboxes(home) == []


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("call", ["snapshot", "fork"])
async def test_a_destruction_ends_a_copy_under_way(call: str, cove_home: Path) -> None:
    sandbox = await AsyncSandbox.create()
    assert isinstance(sandbox, Sandbox)
    await sandbox.exec("echo 1 > f")
    copying = asyncio.ensure_future(getattr(sandbox, call)())
    await eventually(lambda: copiers(sandbox.layers.place.place.name) != [])
    await destroy_while(copying, sandbox, cove_home)


async def test_a_destruction_ends_a_restore_under_way(cove_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await AsyncSandbox.create()
    assert isinstance(sandbox, Sandbox)
    snapshot = await sandbox.snapshot()
    has_begun = threading.Event()

    def merge(*_: object, check: Callable[[], None], **__: object) -> None:
        has_begun.set()
        while True:
            check()

    monkeypatch.setattr(place, "merge_layers", merge)
    restoring = asyncio.ensure_future(sandbox.restore(snapshot))
    await eventually(has_begun.is_set)
    await snapshot.delete()
    await destroy_while(restoring, sandbox, cove_home)


async def test_a_program_that_is_started_after_its_copy_was_ended_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await AsyncSandbox.create()
    assert isinstance(sandbox, Sandbox)
    key, looked, kill = sandbox.layers.place.place.name, threading.Event(), kill_orphans

    def look(*marks: str) -> int:
        found = kill(*marks)
        looked.set()
        return found

    def copy_late(*_: object, **__: object) -> None:
        begun.set()
        looked.wait()
        if subprocess.run([copy_mark(key), "1000"], executable="/bin/sleep", check=False).returncode:
            raise SandboxUnavailable("it was ended")

    begun = threading.Event()
    monkeypatch.setattr(tree_copy, "kill_orphans", look)
    monkeypatch.setattr(tree_copy, "copy_tree", copy_late)
    monkeypatch.setattr(Jail, "perform", copy_late)
    copying = asyncio.ensure_future(sandbox.snapshot())
    await eventually(begun.is_set)
    async with asyncio.timeout(60):
        await sandbox.destroy()
        with pytest.raises(SandboxDestroyed):
            await copying
    assert copiers(key) == []
