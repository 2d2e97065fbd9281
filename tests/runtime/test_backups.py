"""Backups and what can go wrong: faults in the middle, cancelled callers, killed programs, hostile directories."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from pathlib import Path

import pytest
from support.users import needs_users

from cove import AsyncSandbox, Sandbox
from cove.blocking.portal import get_portal
from cove.errors import BackupNotFound, CoveError, FileTooLarge, NoSpace, ValidationFailed
from cove.runtime import backup_store, backups
from cove.runtime.home import Home
from cove.verify.system import system_of_the_host

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def portal() -> None:
    """The loop of this program lives as long as the program."""
    get_portal()


@pytest.fixture
async def sandbox() -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox.create() as made:
        yield made


def stored(home: Path) -> list[str]:
    return (
        sorted(name for name in os.listdir(home / "backups") if name != "lock") if (home / "backups").exists() else []
    )


async def test_a_backup_that_fails_in_the_middle_is_never_seen(
    sandbox: AsyncSandbox, cove_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.files.write("big", os.urandom(8 << 20))
    before = stored(cove_home)

    def fail(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:100])
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(backups, "write_all", fail)
        with pytest.raises(NoSpace):
            await sandbox.backups.create(".")
    with monkeypatch.context() as patch:
        patch.setattr(backups, "MOST_STREAM_BYTES", 1 << 20)
        with pytest.raises(FileTooLarge):
            await sandbox.backups.create(".")
    with monkeypatch.context() as patch:
        patch.setattr(backup_store, "replace_file", lambda *_, **__: fail(1, b""))
        with pytest.raises(NoSpace):
            await sandbox.backups.create(".")
    assert stored(cove_home) == before


async def cancelled_after(seconds: float, call: Coroutine[object, object, object]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await call


async def test_a_cancelled_call_leaves_nothing(sandbox: AsyncSandbox, cove_home: Path) -> None:
    await sandbox.files.write("d/big", os.urandom(4 << 20))
    before = stored(cove_home)
    for seconds in (0, 0.001, 0.005, 0.02, 0.05):
        await cancelled_after(seconds, sandbox.backups.create("d"))
        for left in set(stored(cove_home)) - set(before):
            assert not left.startswith(".")
            await sandbox.backups.delete(left)  # it was complete before the cancel
    saved = await sandbox.backups.create("d")
    for seconds in (0, 0.001, 0.005, 0.02, 0.05):
        await cancelled_after(seconds, sandbox.backups.restore(saved.id))
        assert (await sandbox.exec("ls -A d")).stdout == "big\n"
    await sandbox.backups.delete(saved.id)
    assert stored(cove_home) == before


async def test_a_restore_that_fails_changes_nothing(sandbox: AsyncSandbox, cove_home: Path) -> None:
    await sandbox.files.write("d/file", os.urandom(4 << 20))
    saved = await sandbox.backups.create("d")
    await sandbox.exec("mkdir -p e/ro/x; echo mine > e/ro/x/file; chmod 555 e/ro")
    archive = cove_home / "backups" / saved.id / "archive.tar.zst"
    whole = archive.read_bytes()
    damaged = whole[: len(whole) // 2] + bytes(1000) + whole[len(whole) // 2 + 1000 :]
    for content in (whole[:-1], whole + b"x", damaged, b"x" * len(whole)):
        archive.write_bytes(content)
        with pytest.raises(ValidationFailed, match=r"damaged|refused"):
            await sandbox.backups.restore(saved.id, "e")
        assert (await sandbox.exec("find e -printf '%P %m\\n' | sort; cat e/ro/x/file")).stdout == (
            " 755\nro 555\nro/x 755\nro/x/file 644\nmine\n"
        )
    archive.write_bytes(whole)
    await sandbox.backups.restore(saved.id, "e")
    assert (await sandbox.exec("ls -A e")).stdout == "file\n"
    await sandbox.backups.delete(saved.id)


async def test_directories_that_a_snapshot_keeps_are_replaced_too(sandbox: AsyncSandbox) -> None:
    """Overlayfs does not rename a directory of a layer."""
    await sandbox.exec(
        "mkdir -p d/a/b/c d/shut; echo one | tee d/a/f d/a/b/f d/a/b/c/f > d/shut/f; chmod 555 d/shut d/a/b"
    )
    tell = "cd d; find . -printf '%P %m ' -exec sh -c 'test -f $0 && cat $0 || echo' {} ';' | sort"
    before = (await sandbox.exec(tell)).stdout
    saved = await sandbox.backups.create("d")
    snapshot = await sandbox.snapshot()
    await sandbox.exec("chmod 755 d/a/b; echo two | tee d/a/f d/a/b/c/f d/a/new; mkdir d/other")
    await sandbox.backups.restore(saved.id)
    assert (await sandbox.exec(tell)).stdout == before
    await sandbox.backups.delete(saved.id)
    await snapshot.delete()


async def test_a_tree_that_is_too_deep_to_replace_stays_as_it_is(sandbox: AsyncSandbox) -> None:
    deep = "/".join("x" for _ in range(300))
    await sandbox.files.write("d/x/f", b"one")
    saved = await sandbox.backups.create("d")
    (await sandbox.exec(f"mkdir -p d/{deep}; chmod 555 d/x/x")).check()
    snapshot = await sandbox.snapshot()
    await sandbox.files.write("d/x/f", b"two")
    with pytest.raises(CoveError, match="too long"):
        await sandbox.backups.restore(saved.id)
    assert await sandbox.files.read("d/x/f") == b"two"
    assert (await sandbox.exec(f"ls -d d/{deep}; stat -c %a d/x/x; ls -A d")).stdout == f"d/{deep}\n555\nx\n"
    await sandbox.backups.delete(saved.id)
    await snapshot.delete()


@needs_users
async def test_root_replaces_directories_of_others_that_a_snapshot_keeps(cove_home: Path) -> None:
    async with system_of_the_host() as image, AsyncSandbox.create(image=image, user="root") as sandbox:
        (await sandbox.exec("mkdir -p d/theirs/in; echo one > d/theirs/in/f; chown -R 1:2 d/theirs")).check()
        tell = "find d -printf '%P %m\\n' | sort; cat d/theirs/in/f"
        before = (await sandbox.exec(tell)).stdout
        saved = await sandbox.backups.create("d")
        snapshot = await sandbox.snapshot()
        (await sandbox.exec("echo two > d/theirs/in/f")).check()
        await sandbox.backups.restore(saved.id)
        assert (await sandbox.exec(tell)).stdout == before
        await sandbox.backups.delete(saved.id)
        await snapshot.delete()


async def test_what_a_killed_restore_has_left_hinders_no_later_one(sandbox: AsyncSandbox) -> None:
    """A backup that was made meanwhile has it too."""
    left = "d/.cove-0123456789abcdef"
    await sandbox.files.write("d/file", "kept")
    await sandbox.files.write(f"{left}/old", "left")
    saved = await sandbox.backups.create("d")
    await sandbox.files.write("d/file", "changed")
    await sandbox.backups.restore(saved.id)
    assert await sandbox.files.read_text("d/file") == "kept"
    assert await sandbox.files.read_text(f"{left}/old") == "left"


async def test_a_place_that_cannot_be_replaced_stays_as_it_is(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("d/file", "new")
    saved = await sandbox.backups.create("d")
    with pytest.raises(CoveError):
        await sandbox.backups.restore(saved.id, "/")
    assert (await sandbox.exec("cat /workspace/d/file; ls /usr/bin/env")).stdout == "new/usr/bin/env\n"
    with pytest.raises(CoveError):
        await sandbox.backups.restore(saved.id, "/usr")
    await sandbox.backups.delete(saved.id)


async def test_a_backup_that_is_deleted_meanwhile_is_restored_whole(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("d/big", b"z" * (32 << 20))
    saved = await sandbox.backups.create("d")
    restoring = asyncio.gather(*(sandbox.backups.restore(saved.id, "e") for _ in range(3)), return_exceptions=True)
    await sandbox.backups.delete(saved.id)
    for result in await restoring:
        assert result == saved or isinstance(result, BackupNotFound)


async def test_a_hostile_directory_is_saved_without_harm(sandbox: AsyncSandbox) -> None:
    script = r"""
        mkdir -p h; cd h; mkfifo pipe; ln -s / root; ln -s .. up; truncate -s 1T sparse
        printf x > "$(printf '\377\n')"; python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
        p=.; for i in $(seq 150); do p=$p/d; done; mkdir -p $p
        printf '**/a*a*a*a*a*a*a*a*a*b\n[z-a]\n\\\n!\n\377\n' > .gitignore; touch aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac
        ln x hard 2> /dev/null; ln sparse hard
    """
    (await sandbox.exec(script)).check()
    with pytest.raises(FileTooLarge):  # as large as it looks, twice
        await sandbox.backups.create("h", gitignore=True)
    (await sandbox.exec("rm h/hard; truncate -s 1G h/sparse")).check()
    saved = await sandbox.backups.create("h", gitignore=True)
    assert saved.size < 1 << 20
    await sandbox.backups.restore(saved.id, "copy")
    found = await sandbox.exec(
        "ls -A copy | wc -l; stat -c '%s' copy/sparse; readlink copy/root copy/up; du -sk copy | cut -f1"
    )
    names, size, root, up, kilobytes = found.stdout.split()
    assert (names, size, root, up) == ("6", str(1 << 30), "/", "..")
    assert int(kilobytes) < 10_000
    await sandbox.backups.delete(saved.id)


async def test_a_repository_cannot_run_code_outside_or_hang(sandbox: AsyncSandbox) -> None:
    script = (
        "mkdir r; cd r; git init -q; git config core.fsmonitor 'touch /tmp/ran'; git config core.excludesFile /dev/zero"
    )
    (await sandbox.exec(script)).check()
    creating = asyncio.create_task(sandbox.backups.create("r", gitignore=True))
    done, _ = await asyncio.wait([creating], timeout=5)
    creating.cancel()
    await asyncio.wait([creating])
    assert (await sandbox.exec("echo alive")).stdout == "alive\n"
    assert not Path("/tmp/ran").exists()
    if done and creating.exception() is None:
        await sandbox.backups.delete(creating.result().id)


KILLED = """
import asyncio, os, sys
import cove
from cove.runtime import backup_store, backups
step = sys.argv[1]
def die(*_, **__):
    os.kill(os.getpid(), 9)
