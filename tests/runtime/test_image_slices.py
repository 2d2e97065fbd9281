"""Users of an image that are subordinate users of a plain user's: a slice of them for each sandbox."""

import os
import pwd
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.crash import run_to_its_death
from support.image_files import Item
from support.programs import places, run_program
from support.users import needs_slices

from cove import AsyncImage, AsyncSandbox
from cove.errors import SandboxUnavailable, UserUnavailable
from cove.linux.subordinate import NOBODY, SLICE_USERS, Slice, Subordinates, find_subordinates, fits
from cove.model import Mount, SandboxUsers, SnapshotMethod
from cove.runtime import user_slices
from cove.runtime.home import Home
from cove.runtime.user_slices import UserSlices

pytestmark = [pytest.mark.anyio, needs_busybox, needs_slices]

FILES = (Item("srv/owned", b"text", uid=1234, gid=33), Item("srv/far", b"text", uid=5000, gid=5000))


@pytest.fixture
async def image(tmp_path: Path) -> AsyncIterator[str]:
    path = write_busybox(tmp_path / "image.tar", *FILES, settings={"Env": ["PATH=/bin"]})
    image = await AsyncImage.load(path, name="slices")
    yield image.name
    await image.delete()


def subordinates() -> Subordinates:
    found = find_subordinates()
    assert found is not None
    return found


def slices_of(home: Path) -> set[int]:
    """The first users of all sandboxes of a state directory."""
    return {int((home / "sandboxes" / key / "user").read_text().split()[1]) for key in places(home)}


def foreign(top: Path) -> list[str]:
    """What below a directory belongs to others than ourselves."""
    found = []
    for folder, directories, files in os.walk(top):
        paths = [os.path.join(folder, name) for name in (*directories, *files)]
        found += [path for path in paths if os.lstat(path).st_uid != os.geteuid()]
    return found


async def owners(sandbox: AsyncSandbox, *paths: str) -> list[str]:
    shown = await sandbox.exec(["/bin/ls", "-nd", *paths], user="root")
    found = {line.split()[8]: ":".join(line.split()[2:4]) for line in shown.stdout.splitlines()}
    return [found[path] for path in paths]


async def test_every_sandbox_has_a_slice_of_its_own_and_none_is_left(image: str, cove_home: Path) -> None:
    async with AsyncSandbox.create(image=image) as one, AsyncSandbox.create(image=image) as two:
        assert len(slices_of(cove_home)) == 2
        (copy,) = await one.fork()
        assert len(slices_of(cove_home)) == 3
        info = await two.info()
        assert (info.users, info.snapshots) == (SandboxUsers.REAL, SnapshotMethod.COPY)
        await copy.destroy()
    register = Path(pwd.getpwuid(os.geteuid()).pw_dir, ".local/state/cove-users")
    noted = [note.read_text() for note in register.iterdir()]
    assert [note for note in noted if note.startswith(str(cove_home))] == []


async def test_what_a_slice_does_not_have_is_roots_and_nobody_is_there(image: str) -> None:
    async with AsyncSandbox.create(image=image) as sandbox:
        assert await owners(sandbox, "/srv/owned", "/srv/far") == ["1234:33", "0:0"]
        assert (await sandbox.exec("id -u", user=str(NOBODY))).stdout == f"{NOBODY}\n"
        with pytest.raises(UserUnavailable, match="not among the users"):
            await sandbox.exec("id", user="5000")
        assert not (await sandbox.exec("chown 5000 /srv/owned")).ok
    async with AsyncSandbox.create(image=image, user="5000") as sandbox:
        assert (await sandbox.info()).users is SandboxUsers.ONE


async def test_files_of_users_are_seen_measured_kept_and_restored(image: str, cove_home: Path) -> None:
    async with AsyncSandbox.create(image=image) as sandbox:
        made = "mkdir -p /data/private; echo one > /data/private/f; busybox chmod 700 /data /data/private; "
        assert (await sandbox.exec(f"{made} chown -R 33:34 /data; busybox ln /data/private/f /data/private/link")).ok
        assert "/data/private/f" in [change.path for change in await sandbox.changes()]
        assert "+one" in await sandbox.diff("/data")
        before = await sandbox.usage()
        assert (await sandbox.exec("busybox dd if=/dev/zero of=/data/private/g bs=1M count=4", user="33:34")).ok
        assert ((await sandbox.usage()).disk_bytes or 0) >= (before.disk_bytes or 0) + (4 << 20)
        snapshot = await sandbox.snapshot()
        assert foreign(cove_home / "layers") == []
        await sandbox.exec("rm /data/private/f; chown 0:0 /data; chown 7:8 /srv/owned")
        await sandbox.restore(snapshot)
        shown = await owners(sandbox, "/data", "/data/private/f", "/srv/owned", "/etc")
        assert shown == ["33:34", "33:34", "1234:33", "0:0"]
        await sandbox.exec("chown 0:0 /srv/owned")
        second = await sandbox.snapshot()
        async with AsyncSandbox.create(snapshot=second) as other:
            shown = await owners(other, "/data/private/f", "/data/private/link", "/srv/owned")
            assert shown == ["33:34", "33:34", "0:0"]
            await other.restart()
            assert (await other.exec("cat /data/private/f", user="33:34")).stdout == "one\n"
            assert not (await other.exec("cat /data/private/f", user="7:8")).ok
        await sandbox.reset()
        assert not (await sandbox.exec("ls /data")).ok
        assert await owners(sandbox, "/srv/owned") == ["1234:33"]
        await snapshot.delete()
        await second.delete()


