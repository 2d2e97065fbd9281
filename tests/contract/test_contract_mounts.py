"""Volumes, and mounts of running sandboxes, whatever way the sandbox is reached."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from support.serving import MakeSandbox, Where

from cove import AsyncSandbox, AsyncVolume, BucketMount, Mount, Secret, VolumeMount
from cove.errors import (
    MountExists,
    MountNotFound,
    PermissionDenied,
    ValidationFailed,
    VolumeAlreadyExists,
    VolumeInUse,
    VolumeNotFound,
)

pytestmark = pytest.mark.anyio
SIZE = 8 << 20


@asynccontextmanager
async def volume(where: Where, name: str = "kept", size: int | None = None) -> AsyncIterator[AsyncVolume]:
    made = await AsyncVolume.create(name, size=size, **where)
    try:
        yield made
    finally:
        with suppress(VolumeNotFound):
            await made.delete()


async def test_a_volume_is_made_found_listed_and_deleted(where: Where) -> None:
    async with volume(where, size=SIZE) as made:
        assert made.name == "kept"
        info = await (await AsyncVolume.get("kept", **where)).info()
        assert (info.name, info.size, info.owner) == ("kept", SIZE, None)
        assert info.used_bytes is not None
        assert [each.name for each in await AsyncVolume.list(**where)] == ["kept"]
        with pytest.raises(VolumeAlreadyExists):
            await AsyncVolume.create("kept", **where)
        await made.delete()
        assert await AsyncVolume.list(**where) == []
        for call in (made.delete(), made.info(), AsyncVolume.get("kept", **where)):
            with pytest.raises(VolumeNotFound):
                await call


async def test_what_can_be_no_volume_is_refused(where: Where) -> None:
    for name in ("", ".", "..", "a/b", ".hidden", "a" * 64, "a\0b", "a b"):
        with pytest.raises(ValidationFailed):
            await AsyncVolume.create(name, **where)
    for size in (0, -1, 5, "8M"):
        with pytest.raises(ValidationFailed):
            await AsyncVolume.create("sized", size=size, **where)  # type: ignore[arg-type]  # on purpose
    assert await AsyncVolume.list(**where) == []


async def test_a_volume_outlives_sandboxes_and_is_shared_by_them(where: Where) -> None:
    shown = VolumeMount(volume="kept", target="/data")
    async with volume(where) as made:
        async with (
            AsyncSandbox.create(mounts=[shown], **where) as first,
            AsyncSandbox.create(mounts=[VolumeMount(volume="kept", target="/read", read_only=True)], **where) as second,
        ):
            await first.exec("echo one > /data/file && chmod 600 /data/file", timeout=30)
            assert (await second.exec("cat /read/file; touch /read/file")).stdout == "one\n"
            assert "Read-only" in (await second.exec("touch /read/new")).stderr
            with pytest.raises(VolumeInUse):
                await made.delete()
        async with AsyncSandbox.create(mounts=[shown], **where) as third:
            result = await third.exec("cat /data/file && echo two >> /data/file && stat -c %u:%g:%a /data/file")
            assert result.stdout == "one\n1000:1000:600\n"


async def test_mounts_are_added_to_a_running_sandbox_and_removed(where: Where) -> None:
    deep, flat = (VolumeMount(volume="kept", target=target) for target in ("/workspace/a/b", "/srv/flat"))
    async with volume(where), AsyncSandbox.create(**where) as sandbox:
        session = await sandbox.create_session()
        await sandbox.mounts.add(deep)
        await sandbox.mounts.add(flat)
        assert await sandbox.mounts.list() == [deep, flat]
        assert (await sandbox.info()).spec.mounts == (deep, flat)
        assert (await session.exec("echo here > a/b/file; cat /srv/flat/file")).stdout == "here\n"
        assert (await sandbox.files.read("/srv/flat/file")) == b"here\n"
        await sandbox.restart()
        assert (await sandbox.exec("cat a/b/file /srv/flat/file")).stdout == "here\nhere\n"
        await sandbox.mounts.remove("/workspace/a/b/")
        await sandbox.mounts.remove("/srv/flat")
        assert await sandbox.mounts.list() == []
        assert (await sandbox.exec("ls -A a/b /srv; true")).stdout == "/srv:\n\na/b:\n"
        assert (await sandbox.exec("mount | grep -c -e kept -e flat; true")).stdout == "0\n"


async def test_what_cannot_be_mounted_is_refused_and_changes_nothing(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        with pytest.raises(VolumeNotFound):
            await sandbox.mounts.add(VolumeMount(volume="missing", target="/data"))
        for target in ("/usr/x", "/proc", "/", "/etc/passwd", "/run/cove/x", "/workspace", "/tmp"):
            with pytest.raises(PermissionDenied):
                await sandbox.mounts.add(VolumeMount(volume="missing", target=target))
        for mount in (
            VolumeMount(volume="missing", target="data"),
            VolumeMount(volume="missing", target="/data/../x"),
            VolumeMount(volume="no/name", target="/data"),
            VolumeMount(volume="missing", target="/da\0ta"),
            BucketMount(url="http://bucket", endpoint="http://s3.example", target="/data"),
            BucketMount(url="s3://bucket/../x", endpoint="http://s3.example", target="/data"),
            BucketMount(url="s3://bucket", endpoint="http://key:secret@s3.example", target="/data"),
            BucketMount(url="s3://bucket", endpoint="ftp://s3.example", target="/data", credentials=Secret("K")),
        ):
            with pytest.raises(ValidationFailed):
                await sandbox.mounts.add(mount)
        with pytest.raises(MountNotFound):
            await sandbox.mounts.remove("/data")
        with pytest.raises(MountNotFound):
            await sandbox.mounts.sync("/data")
        assert await sandbox.mounts.list() == []
        assert (await sandbox.exec("ls -d /data; true")).stdout == ""


async def test_a_target_is_used_once_and_never_covered(where: Where) -> None:
    async with volume(where), AsyncSandbox.create(**where) as sandbox:
        await sandbox.mounts.add(VolumeMount(volume="kept", target="/data"))
        inner = VolumeMount(volume="kept", target="/data/in/side")
        await sandbox.mounts.add(inner)
        for target in ("/data", "/data/in", "/data/in/side"):
            with pytest.raises(MountExists):
                await sandbox.mounts.add(VolumeMount(volume="kept", target=target))
        with pytest.raises(ValidationFailed, match="/data/in/side"):
            await sandbox.mounts.remove("/data")
        await sandbox.mounts.remove("/data/in/side")
        await sandbox.mounts.remove("/data")
        assert await sandbox.mounts.list() == []


async def test_of_two_adds_at_one_target_one_succeeds(where: Where) -> None:
    async with volume(where), AsyncSandbox.create(**where) as sandbox:
        adding = [sandbox.mounts.add(VolumeMount(volume="kept", target="/data")) for _ in range(4)]
        results = await asyncio.gather(*adding, return_exceptions=True)
        assert sorted(type(each).__name__ for each in results) == ["MountExists"] * 3 + ["NoneType"]
        assert (await sandbox.exec("grep -c ' /data ' /proc/self/mountinfo")).stdout == "1\n"


async def test_without_isolation_nothing_is_mounted() -> None:
    with pytest.raises(ValidationFailed, match="isolation"):
        await AsyncSandbox.create(isolation="none", mounts=[VolumeMount(volume="kept", target="/data")])
    async with AsyncSandbox.create(isolation="none") as sandbox:
        with pytest.raises(ValidationFailed, match="isolation"):
            await sandbox.mounts.add(VolumeMount(volume="kept", target="/data"))
        with pytest.raises(ValidationFailed, match="isolation"):
            await sandbox.mounts.remove("/data")


async def test_a_server_mounts_only_what_its_configuration_allows(where: Where) -> None:
    if not where:
        return
    async with AsyncSandbox.create(**where) as sandbox:
        for mount in (
            Mount(source="/srv", target="/data"),
            BucketMount(url="s3://bucket", endpoint="http://s3.example", target="/data"),
        ):
            with pytest.raises(PermissionDenied, match="does not allow"):
                await sandbox.mounts.add(mount)
            with pytest.raises(PermissionDenied, match="does not allow"):
                await AsyncSandbox.create(mounts=[mount], **where)