if step == "content":
    backups.write_all = die
elif step == "record":
    backup_store.replace_file = die
elif step == "rename":
    backup_store.Path.rename = die
elif step == "published":
    backup_store.sync_directory = lambda path: die()
elif step == "delete":
    backup_store.remove_tree = die
async def main():
    async with cove.AsyncSandbox.create() as sandbox:
        await sandbox.files.write("d/f", "x")
        saved = await sandbox.backups.create("d")
        if step == "delete":
            await sandbox.backups.delete(saved.id)
asyncio.run(main())
"""


@pytest.mark.parametrize("step", ["content", "record", "rename", "published", "delete"])
def test_a_program_killed_at_any_step_leaves_no_half_backup(step: str, other_home: Path) -> None:
    environment = {**os.environ, "COVE_HOME": str(other_home)}
    ended = subprocess.run([sys.executable, "-c", KILLED, step], env=environment, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COVE_HOME", str(other_home))
        found = backup_store.BackupStore(Home(other_home)).list()
        assert len(found) == (1 if step == "published" else 0)
        assert [name for name in stored(other_home) if name.startswith(".")] == []
        for each in found:
            info, archive = backup_store.BackupStore(Home(other_home)).open(each.id)
            archive.close()
            assert info == each
    program = "import cove; cove.Sandbox.create().destroy()"
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=True)


def test_a_writer_at_work_is_not_swept_away(tmp_path: Path) -> None:
    store = backup_store.BackupStore(Home(tmp_path))
    new = store.begin()
    store.begin().discard()
    assert store.list() == []
    assert (tmp_path / "backups" / f".new-{new.id}").exists()
    new.discard()
    assert stored(tmp_path) == []


def test_records_of_others_are_no_backups(tmp_path: Path) -> None:
    store = backup_store.BackupStore(Home(tmp_path))
    assert store.list() == []
    store.begin().discard()
    (tmp_path / "backups" / "abcabcabcabc").mkdir()
    (tmp_path / "backups" / "abcabcabcabc" / "backup.json").write_text(json.dumps({"id": "abcabcabcabc"}))
    assert store.list() == []
    with pytest.raises(BackupNotFound):
        store.open("abcabcabcabc")
    assert (tmp_path / "backups").stat().st_mode & 0o777 == 0o700


def test_the_blocking_form_does_the_same() -> None:
    with Sandbox.create() as sandbox:
        sandbox.files.write("d/file", "one")
        saved = sandbox.backups.create("d", "name", ttl=3600)
        sandbox.files.write("d/file", "two")
        assert sandbox.backups.restore(saved.id) == saved
        assert sandbox.files.read_text("d/file") == "one"
        assert saved in sandbox.backups.list()
        sandbox.backups.delete(saved.id)
