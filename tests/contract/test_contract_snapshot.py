"""Snapshots and the way back, whatever way the sandbox is reached."""

from contextlib import suppress

import pytest
from support.serving import MakeSandbox, Where

from cove import (
    AsyncSandbox,
    AsyncSnapshot,
    FileChange,
    FileChangeKind,
    NotFound,
    SnapshotNotFound,
    TransactionOpen,
    ValidationFailed,
)

pytestmark = pytest.mark.anyio


async def test_a_snapshot_is_restored_and_everything_that_ran_is_gone(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.exec("mkdir d; echo one > d/f; echo t > /tmp/t")
        snapshot = await sandbox.snapshot(name="before", labels={"step": "1"})
        assert (snapshot.name, snapshot.labels, snapshot.parent) == ("before", {"step": "1"}, None)
        process = await sandbox.start_process("echo $$; exec sleep 1000")
        await sandbox.exec("echo two > d/f; rm /tmp/t; touch n")
        await sandbox.restore(snapshot)
        assert (await sandbox.exec("cat d/f /tmp/t; ls")).stdout == "one\nt\nd\n"
        assert (await process.wait()).exit_code == 137
        again = await sandbox.snapshot()
        assert again.parent == snapshot.id
        await sandbox.restore(again.id)
        assert (await sandbox.exec("cat d/f")).stdout == "one\n"
        for each in (snapshot, again):
            await each.delete()
        with pytest.raises(SnapshotNotFound):
            await sandbox.restore(snapshot.id)
        with pytest.raises(SnapshotNotFound):
            await snapshot.delete()
        assert (await sandbox.exec("cat d/f")).stdout == "one\n"


async def test_changes_and_differences_since_creation_and_since_a_snapshot(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.exec("echo one > a; echo b > b")
        found = [(each.path, each.kind) for each in await sandbox.changes()]
        assert found == [("/workspace/a", "added"), ("/workspace/b", "added")]
        snapshot = await sandbox.snapshot()
        await sandbox.exec("echo two > a; rm b; echo c > c")
        assert await sandbox.changes(since=snapshot) == [
            FileChange(path="/workspace/a", kind=FileChangeKind.MODIFIED, size=4),
            FileChange(path="/workspace/b", kind=FileChangeKind.DELETED, size=2),
            FileChange(path="/workspace/c", kind=FileChangeKind.ADDED, size=2),
        ]
        assert [each.path for each in await sandbox.changes()] == ["/workspace/a", "/workspace/c"]
        patch = await sandbox.diff(path="a", since=snapshot.id)
        assert "-one\n+two\n" in patch
        assert "/c" not in patch
        assert "+c\n" in await sandbox.diff()
        await sandbox.restore(snapshot)
        assert await sandbox.changes(since=snapshot) == []
        await snapshot.delete()


async def test_a_reset_sandbox_is_as_it_was_created(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec("echo a > a; echo h > ~/.profile")
        report = await sandbox.reset()
        assert (report.method, report.layers, report.files) == ("empty", (), 0)
        assert (await sandbox.exec("ls -A /workspace ~ /tmp; echo new > a")).stdout == (
            "/home/user:\n\n/tmp:\n\n/workspace:\n"
        )
        assert [each.path for each in await sandbox.changes()] == ["/workspace/a"]


async def test_copies_of_a_sandbox_share_its_files_and_nothing_else(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.exec("echo shared > f")
        copies = await sandbox.fork(count=2)
        try:
            for number, copy in enumerate(copies):
                await copy.exec(f"echo {number} >> f")
            assert [(await each.exec("cat f")).stdout for each in (sandbox, *copies)] == [
                "shared\n",
                "shared\n0\n",
                "shared\n1\n",
            ]
            assert len({sandbox.id, *(copy.id for copy in copies)}) == 3
            report = await copies[0].reset()
            assert report.method == "layers"
            assert (await copies[0].exec("cat f")).stdout == "shared\n"
        finally:
            for copy in copies:
                await copy.destroy()
        with pytest.raises(ValidationFailed):
            await sandbox.fork(count=0)


async def test_a_snapshot_is_found_by_its_id_and_its_labels(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.exec("head -c 300000 /dev/urandom > f")
        made = await sandbox.snapshot(labels={"team": "a", "run": "7"})
    found = await AsyncSnapshot.get(made.id, **where)
    assert (found.created_at, found.labels) == (made.created_at, {"team": "a", "run": "7"})
    assert ((await found.info()).size or 0) >= 300_000
    assert [each.id for each in await AsyncSnapshot.list(labels={"team": "a"}, **where)] == [made.id]
    assert await AsyncSnapshot.list(labels={"team": "b"}, **where) == []
    async with AsyncSandbox.create(snapshot=found, **where) as copy:
        assert (await copy.info()).spec.snapshot == made.id
        assert (await copy.exec("stat -c %s f")).stdout == "300000\n"
    await found.delete()
    with pytest.raises(SnapshotNotFound):
        await AsyncSandbox.create(snapshot=made.id, **where)


async def test_a_snapshot_can_be_made_and_restored_at_a_runtimes_own_socket(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec("echo a > a")
        snapshot = await sandbox.snapshot()
        await sandbox.exec("rm a")
        assert [each.kind for each in await sandbox.changes(since=snapshot)] == ["deleted"]
        await sandbox.restore(snapshot)
        assert (await sandbox.exec("cat a")).stdout == "a\n"
        with suppress(NotFound):  # a runtime's socket has no snapshots
            await snapshot.delete()


async def test_a_transaction_is_taken_back_unless_it_is_committed(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec("echo one > f")
        session = await sandbox.create_session()
        await session.exec("x=kept")
        holder = await sandbox.start_process("cd /; exec 3< /workspace/f; echo held; sleep 1000")
        other = await sandbox.start_process("cd /; exec sleep 1000")
        await holder.wait_for_log("held")
        await holder.kill("KILL")
        await holder.wait()
        async with sandbox.transaction():
            await session.exec("echo two > f; echo x > new")
            with pytest.raises(TransactionOpen):
                await sandbox.snapshot()
            with pytest.raises(TransactionOpen):
                await sandbox.begin_transaction()
            late = await sandbox.start_process("exec 3>> new; echo held; sleep 1000")
            await late.wait_for_log("held")
        assert (await sandbox.exec("cat f; ls")).stdout == "one\nf\n"
        assert (await session.exec("echo $x; cat f")).stdout == "kept\none\n"
        assert (await late.wait()).exit_code == 137
        assert other.ended_at is None
        async with sandbox.transaction() as change:
            await sandbox.exec("echo three > f")
            await change.commit()
        assert (await sandbox.exec("cat f")).stdout == "three\n"
        assert [each.path for each in await sandbox.changes()] == ["/workspace/f"]


async def test_a_transaction_that_nobody_renews_is_taken_back(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        id = await sandbox.begin_transaction(lease=0.2)
        await sandbox.exec("echo x > f")
        await sandbox.exec("while [ -e /workspace/f ]; do sleep 0.01; done", cwd="/", timeout=20)
        with pytest.raises(ValidationFailed):
            await sandbox.commit_transaction(id)
        await sandbox.rollback_transaction(id)
        assert (await sandbox.exec("ls")).stdout == ""


async def test_names_and_labels_that_are_none_are_refused(where: Where) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        with pytest.raises(ValidationFailed, match="printable text"):
            await sandbox.snapshot(name="a\nb")
        with pytest.raises(ValidationFailed, match="label"):
            await sandbox.snapshot(labels={"": "x"})