async def test_sessions_and_files_of_other_users_are_theirs(image: str) -> None:
    async with AsyncSandbox.create(image=image) as sandbox:
        session = await sandbox.create_session(user="web")
        assert (await session.exec("id -u; cd /tmp; echo $PWD; cat", stdin="in")).stdout == "33\n/tmp\nin"
        await sandbox.files.write("/tmp/mine", "text", user="web")
        assert await owners(sandbox, "/tmp/mine") == ["33:34"]
        fifos = "/run/cove/shell/1"
        assert not (await sandbox.exec(f"echo x > {fifos}/done; ls {fifos}", user="7:8")).ok


async def test_what_can_be_written_by_a_mount_is_left_by_one_user(image: str, tmp_path: Path) -> None:
    mount = Mount(source=str(tmp_path), target="/mnt/host", read_only=False)
    async with AsyncSandbox.create(image=image, user="root", mounts=[mount]) as sandbox:
        assert (await sandbox.info()).users is SandboxUsers.EMULATED_ROOT
        assert (await sandbox.exec("touch /mnt/host/f && chown 33 /mnt/host/f")).ok
    assert foreign(tmp_path) == []
    async with AsyncSandbox.create(image=image, user="root") as sandbox:
        with pytest.raises(UserUnavailable, match="read-only"):
            await sandbox.mounts.add(mount)
        await sandbox.mounts.add(Mount(source=str(tmp_path), target="/mnt/host"))
        assert (await sandbox.exec("ls /mnt/host/f")).stdout == "/mnt/host/f\n"


def test_state_directories_share_no_slice_and_without_one_there_is_one_user(
    tmp_path: Path, other_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_slices, "_REGISTER", str(tmp_path / "register"))  # beside others that use theirs
    monkeypatch.setattr(user_slices, "has_processes", lambda _: False)
    homes = [Home(tmp_path / "one"), Home(other_home)]
    for home in homes:
        home.open()
    made = [(home, home.allocate(many_users=True)) for home in homes for _ in range(subordinates().slices // 2 + 1)]
    try:
        given = [place.slice.users for _, place in made if place.slice is not None]
        assert len(given) == len(set(given)) == subordinates().slices
        assert {place.users for _, place in made if place.slice is None} == {1}
    finally:
        for home, place in made:
            home.release(place)


def test_a_slice_that_another_sandbox_has_by_now_is_not_taken_again(tmp_path: Path) -> None:
    slices = UserSlices(tmp_path)
    (tmp_path / "one").mkdir()
    slice = slices.allocate("one")
    assert slice is not None
    with pytest.raises(SandboxUnavailable, match="another sandbox"):
        slices.hold("two", slice)
    with pytest.raises(SandboxUnavailable, match="subordinate users of yours any more"):
        slices.hold("one", Slice(slice.number, slice.users + 1, slice.groups))
    slices.hold("one", slice)
    slices.release("two", slice)
    (tmp_path / "one").rmdir()
    slices.hold("two", slice)
    slices.release("two", slice)


def test_a_slice_has_its_own_numbers_and_nobody() -> None:
    assert [fits(number) for number in (-1, 0, SLICE_USERS - 2, SLICE_USERS - 1, NOBODY)] == [
        False,
        True,
        True,
        False,
        True,
    ]
    slice = subordinates().slice(1)
    assert slice.host_user(1) == slice.users
    assert slice.host_user(NOBODY) == slice.users + SLICE_USERS - 2 < subordinates().slice(2).users


KILLED = """
import asyncio, sys
from support.crash import arm_step
from cove import AsyncImage, AsyncSandbox

async def main():
    await AsyncImage.load({path!r}, name="killed")
    arm_step({step!r}, {moment!r})
    sandbox = await AsyncSandbox.create(image="killed")
    await sandbox.exec("mkdir -p /data/a && chown -R 33 /data && busybox chmod 700 /data")
    await sandbox.snapshot()
    await sandbox.destroy()

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(main())
print("not reached", flush=True)
"""
NEXT = """
import asyncio
from cove import AsyncSandbox

async def main():
    async with AsyncSandbox.create(image="killed") as sandbox:
        print((await sandbox.info()).users, (await sandbox.exec("id -u", user="web")).stdout)

asyncio.run(main())
"""
STEPS = [
    "cove.runtime.user_slices UserSlices.allocate",
    "cove.runtime.slices SliceFiles.give",
    "cove.runtime.slices SliceFiles.record",
    "cove.runtime.slices SliceFiles.remove",
    "cove.runtime.user_slices UserSlices.release",
]


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.slow), "after"])
@pytest.mark.parametrize("step", STEPS)
def test_who_is_killed_leaves_no_slice_behind(step: str, moment: str, other_home: Path, tmp_path: Path) -> None:
    path = write_busybox(tmp_path / "image.tar", settings={"Env": ["PATH=/bin"]})
    run_to_its_death(KILLED.format(path=path, step=step, moment=moment), other_home)
    assert run_program(NEXT, other_home).split() == ["real", "33"]
    assert places(other_home) == []
    assert foreign(other_home) == []
