"""Snapshots of a living sandbox: what is in them, what they cost, and who may go on meanwhile."""

import os
from pathlib import Path

import pytest

from cove import AsyncSandbox, AsyncSnapshot, Limits
from cove.errors import ValidationFailed
from cove.local.threads import in_thread
from cove.runtime.sandbox import Sandbox

pytestmark = pytest.mark.anyio


def layers_of(sandbox: AsyncSandbox) -> tuple[str, ...]:
    assert isinstance(sandbox, Sandbox)
    stack = sandbox.layers.place.stack
    return () if stack is None else stack.layers


async def test_a_snapshot_has_the_files_and_later_ones_have_the_changes() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkdir d; echo one > d/f; echo gone > x; echo h > ~/h; echo t > /tmp/t; chmod 000 /tmp/t")
        first = await sandbox.snapshot(name="first", labels={"a": "b"})
        assert len(layers_of(sandbox)) == 1
        await sandbox.exec("echo two > d/f; rm x; rm -r ~/h; echo new > n")
        second = await sandbox.snapshot()
        assert second.parent == first.id
        assert len(layers_of(sandbox)) == 2
        await sandbox.exec("rm -r d; mkdir d; echo later > d/later")
        script = "cat d/f x ~/h n; ls -A d; stat -c '%a %U' /tmp/t"
        async with AsyncSandbox.create(snapshot=first) as copy:
            assert (await copy.exec(script)).stdout == "one\ngone\nh\nf\n0 user\n"
            await copy.exec("echo mine > d/f; rm -r ~; chmod 600 /tmp/t && echo more >> /tmp/t")
        async with AsyncSandbox.create(snapshot=second.id) as copy:
            assert (await copy.exec(script)).stdout == "two\nnew\nf\n0 user\n"
        assert (await sandbox.exec("ls d")).stdout == "later\n"
        await first.delete()
        await second.delete()


async def test_idle_sessions_and_contexts_see_what_is_written_after_a_snapshot() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("mkdir -p a/b; cd a; cd b; x=kept; OLD=$OLDPWD")
        context = await sandbox.create_code_context()
        await context.run("import os; os.chdir('/workspace/a'); y = 'kept'")
        assert (await sandbox.run_code("1")).results
        before = await sandbox.snapshot()
        assert layers_of(sandbox), "nothing but our own shells stood there: no copy"
        await sandbox.exec("echo new > a/b/f")
        result = await session.exec('cat f; echo $x; pwd; [ "$OLD" = "$OLDPWD" ] && touch mine')
        assert result.stdout == "new\nkept\n/workspace/a/b\n", result.stderr
        found = await context.run("print(y, os.getcwd(), open('b/f').read()); open('c', 'w').close()")
        assert found.stdout == "kept /workspace/a new\n\n", found
        assert (await sandbox.run_code("import os; print(os.getcwd(), os.listdir('a'))")).stdout.startswith(
            "/workspace ["
        )
        assert (await sandbox.exec("ls a a/b")).stdout == "a:\nb\nc\n\na/b:\nf\nmine\n"
        await before.delete()


async def test_what_a_process_holds_open_is_copied_and_it_goes_on() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec(
            "echo first > /tmp/log; ln /tmp/log /tmp/link; truncate -s 1G sparse; mkdir shut; chmod 0 shut"
        )
        writer = await sandbox.start_process("cd /; exec 3>>/tmp/log; echo ready; read x; echo last >&3", stdin=True)
        await writer.wait_for_log("ready")
        snapshot = await sandbox.snapshot()
        assert layers_of(sandbox) == ()
        await writer.write_stdin(b"\n")
        await writer.wait()
        assert (await sandbox.exec("cat /tmp/log")).stdout == "first\nlast\n"
        async with AsyncSandbox.create(snapshot=snapshot) as copy:
            found = await copy.exec("cat /tmp/log; stat -c %h /tmp/log; stat -c %a shut; du sparse | cut -f 1")
            assert found.stdout == "first\n2\n0\n0\n", found.stderr
        again = await sandbox.snapshot()
        assert len(layers_of(sandbox)) == 1
        await snapshot.delete()
        await again.delete()


async def test_layers_go_with_the_last_that_stands_on_them() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        store = sandbox.layers.store

        def there(id: str) -> bool:
            return store.has(id)

        await sandbox.exec("echo a > f")
        snapshot = await sandbox.snapshot()
        (layer,) = layers_of(sandbox)
        async with AsyncSandbox.create(snapshot=snapshot) as copy:
            await snapshot.delete()
            await sandbox.destroy()
            assert await in_thread(there, layer)
            assert (await copy.exec("cat f")).stdout == "a\n"
        assert not await in_thread(there, layer)


async def test_usage_counts_what_was_added_on_top_of_layers() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("head -c 5000000 /dev/zero > big")
        assert ((await sandbox.usage()).disk_bytes or 0) > 4_000_000
        snapshot = await sandbox.snapshot()
        assert ((await sandbox.usage()).disk_bytes or 0) < 1_000_000
        assert ((await snapshot.info()).size or 0) > 4_000_000
        await sandbox.exec("head -c 2000000 /dev/zero > more")
        assert 1_900_000 < ((await sandbox.usage()).disk_bytes or 0) < 3_000_000
        await snapshot.delete()


