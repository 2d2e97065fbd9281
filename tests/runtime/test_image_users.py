"""Users of an image that are real: a range of the host's own for each sandbox."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.crash import run_to_its_death
from support.image_files import Item
from support.programs import places, run_program
from support.users import needs_ranges, needs_users

from cove import AsyncImage, AsyncSandbox, AsyncVolume
from cove.core.users import FIRST_RANGE, RANGE_USERS
from cove.model import AnyMount, VolumeMount
from cove.runtime.user_ids import REGISTERS, read_note

pytestmark = [pytest.mark.anyio, needs_busybox, needs_users]

OWNED = Item("srv/owned", b"text", uid=1234, gid=33)


@pytest.fixture
async def image(tmp_path: Path) -> AsyncIterator[str]:
    path = write_busybox(tmp_path / "image.tar", OWNED, settings={"Env": ["PATH=/bin"]})
    image = await AsyncImage.load(path, name="users")
    yield image.name
    await image.delete()


async def first_user(sandbox: AsyncSandbox) -> int:
    inside, first, count = map(int, (await sandbox.exec("cat /proc/self/uid_map")).stdout.split())
    assert (inside, count) == (0, RANGE_USERS)
    assert first > FIRST_RANGE
    return first


async def test_files_of_the_image_have_their_owners_and_those_of_others_have_theirs(image: str) -> None:
    async with AsyncSandbox.create(image=image) as sandbox:
        shown = (await sandbox.exec("ls -nd /srv/owned /var/web /bin")).stdout.splitlines()
        assert {line.split()[-1]: line.split()[2:4] for line in shown} == {
            "/srv/owned": ["1234", "33"],
            "/var/web": ["33", "34"],
            "/bin": ["0", "0"],
        }
        await sandbox.exec("echo more >> /srv/owned; touch /srv/mine; chown 7:8 /srv/mine")
        shown = (await sandbox.exec("ls -n /srv")).stdout.splitlines()
        assert [line.split()[2:4] for line in shown[1:]] == [["7", "8"], ["1234", "33"]]


@needs_ranges
async def test_every_sandbox_has_a_range_of_its_own(image: str) -> None:
    async with AsyncSandbox.create(image=image) as one, AsyncSandbox.create(image=image) as two:
        firsts = {await first_user(one), await first_user(two)}
        assert len(firsts) == 2
        (copy,) = await one.fork()
        try:
            assert await first_user(copy) not in firsts
        finally:
            await copy.destroy()


async def test_root_has_its_few_rights_and_another_user_none(image: str) -> None:
    wanted = "while read line; do case $line in Cap*) echo $line;; esac; done < /proc/self/status"
    rights = f"{0x800005FB:016x}"
    async with AsyncSandbox.create(image=image) as root:
        assert (await root.exec(wanted)).stdout.split()[1::2] == ["0" * 16, rights, rights, rights, "0" * 16]
    async with AsyncSandbox.create(image=image, user="web") as web:
        none = "0" * 16
        assert (await web.exec(wanted)).stdout.split()[1::2] == [none, none, none, rights, none]
        refused = "touch /usr/file; chown 0 /var/web; ls /root/x; kill -9 1"
        assert (await web.exec(refused)).exit_code != 0
        assert (await web.exec("id; ls /usr")).stdout == "uid=33(web) gid=34(web) groups=34(web),50(staff)\nbin\n"


@needs_ranges
async def test_a_snapshot_keeps_owners_for_a_sandbox_with_other_users(image: str) -> None:
    async with AsyncSandbox.create(image=image) as sandbox:
        await sandbox.exec("mkdir -p /data/private && chown -R 33:34 /data")
        snapshot = await sandbox.snapshot()
        first = await first_user(sandbox)
        async with AsyncSandbox.create(snapshot=snapshot) as other:
            assert await first_user(other) != first
            assert (await other.exec("ls -nd /data/private /srv/owned")).stdout.split()[2:4] == ["33", "34"]
            await sandbox.destroy()
            await other.restart()
            assert (await other.exec("ls -nd /data/private")).stdout.split()[2:4] == ["33", "34"]
        await snapshot.delete()


async def test_files_written_by_the_api_belong_to_the_sandboxs_user_who_may_no_more(image: str) -> None:
    async with AsyncSandbox.create(image=image, user="web") as sandbox:
        await sandbox.files.write("/workspace/small", "text")
        await sandbox.files.write("/workspace/large", b"0" * 100_000)
        await sandbox.files.mkdir("/workspace/deep/er")
        shown = (await sandbox.exec("ls -n /workspace")).stdout.splitlines()[1:]
        assert {tuple(line.split()[2:4]) for line in shown} == {("33", "34")}
        for path in ("/etc/passwd", "/root/file", "/usr/file"):
            with pytest.raises(Exception, match="ermission denied"):
                await sandbox.files.write(path, "text")


async def test_what_users_left_is_removed_with_the_sandbox(image: str, cove_home: Path) -> None:
    places = cove_home / "sandboxes"
    async with AsyncSandbox.create(image=image) as sandbox:
        await sandbox.exec("mkdir -p /workspace/a/b && chown -R 5:6 /workspace/a && sleep 100 &")
    assert os.listdir(places) == []


@pytest.fixture
async def volume() -> AsyncIterator[AnyMount]:
    made = await AsyncVolume.create("of-users")
    yield VolumeMount(volume="of-users", target="/data")
    await made.delete()


async def owners(sandbox: AsyncSandbox, *paths: str) -> list[str]:
    shown = await sandbox.exec(["/bin/ls", "-nd", *paths], user="root")
    return [":".join(line.split()[2:4]) for line in shown.stdout.splitlines()]


@needs_ranges
async def test_a_volume_is_the_sandboxs_users_and_root_has_its_rights_there(image: str, volume: AnyMount) -> None:
    async with AsyncSandbox.create(image=image, user="web", mounts=[volume]) as sandbox:
        assert (await sandbox.exec("mkdir /data/mine && touch /data/mine/file")).ok
        made = "touch /data/roots /data/given && chown 7:8 /data/given && mkdir /data/theirs && chown 7:8 /data/theirs"
        done = await sandbox.exec(f"{made} && echo more >> /data/mine/file", user="root")
        assert done.ok, done
        shown = await owners(sandbox, "/data", "/data/given", "/data/mine/file", "/data/roots")
        assert shown == ["33:34", "7:8", "33:34", "0:0"]
        assert not (await sandbox.exec("touch /data/file", user="7:8")).ok
        assert (await sandbox.exec("touch /data/theirs/file && rm /data/theirs/file", user="7:8")).ok
        assert not (await sandbox.exec("echo text > /data/roots")).ok


@needs_ranges
async def test_the_next_sandbox_finds_what_users_left_in_a_volume(image: str, volume: AnyMount) -> None:
    async with AsyncSandbox.create(image=image, user="web", mounts=[volume]) as sandbox:
        made = "touch /data/mine /data/roots /data/given && chown 33:34 /data/mine && chown 7:8 /data/given"
        assert (await sandbox.exec(made, user="root")).ok
    async with AsyncSandbox.create(image=image, user="7:8", mounts=[volume]) as sandbox:
        assert await owners(sandbox, "/data/mine", "/data/roots") == ["7:8", "0:0"]
        assert (await sandbox.exec("echo text > /data/mine")).ok
        assert not (await sandbox.exec("echo text > /data/given")).ok
        assert (await sandbox.exec("chown 7:8 /data/given", user="root")).ok
        assert (await sandbox.exec("echo text > /data/given")).ok
    async with AsyncSandbox.create(image=image, user="root", mounts=[volume]) as sandbox:
        assert await owners(sandbox, "/data/mine", "/data/given") == ["0:0", "0:0"]
        assert (await sandbox.exec("echo text > /data/roots && chown 0:0 /data/roots")).ok
    async with AsyncSandbox.create(mounts=[volume]) as sandbox:
        assert (await sandbox.exec("echo text > /data/mine; cat /data/roots")).ok


KILLED = """
import asyncio, sys
from support.crash import arm_step
from cove import AsyncImage, AsyncSandbox

