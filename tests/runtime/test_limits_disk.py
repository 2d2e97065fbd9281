"""Limits on the disk: by a file system where root can mount one, by measuring elsewhere."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from cove import AsyncSandbox, Limits
from cove.errors import SandboxUnavailable
from cove.linux.disk_usage import measure_disk
from cove.linux.unlinked_files import measure_unlinked
from cove.runtime import disk
from cove.runtime.disk import IMAGE, MOUNT_POINT, ImageUnavailable, try_disk

pytestmark = pytest.mark.anyio

SMALL = Limits(disk=16 << 20, inodes=500)
FILL = "cat /dev/zero > /workspace/big"


@pytest.fixture
def needs_images(cove_home: Path) -> None:
    if reason := try_disk(cove_home):
        pytest.skip(f"needs file systems in images: {reason}")


@pytest.fixture(params=["image", "watcher"])
def means(request: pytest.FixtureRequest, cove_home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways, where this machine has both."""
    if request.param == "image" and (reason := try_disk(cove_home)):
        pytest.skip(f"needs file systems in images: {reason}")
    if request.param == "watcher":
        monkeypatch.setattr(disk, "make_image", _no_image)
    return str(request.param)


def _no_image(path: str, size: int, inodes: int | None) -> None:
    raise ImageUnavailable("not on this machine")


def mounts() -> list[str]:
    return [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if "/disk " in line]


async def test_a_sandbox_that_fills_its_disk_is_stopped_and_can_clean_up(means: str) -> None:
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        info = await sandbox.info()
        assert {"disk", "inodes"} <= set(info.limits_enforced)
        assert any("measuring" in warning for warning in info.warnings) == (means == "watcher")
        result = await sandbox.exec(FILL, timeout=60)
        assert not result.ok
        used = (await sandbox.usage()).disk_bytes or 0
        assert used <= 17 << 20
        assert (
            await sandbox.exec("rm /workspace/big; echo again > /workspace/f; cat /workspace/f")
        ).stdout == "again\n"


async def test_many_files_that_are_each_small_enough_are_stopped(means: str) -> None:
    fill = "for i in $(seq 100); do head -c 4M /dev/zero > /tmp/$i || exit 5; done; sleep 100"
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        result = await sandbox.exec(fill, timeout=60)
        if means == "image":
            assert (result.exit_code, "No space left" in result.stderr) == (5, True)
        else:
            assert result.outcome == "killed"
            assert "its limit is 16777216" in result.stderr
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_inodes_are_limited_too(means: str) -> None:
    fill = "mkdir d; for i in $(seq 5000); do : > d/$i || exit 5; done; sleep 100"
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        result = await sandbox.exec(fill, timeout=60)
        assert (result.exit_code == 5) if means == "image" else ("its limit is 500" in result.stderr)


async def test_a_file_without_a_name_counts(means: str) -> None:
    fill = "exec 3> f; rm f; exec 4> g; rm g; head -c 10M /dev/zero >&3 && head -c 10M /dev/zero >&4 && sleep 100"
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        result = await sandbox.exec(fill, timeout=60)
        assert not result.ok
        assert not result.timed_out


# Each holds files without a name in a way of its own, within the limit of each, and far beyond that of all.
HIDDEN = """
import ctypes, mmap, os, socket, sys, threading, time
library = ctypes.CDLL(None)
def hidden(name):
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, 12 << 20)
    os.unlink(name)
    return file
"""
HOLDERS = {
    "by a process that is not dumpable": "library.prctl(4, 0, 0, 0, 0); held = [hidden(str(n)) for n in range(4)]",
    "by mappings": """
held = []
for n in range(4):
    file = hidden(str(n))
    held.append(mmap.mmap(file, 4096))
    os.close(file)
""",
    "by descriptors in a socket": """
held = socket.socketpair()
for n in range(4):
    file = hidden(str(n))
    socket.send_fds(held[0], [b"x"], [file])
    os.close(file)
""",
    "by a thread with descriptors of its own": """
def work():
    library.unshare(0x400)
    try:
        held = [hidden(str(n)) for n in range(4)]
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    time.sleep(100)
threading.Thread(target=work).start()
""",
    "by a program that cannot be read": """
if len(sys.argv) < 2:
    import shutil
    shutil.copy("/usr/bin/python3", "mine")
    os.chmod("mine", 0o111)
    os.execv("mine", ["mine", "-I", "-S", "-c", open("/proc/self/cmdline").read().split(chr(0))[2], "again"])
held = [hidden(str(n)) for n in range(4)]
""",
}