async def test_a_copy_has_nothing_of_memory_and_its_disk_limit_counts_what_it_adds() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("head -c 20000000 /dev/urandom > big; echo x > /dev/shm/a; mkdir /run/d")).check()
        snapshot = await sandbox.snapshot()
    async with AsyncSandbox.create(snapshot=snapshot, limits=Limits(disk=16 << 20)) as copy:
        (await copy.exec("head -c 8000000 /dev/zero > more; test $(stat -c %s big) = 20000000")).check()
        assert ((await copy.usage()).disk_bytes or 0) < 16 << 20
        assert (await copy.exec("ls -A /dev/shm; ls -A /run | grep -v cove")).stdout == ""
    await snapshot.delete()


async def test_a_snapshot_brings_its_image() -> None:
    with pytest.raises(ValidationFailed, match="not both"):
        await AsyncSandbox.create(snapshot="s", image="debian")


async def test_a_sandbox_without_isolation_has_no_snapshots(tmp_path: Path) -> None:
    async with AsyncSandbox.create(isolation="none") as sandbox:
        with pytest.raises(ValidationFailed):
            await sandbox.snapshot()
    with pytest.raises(ValidationFailed):
        await AsyncSandbox.create(isolation="none", snapshot="x")


async def test_mounts_below_the_workspace_stay_when_layers_are_changed(tmp_path: Path) -> None:
    from cove import Mount

    (tmp_path / "f").write_text("host")
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    async with AsyncSandbox.create(mounts=[Mount(source=str(tmp_path), target="/workspace/in/data")]) as sandbox:
        await sandbox.exec("echo a > in/own")
        snapshot = await sandbox.snapshot()
        assert layers_of(sandbox)
        assert (await sandbox.exec("cat in/data/f in/own")).stdout == "hosta\n"
        async with AsyncSandbox.create(snapshot=snapshot) as copy:
            assert (await copy.exec("ls in in/data")).stdout == "in:\ndata\nown\n\nin/data:\n"
        await snapshot.delete()


async def test_a_spoilt_record_is_not_listed_and_nothing_is_collected_until_it_is_gone(cove_home: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("echo a > f")
        snapshot = await sandbox.snapshot()
        (layer,) = layers_of(sandbox)
    spoilt = cove_home / "snapshots" / "spoilt.json"
    spoilt.write_bytes(b"")
    listed = {each.id for each in await AsyncSnapshot.list()}
    assert snapshot.id in listed
    assert "spoilt" not in listed
    await snapshot.delete()
    assert (cove_home / "layers" / layer).exists()
    spoilt.unlink()
    async with AsyncSandbox.create() as sandbox:
        other = await sandbox.snapshot()
        await other.delete()
    assert not (cove_home / "layers" / layer).exists()


@pytest.mark.parametrize("directory", ["/", "/workspace"], ids=["swapped", "copied"])
async def test_a_snapshot_is_one_moment_of_a_writer_that_never_stops(directory: str) -> None:
    """It writes a number to one file, then to another: the second is never ahead, and never more than one behind."""
    script = "n=0; while :; do n=$((n+1)); echo $n > /workspace/a; echo $n > /home/user/b; done"
    async with AsyncSandbox.create() as sandbox:
        writer = await sandbox.start_process(script, cwd=directory)
        await sandbox.exec("until [ -s ~/b ]; do :; done", cwd="/")
        made, before = [], 0
        for _ in range(4):
            before = int((await sandbox.exec("cat ~/b || true", cwd="/")).stdout or before)
            made.append((before, await sandbox.snapshot()))
        await writer.kill("KILL")
        for least, snapshot in made:
            async with AsyncSandbox.create(snapshot=snapshot) as copy:
                texts = (await copy.exec("cat a; echo ,; cat ~/b")).stdout.replace("\n", "").split(",")
            first, second = (int(text) if text else None for text in texts)
            if first is not None and second is not None:  # a file may be empty at that moment
                assert 0 <= first - second <= 1
                assert second >= least
            await snapshot.delete()


async def test_a_sandbox_with_a_disk_of_its_own_has_copies_and_keeps_its_limit() -> None:
    limits = Limits(disk=32 << 20)
    async with AsyncSandbox.create(limits=limits) as sandbox:
        await sandbox.exec("echo a > f; mkdir d; echo x > d/x")
        snapshot = await sandbox.snapshot()
        await sandbox.exec("echo b > f; rm -r d")
        found = [(each.path, each.kind) for each in await sandbox.changes(since=snapshot)]
        assert found == [("/workspace/d", "deleted"), ("/workspace/d/x", "deleted"), ("/workspace/f", "modified")]
        await sandbox.restore(snapshot)
        assert (await sandbox.exec("cat f d/x")).stdout == "a\nx\n"
        async with AsyncSandbox.create(snapshot=snapshot, limits=limits) as copy:
            await copy.exec("echo more >> f")
            await copy.restart()
            assert (await copy.exec("cat f d/x")).stdout == "a\nmore\nx\n"
        assert (await sandbox.reset()).files == 0
        await sandbox.restart()
        assert (await sandbox.exec("ls")).stdout == ""
        await snapshot.delete()


async def test_many_snapshots_can_stand_on_one_another() -> None:
    async with AsyncSandbox.create() as sandbox:
        made = []
        for number in range(40):
            await sandbox.exec(f"echo {number} > f{number}; rm -f f{number - 3}")
            made.append(await sandbox.snapshot())
        async with AsyncSandbox.create(snapshot=made[-1]) as copy:
            assert (await copy.exec("cat *")).stdout == "37\n38\n39\n"
        for each in made:
            await each.delete()
