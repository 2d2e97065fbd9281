"""Volumes on disk: sizes, users, and programs that are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cove import AsyncSandbox, AsyncVolume, VolumeMount
from cove.errors import VolumeInUse, VolumeNotFound
from cove.linux.cgroup import find_hierarchies
from cove.runtime.home import Home
from cove.runtime.volumes import Volumes

pytestmark = pytest.mark.anyio
SIZE = 8 << 20

HOLD = """
import asyncio, sys
from cove import AsyncSandbox, AsyncVolume, VolumeMount
async def main():
    await AsyncVolume.create("kept", size=8 << 20)
    sandbox = await AsyncSandbox.create(mounts=[VolumeMount(volume="kept", target="/data")])
    await sandbox.exec("echo kept > /data/file; sync")
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def volumes_at(path: Path) -> Volumes:
    home = Home(path)
    home.open()
    return Volumes(home)


def mounted_below(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(path) in line]


async def test_what_is_written_beyond_the_size_is_refused_or_ended(cove_home: Path) -> None:
    """By its own file system as root; by measuring, which ends what writes, as a plain user."""
    made = await AsyncVolume.create("sized", size=SIZE)
    try:
        info = await made.info()
        assert info.is_measured == (os.geteuid() != 0)
        async with AsyncSandbox.create(mounts=[VolumeMount(volume="sized", target="/data")]) as sandbox:
            command = "head -c 64M /dev/zero > /data/large; echo $?; sleep 60"
            result = await sandbox.exec(command, timeout=None if info.is_measured else 2)
            if info.is_measured:
                assert result.exit_code != 0
            else:
                assert result.stdout == "1\n"
                assert "No space left" in result.stderr
            assert (
                await sandbox.exec("rm /data/large && echo small > /data/file && cat /data/file")
            ).stdout == "small\n"
        assert mounted_below(cove_home / "volumes") == []
    finally:
        await made.delete()


async def test_the_sandbox_goes_on_in_a_full_volume_and_others_see_it() -> None:
    made = await AsyncVolume.create("sized", size=SIZE)
    mount = VolumeMount(volume="sized", target="/data")
    try:
        async with AsyncSandbox.create(mounts=[mount]) as first, AsyncSandbox.create(mounts=[mount]) as second:
            for number, sandbox in enumerate((first, second)):
                await sandbox.exec(f"head -c 1M /dev/urandom > /data/{number}")
            assert (await first.exec("sha256sum /data/*")).stdout == (await second.exec("sha256sum /data/*")).stdout
            with pytest.raises(VolumeInUse):
                await made.delete()
    finally:
        await made.delete()


def test_a_killed_program_lets_go_of_its_volume(other_home: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, env={**os.environ, "COVE_HOME": str(other_home)}
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    volumes = volumes_at(other_home)
    with pytest.raises(VolumeInUse):
        volumes.delete("kept")
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    Home(other_home).collect(find_hierarchies())
    volumes.collect()
    assert mounted_below(other_home) == []
    used = volumes.use("kept", "nobody")
    assert list(used.data.iterdir()) == [used.data / "file"]
    volumes.delete("kept")
    assert mounted_below(other_home) == []
    assert os.listdir(other_home / "volumes") == []


def test_what_was_half_made_or_half_deleted_is_collected(other_home: Path) -> None:
    volumes = volumes_at(other_home)
    volumes.create("whole", None)
    for name in (".new-abc", ".deleted-abc"):
        (other_home / "volumes" / name / "data").mkdir(parents=True)
    assert [info.name for info in volumes.list()] == ["whole"]
    volumes.collect()
    assert os.listdir(other_home / "volumes") == ["whole"]


def test_a_stopped_sandbox_of_a_server_still_uses_its_volume(other_home: Path) -> None:
    volumes = volumes_at(other_home)
    volumes.create("kept", None)
    place = other_home / "sandboxes/stopped"
    place.mkdir()
    (place / "sandbox.json").write_text("{}")
    volumes.use("kept", "stopped")
    with pytest.raises(VolumeInUse):
        volumes.delete("kept")
    (place / "sandbox.json").unlink()
    place.rmdir()
    volumes.delete("kept")
    with pytest.raises(VolumeNotFound):
        volumes.get("kept")


async def test_a_sandbox_whose_volume_is_gone_says_which() -> None:
    with pytest.raises(VolumeNotFound, match="missing"):
        await AsyncSandbox.create(mounts=[VolumeMount(volume="missing", target="/data")])
