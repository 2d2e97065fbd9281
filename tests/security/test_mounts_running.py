"""Mounts that are added and removed beside hostile code."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from support.leaks import descriptors

from cove import AsyncSandbox, AsyncVolume, Mount, VolumeMount
from cove.errors import CoveError, MountNotFound, PermissionDenied
from cove.runtime.home import Home
from cove.runtime.user_ids import FIRST_USER_ID

pytestmark = pytest.mark.anyio

# Renames a directory away, puts a link to the system in its place, and back, as fast as it can.
SWAP = """
import os
import shutil
import tempfile
os.makedirs("/workspace/a/b", exist_ok=True)
while True:
    os.rename("/workspace/a", "/workspace/c")
    os.symlink("/proc", "/workspace/a")
    os.unlink("/workspace/a")
    os.rename("/workspace/c", "/workspace/a")
"""
MASKS = "grep -c -e ' /proc/' -e ' /usr ' -e ' /etc ' -e ' /dev ' -e ' /run/cove' /proc/self/mountinfo"


@asynccontextmanager
async def volume(name: str = "kept") -> AsyncIterator[AsyncVolume]:
    made = await AsyncVolume.create(name)
    try:
        yield made
    finally:
        await made.delete()


@pytest.fixture
def ground() -> Iterator[Path]:
    """A directory of the host that every user can enter."""
    path = Path(tempfile.mkdtemp(prefix="cove-ground-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def shown(target: str) -> VolumeMount:
    return VolumeMount(volume="kept", target=target)


@pytest.mark.parametrize("link", ["/workspace/link", "/workspace/link/below", "/workspace/link/deep/below"])
async def test_no_link_on_the_way_to_a_target_is_followed(link: str) -> None:
    async with volume(), AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkdir -p real/deep && ln -s real link")
        with pytest.raises(PermissionDenied, match="link"):
            await sandbox.mounts.add(shown(link))
        assert await sandbox.mounts.list() == []
        assert (await sandbox.exec("grep -c workspace/ /proc/self/mountinfo; ls -A real")).stdout == "0\ndeep\n"


async def test_code_that_swaps_the_way_to_a_target_changes_no_other_mount() -> None:
    """A mount may end up elsewhere in the sandbox, or be refused; what hides the host stays where it is."""
    async with volume(), AsyncSandbox.create() as sandbox:
        before = (await sandbox.exec(MASKS)).stdout
        swapping = await sandbox.start_process(["python3", "-c", SWAP])
        outcomes = set()
        for _ in range(40):
            try:
                await sandbox.mounts.add(shown("/workspace/a/b/target"))
            except CoveError as error:
                outcomes.add(type(error).__name__)
                continue
            with suppress(CoveError):
                await sandbox.mounts.remove("/workspace/a/b/target")
            if await sandbox.mounts.list():  # it was moved away from where it should be
                break
        await swapping.kill("KILL")
        await swapping.wait()
        assert (await sandbox.exec(MASKS)).stdout == before
        assert outcomes <= {"PermissionDenied", "FileNotFound", "FileExists", "NotDirectory", "MountExists"}


async def test_a_mount_that_was_moved_away_is_not_mistaken_for_another() -> None:
    async with volume(), AsyncSandbox.create() as sandbox:
        await sandbox.mounts.add(shown("/workspace/a/data"))
        await sandbox.exec("mv a moved && mkdir -p a/data")
        with pytest.raises(MountNotFound):
            await sandbox.mounts.remove("/workspace/a/data")
        assert [mount.target for mount in await sandbox.mounts.list()] == ["/workspace/a/data"]
        await sandbox.exec("rm -rf a && mv moved a")
        await sandbox.mounts.remove("/workspace/a/data")


async def test_what_is_mounted_inside_a_shared_directory_is_not_mounted_on_the_host(ground: Path) -> None:
    """The host's mounts may be shared: what is mounted below a clone of one must not propagate to it."""
    source = ground / "shared"
    (source / "below").mkdir(parents=True)
    before = Path("/proc/self/mountinfo").read_text()
    async with volume(), AsyncSandbox.create() as sandbox:
        await sandbox.mounts.add(Mount(source=str(source), target="/data"))
        await sandbox.mounts.add(shown("/data/below"))
        assert (await sandbox.exec("touch /data/below/file && ls /data/below")).stdout == "file\n"
        assert list((source / "below").iterdir()) == []
        after = Path("/proc/self/mountinfo").read_text()
        assert [line for line in after.splitlines() if "shared" in line] == [
            line for line in before.splitlines() if "shared" in line
        ]


async def test_a_program_in_a_removed_mount_keeps_what_it_has_open() -> None:
    async with volume(), AsyncSandbox.create() as sandbox:
        await sandbox.mounts.add(shown("/data"))
        script = "exec 3>/data/file; echo ready; read; echo late >&3; cd /data 2>/dev/null && ls /data | wc -l"
        process = await sandbox.start_process(script, stdin=True)
        await process.wait_for_log("ready")
        await sandbox.mounts.remove("/data")
        await process.write_stdin(b"\n")
        await process.wait()
        await sandbox.mounts.add(shown("/data"))
        assert (await sandbox.exec("cat /data/file")).stdout == "late\n"


async def test_two_hundred_mounts_leave_nothing() -> None:
    async with volume() as made, AsyncSandbox.create() as sandbox:
        await sandbox.mounts.add(shown("/data"))
        await sandbox.mounts.remove("/data")
        held, mounts = len(descriptors()), (await sandbox.exec("wc -l < /proc/self/mountinfo")).stdout
        for _ in range(200):
            await sandbox.mounts.add(shown("/data"))
            await sandbox.mounts.remove("/data")
        assert (await sandbox.exec("wc -l < /proc/self/mountinfo; ls -d /data; true")).stdout == mounts
        assert len(descriptors()) < held + 10  # some are closed by threads, a little later
        assert (await made.info()).name == "kept"


async def test_nothing_in_a_volume_gives_rights(cove_home: Path) -> None:
    """No set-user-id, no devices; on disk one user owns all, who is nobody else's."""
    async with volume(), AsyncSandbox.create(mounts=[shown("/data")]) as sandbox:
        await sandbox.exec("cp /bin/true /data/true && chmod 6755 /data/true; mknod /data/null c 1 3; true")
        options = (await sandbox.exec("grep ' /data ' /proc/self/mountinfo")).stdout
        assert "nosuid" in options
        assert "nodev" in options
        status = (cove_home / "volumes/kept/data/true").stat()
        if os.geteuid() == 0:
            assert status.st_uid == status.st_gid >= FIRST_USER_ID
            assert status.st_uid == await asyncio.to_thread(Home(cove_home).volume_owner)
            assert status.st_uid != sandbox._place.user_id  # type: ignore[attr-defined]
            assert (cove_home / "volumes").stat().st_mode & 0o077 == 0
        assert not (cove_home / "volumes/kept/data/null").exists()


async def test_a_cancelled_add_leaves_nothing() -> None:
    async with volume() as made, AsyncSandbox.create() as sandbox:
        for turns in range(0, 40, 3):
            adding = asyncio.ensure_future(sandbox.mounts.add(shown("/data")))
            for _ in range(turns):
                await asyncio.sleep(0)
            adding.cancel()
            with suppress(asyncio.CancelledError):
                await adding
                await sandbox.mounts.remove("/data")
            assert await sandbox.mounts.list() == []
            assert (await sandbox.exec("grep -c ' /data ' /proc/self/mountinfo")).stdout == "0\n"
        await made.delete()
        await AsyncVolume.create("kept")