@pytest.mark.parametrize("holder", HOLDERS)
async def test_files_that_are_hidden_from_the_measure_count(holder: str, means: str) -> None:
    code = HIDDEN + HOLDERS[holder] + "\ntime.sleep(100)\n"
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        result = await sandbox.exec(["python3", "-c", code], timeout=60)
        assert result.outcome == ("exited" if means == "image" else "killed"), result.stderr
        assert ("No space left" if means == "image" else "its limit is 16777216") in result.stderr
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_whoever_hides_nothing_is_not_charged_with_what_others_write(
    monkeypatch: pytest.MonkeyPatch, cove_home: Path
) -> None:
    monkeypatch.setattr(disk, "make_image", _no_image)
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        process = await sandbox.start_process("exec 3> f; rm f; echo ready; read -t 3; echo unharmed")
        await process.wait_for_log("ready")
        for number in range(4):
            await asyncio.to_thread((cove_home / f"other{number}").write_bytes, os.urandom(8 << 20))
        assert (await process.wait()).exit_code == 0
        for number in range(4):
            (cove_home / f"other{number}").unlink()


async def test_logs_count_and_take_at_most_a_quarter(means: str) -> None:
    flood = "head -c 40M /dev/zero | base64"
    async with AsyncSandbox.create(limits=Limits(disk=64 << 20)) as sandbox:
        before = (await sandbox.usage()).disk_bytes or 0
        await (await sandbox.start_process(flood)).wait()
        used = (await sandbox.usage()).disk_bytes or 0
        assert (4 << 20) < used - before <= (16 << 20)


async def test_who_stays_within_the_limit_is_left_alone(means: str) -> None:
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        work = "for i in 1 2 3; do head -c 4M /dev/zero > f$i; done; ls | wc -l; sleep 1; echo done"
        assert (await sandbox.exec(work, timeout=60)).stdout == "3\ndone\n"


async def test_after_passing_the_limit_only_those_who_write_more_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "make_image", _no_image)
    async with AsyncSandbox.create(limits=Limits(disk=4 << 20)) as sandbox:
        await sandbox.exec("for i in 1 2 3; do head -c 3M /dev/zero > f$i; done; sleep 100", timeout=60)
        assert (await sandbox.exec("sleep 1; rm f1 f2; ls", timeout=60)).stdout == "f3\n"


async def test_the_file_system_goes_with_the_sandbox(needs_images: None, cove_home: Path) -> None:
    before = mounts()
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        assert len(mounts()) == len(before) + 1
        place = sandbox._place.path  # type: ignore[attr-defined]
        assert (place / IMAGE).stat().st_mode & 0o777 == 0o600
        assert os.path.ismount(place / MOUNT_POINT)
        await sandbox.exec("echo kept > /workspace/f; echo kept > ~/f; echo kept > /tmp/f")
        await sandbox.restart()
        assert (await sandbox.exec("cat /workspace/f ~/f /tmp/f")).stdout == "kept\n" * 3
    assert mounts() == before
    assert not place.exists()


async def test_a_disk_that_a_crash_left_is_repaired_and_mounted_again(needs_images: None) -> None:
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        await sandbox.exec("echo kept > /workspace/f; sync")
        place = sandbox._place  # type: ignore[attr-defined]
        before = place.path / "before.img"
        await asyncio.to_thread(shutil.copy, place.path / IMAGE, before)  # as it is on disk while it is in use
        await asyncio.to_thread(disk.detach_disk, place.path)
        await asyncio.to_thread(os.rename, before, place.path / IMAGE)
        await sandbox.restart()
        assert (await sandbox.exec("cat /workspace/f")).stdout == "kept\n"


async def test_a_disk_whose_first_record_is_spoilt_is_repaired_from_its_backup(needs_images: None) -> None:
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        await sandbox.exec("echo kept > /workspace/f; sync")
        await sandbox.stop()
        place = sandbox._place.path  # type: ignore[attr-defined]
        await asyncio.to_thread(disk.detach_disk, place)
        await _until_free(place / IMAGE)
        await asyncio.to_thread(_spoil_checksum, place / IMAGE)
        await sandbox.start()
        assert (await sandbox.exec("cat /workspace/f")).stdout == "kept\n"


