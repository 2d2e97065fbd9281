"""Images of sandboxes, and saved ones: owners are kept, and a cancelled call leaves nothing."""

import asyncio
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.image_files import Item, saved_owners
from support.users import HAS_RANGES, needs_one_user, needs_users

from cove import AsyncImage, AsyncSandbox

pytestmark = [pytest.mark.anyio, needs_busybox]


@needs_users
async def test_owners_are_kept(tmp_path: Path) -> None:
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar"), name="owned")
    async with AsyncSandbox.create(image="owned", user="root") as sandbox:
        await sandbox.exec(
            "mkdir -p /srv/d; touch /srv/d/f /workspace/w; busybox ln -s x /srv/l; "
            "chown 33:34 /srv/d /srv/d/f /workspace/w; chown -h 33:34 /srv/l; busybox chmod 700 /srv/d"
        )
        made = await sandbox.commit("owned:2")
        await made.save(tmp_path / "saved.tar")
    await made.delete()
    loaded = await AsyncImage.load(tmp_path / "saved.tar", name="owned:3")
    async with AsyncSandbox.create(image="owned:3", user="root") as sandbox:
        listed = await sandbox.exec("cd /srv; ls -nd d d/f l /workspace/w; ls -nd /usr")
        shown = {line.split()[8]: line.split()[2:4] for line in listed.stdout.splitlines()}
        theirs = ["33", "34"]
        link = theirs if HAS_RANGES else ["0", "0"]  # a link has no attributes, where owners are only recorded
        assert shown == {"d": theirs, "d/f": theirs, "l": link, "/workspace/w": theirs, "/usr": ["0", "0"]}
        await loaded.save(tmp_path / "again.tar")
    for each in (image, loaded):
        await each.delete()


@needs_one_user
async def test_owners_are_kept_for_others_where_all_files_belong_to_one(tmp_path: Path) -> None:
    items = (Item("srv/owned", b"text", uid=1234, gid=33), Item("srv/closed", b"text", mode=0, uid=7, gid=65534))
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar", *items), name="owned")
    await image.save(tmp_path / "saved.tar")
    expected = {"srv/owned": (1234, 33), "srv/closed": (7, 65534), "var/web": (33, 34), "bin/busybox": (0, 0)}
    owners = saved_owners(tmp_path / "saved.tar")
    assert {name: owners[name] for name in expected} == expected
    async with AsyncSandbox.create(image="owned", user="root") as sandbox:
        changed = await sandbox.exec("echo more >> /srv/owned; touch /srv/mine /var/web/mine; ls -nd /srv/owned")
        assert changed.stdout.split()[2:4] == ["0", "0"]
        made = await sandbox.commit("owned:2")
        await made.save(tmp_path / "committed.tar")
    owners = saved_owners(tmp_path / "committed.tar")
    expected |= {"srv/mine": (0, 0), "var/web/mine": (0, 0)}
    assert {name: owners[name] for name in expected} == expected
    for each in (made, image):
        await each.delete()


async def test_a_cancelled_commit_leaves_nothing(tmp_path: Path, cove_home: Path) -> None:
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar"), name="base")
    async with AsyncSandbox.create(image="base") as sandbox:
        await sandbox.exec("head -c 30000000 /dev/urandom > /usr/large")
        for steps in (1, 3, 6, 12):
            committing = asyncio.ensure_future(sandbox.commit("cancelled"))
            for _ in range(steps):
                await asyncio.sleep(0)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
        assert [each.name for each in await AsyncImage.list()] == ["base:latest"]
        assert await sandbox.changes() != []
        made = await sandbox.commit("cancelled")
        assert (await made.info()).layers > (await image.info()).layers
        await made.delete()
    await image.delete()
    assert not list((cove_home / "images").glob(".*"))
    assert not list((cove_home / "snapshots").glob("*"))
