"""Backups, whatever way the sandbox is reached."""

import asyncio
from datetime import UTC, datetime

import pytest
from support.serving import MakeSandbox, Where

from cove import AsyncSandbox
from cove.errors import BackupExpired, BackupNotFound, FileNotFound, NotDirectory, ValidationFailed

pytestmark = pytest.mark.anyio


async def tree(sandbox: AsyncSandbox, path: str) -> str:
    """Names, kinds, modes, targets and contents of all below a directory."""
    listing = await sandbox.exec(
        f"cd {path} && find . -printf '%P %y %m %l\\n' | sort && find . -type f -print0 | sort -z | xargs -0 -r cat"
    )
    return listing.check().stdout


async def test_a_directory_is_saved_and_restored_as_it_was(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        script = """
            mkdir -p p/sub/deep p/empty; printf one > p/a; printf two > p/sub/deep/b; chmod 750 p/sub; chmod 400 p/a
            ln -s /etc/hostname p/out; ln -s sub/deep/b p/in; touch "p/odd name"; printf x > p/run; chmod 755 p/run
        """
        (await sandbox.exec(script)).check()
        before = await tree(sandbox, "p")
        saved = await sandbox.backups.create("p", "first")
        assert (saved.name, saved.dir, saved.sandbox, saved.expires_at) == ("first", "/workspace/p", sandbox.id, None)
        assert abs((datetime.now(UTC) - saved.created_at).total_seconds()) < 3600
        assert saved.size > 0
        (await sandbox.exec("rm -r p/sub p/a; touch p/new; mkdir -p p/ro/x; chmod 555 p/ro; ln -sfn / p/in")).check()
        for _ in range(2):
            assert await sandbox.backups.restore(saved.id) == saved
            assert await tree(sandbox, "p") == before
        await sandbox.backups.restore(saved.id, "other/place")
        assert await tree(sandbox, "other/place") == before
        await sandbox.backups.delete(saved.id)


async def test_backups_are_listed_and_deleted(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        first, second = [await sandbox.backups.create(".", name) for name in ("é", None)]
        assert [each for each in await sandbox.backups.list() if each.sandbox == sandbox.id] == [first, second]
        await sandbox.backups.delete(first.id)
        assert [each for each in await sandbox.backups.list() if each.sandbox == sandbox.id] == [second]
        for call in (sandbox.backups.delete, sandbox.backups.restore):
            for id in (first.id, "nosuchbackup", "..", "lock", "a" * 300):
                with pytest.raises(BackupNotFound):
                    await call(id)
        await sandbox.backups.delete(second.id)


async def test_what_has_expired_is_not_restored(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        saved = await sandbox.backups.create(".", ttl=0.000001)
        assert saved.expires_at is not None
        with pytest.raises(BackupExpired):
            await sandbox.backups.restore(saved.id)
        assert saved not in await sandbox.backups.list()
        with pytest.raises(BackupExpired):
            await sandbox.backups.restore(saved.id)
        await sandbox.backups.delete(saved.id)
        with pytest.raises(BackupNotFound):
            await sandbox.backups.restore(saved.id)


async def test_arguments_are_checked(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.files.write("file", "x")
        for arguments in (("",), (".", ""), (".", "a\nb"), (".", None, 0), (".", None, -5), (".", None, None, "yes")):
            with pytest.raises(ValidationFailed):
                await sandbox.backups.create(*arguments)
        with pytest.raises(FileNotFound):
            await sandbox.backups.create("missing")
        with pytest.raises(NotDirectory):
            await sandbox.backups.create("file")
        saved = await sandbox.backups.create(".")
        with pytest.raises(NotDirectory):
            await sandbox.backups.restore(saved.id, "file")
        assert await sandbox.files.read_text("file") == "x"
        await sandbox.backups.delete(saved.id)


IGNORING = """
    mkdir -p {top}/build/x {top}/src/build {top}/node_modules/m; cd {top}
    printf '*.pyc\\n/build/\\nnode_modules\\n!keep.pyc\\n' > .gitignore; printf 'secret\\n' > src/.gitignore
    touch a.py a.pyc keep.pyc build/x/o src/build/yes src/secret src/b.pyc node_modules/m/index.js
"""
KEPT = [".gitignore", "a.py", "keep.pyc", "src/.gitignore", "src/build/yes"]


async def test_what_git_ignores_is_left_out(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        repository = "cd r; git init -q; git add -f a.pyc; git config user.name x; git config user.email y"
        (await sandbox.exec(IGNORING.format(top="plain"))).check()
        (await sandbox.exec(IGNORING.format(top="r"))).check()
        (await sandbox.exec(repository)).check()
        for top, kept in (("plain", KEPT), ("r", ["a.pyc", *KEPT])):
            saved = await sandbox.backups.create(top, gitignore=True)
            await sandbox.backups.restore(saved.id, "restored")
            found = await sandbox.exec("find . -type f -not -path './.git/*' -printf '%P\\n' | sort", cwd="restored")
            assert sorted(found.stdout.split()) == sorted(kept)
            await sandbox.backups.delete(saved.id)
        assert (await sandbox.exec("git -C restored status --porcelain")).stdout.startswith("A  a.pyc")
        whole = await sandbox.backups.create("plain")
        await sandbox.backups.restore(whole.id, "restored")
        assert await sandbox.files.exists("restored/node_modules/m/index.js")
        assert (await sandbox.exec("ls -A /tmp")).stdout == ""
        await sandbox.backups.delete(whole.id)


async def test_a_backup_goes_to_another_sandbox_and_outlives_its_own(where: Where) -> None:
    async with AsyncSandbox.create(**where) as first:
        await first.files.write("d/file", b"\x00\xff" * 100_000)
        saved = await first.backups.create("d")
    async with AsyncSandbox.create(**where) as second:
        assert saved in await second.backups.list()
        await second.backups.restore(saved.id)
        assert await second.files.read("/workspace/d/file") == b"\x00\xff" * 100_000
        await second.backups.delete(saved.id)


async def test_many_at_once_do_not_disturb_each_other(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for number in range(4):
            (
                await sandbox.exec(f"mkdir d{number}; for i in $(seq 50); do echo {number}-$i > d{number}/$i; done")
            ).check()
        before = [await tree(sandbox, f"d{number}") for number in range(4)]
        saved = await asyncio.gather(*(sandbox.backups.create(f"d{number}") for number in range(4)))
        await asyncio.gather(*(sandbox.backups.restore(each.id, "same") for each in saved for _ in range(2)))
        assert await tree(sandbox, "same") in before
        await asyncio.gather(*(sandbox.backups.restore(each.id) for each in saved))
        assert [await tree(sandbox, f"d{number}") for number in range(4)] == before
        await asyncio.gather(*(sandbox.backups.delete(each.id) for each in saved))
        assert (await sandbox.exec("ls -A")).stdout.split() == ["d0", "d1", "d2", "d3", "same"]