def _spoil_checksum(image: Path) -> None:
    """Change the checksum of the superblock, its last field: ext4(5)."""
    with image.open("r+b") as file:
        file.seek(1024 + 0x3FC)
        checksum = file.read(4)
        file.seek(1024 + 0x3FC)
        file.write(bytes(255 - byte for byte in checksum))


async def _until_free(image: Path) -> None:
    async with asyncio.timeout(30):
        while await asyncio.to_thread(disk._is_alive, str(image)):
            await asyncio.sleep(0.02)


async def test_a_disk_that_others_keep_alive_is_not_repaired_and_stays_whole(
    needs_images: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount namespace that was made meanwhile has a copy of the mount, which no unmounting here takes away."""
    monkeypatch.setattr(disk, "_RELEASE_SECONDS", 0.2)
    repaired: list[str] = []
    monkeypatch.setattr(disk, "_repair", repaired.append)
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        place = sandbox._place.path  # type: ignore[attr-defined]
        await sandbox.exec("echo kept > /workspace/f")
        keeper = await asyncio.create_subprocess_exec("unshare", "--mount", "cat", stdin=asyncio.subprocess.PIPE)
        try:
            await asyncio.sleep(0.5)  # until it has its namespace
            await sandbox.stop()
            await asyncio.to_thread(disk.detach_disk, place)
            await sandbox.start()
            assert not repaired
            assert (await sandbox.exec("cat /workspace/f; echo more > /workspace/g; sync")).stdout == "kept\n"
        finally:
            keeper.kill()
            await keeper.wait()
        await sandbox.stop()
        await asyncio.to_thread(disk.detach_disk, place)
        await _until_free(place / IMAGE)
        checked = await asyncio.create_subprocess_exec(
            "/usr/sbin/e2fsck", "-f", "-n", place / IMAGE, stdout=asyncio.subprocess.DEVNULL
        )
        assert await checked.wait() == 0
        await sandbox.start()
        assert repaired == [str(place / IMAGE)]
        assert (await sandbox.exec("cat /workspace/f /workspace/g")).stdout == "kept\nmore\n"


async def test_a_disk_that_cannot_be_used_any_more_gives_no_sandbox(needs_images: None) -> None:
    async with AsyncSandbox.create(limits=SMALL) as sandbox:
        place = sandbox._place  # type: ignore[attr-defined]
        await asyncio.to_thread(disk.detach_disk, place.path)
        await asyncio.to_thread((place.path / IMAGE).write_bytes, b"broken")
        with pytest.raises(SandboxUnavailable, match="the disk of the sandbox cannot be used"):
            await sandbox.restart()


async def test_many_with_disks_of_their_own_live_side_by_side(needs_images: None) -> None:
    async def one(number: int) -> str:
        async with AsyncSandbox.create(limits=SMALL) as sandbox:
            return (await sandbox.exec(f"echo {number} > f; sync; cat f; df --output=size -m . | tail -1")).stdout

    results = await asyncio.gather(*(one(number) for number in range(6)))
    assert [result.split()[0] for result in results] == [str(number) for number in range(6)]
    assert all(int(result.split()[1]) <= 16 for result in results)


def test_what_is_measured_is_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "link").symlink_to("/usr")
    deep = tmp_path
    for _ in range(50):
        deep = deep / "d"
        deep.mkdir()
    (deep / "f").write_bytes(b"y" * 50_000)
    usage = measure_disk([str(tmp_path), str(tmp_path / "missing")])
    assert usage.files == 1 + 1 + 50 + 1
    assert 150_000 < usage.bytes < 150_000 + 60 * 4096
    assert not usage.is_partial


def test_a_tree_that_is_too_deep_is_known_to_be_partial(tmp_path: Path) -> None:
    before = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(before)
    assert measure_disk([str(tmp_path)]).is_partial


def test_an_open_file_without_a_name_is_found(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        file.write(b"x" * 1_000_000)
        file.flush()
        device = tmp_path.stat().st_dev
        assert measure_unlinked([os.getpid()], {device}).bytes < 1_000_000
        os.unlink(tmp_path / "f")
        assert measure_unlinked([os.getpid()], {device}).bytes >= 1_000_000