async def main():
    await AsyncImage.load({path!r}, name="killed")
    arm_step({step!r}, {moment!r})
    sandbox = await AsyncSandbox.create(image="killed")
    await sandbox.exec("mkdir -p /data/a && chown -R 33 /data")
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
        print((await sandbox.exec("cat /proc/self/uid_map")).stdout)

asyncio.run(main())
"""
STEPS = [
    "cove.runtime.user_ranges UserRanges.allocate",
    "cove.runtime.home Home._furnish",
    "cove.runtime.jail_start _map_users",
    "cove.runtime.sandbox_lifecycle SandboxLifecycle.open",
    "cove.runtime.user_ranges UserRanges.release",
]


@needs_ranges
@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.slow), "after"])
@pytest.mark.parametrize("step", STEPS)
def test_who_is_killed_leaves_no_range_behind(step: str, moment: str, other_home: Path, tmp_path: Path) -> None:
    path = write_busybox(tmp_path / "image.tar", settings={"Env": ["PATH=/bin"]})
    run_to_its_death(KILLED.format(path=path, step=step, moment=moment), other_home)
    _, first, count = run_program(NEXT, other_home).split()
    assert int(count) == RANGE_USERS
    assert places(other_home) == []
    state = read_note(other_home / "users.range")
    held = [read_note(each) for each in (REGISTERS[0] / "ranges").iterdir() if each.name != "last"]
    own = [note.split()[1] for note in held if note.startswith(f"{state}\n")]
    assert not [key for key in own if (other_home / "sandboxes" / key).exists()]
    assert int(first) % RANGE_USERS == 0
