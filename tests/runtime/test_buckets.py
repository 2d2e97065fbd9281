"""Buckets: served by rclone, or copied; dead ones, and where their credentials are."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.servers import eventually
from support.storage import Storage, storage_server
from support.users import needs_ranges

from cove import AsyncImage, AsyncSandbox, BucketMount, Secret
from cove.core import bucket as core_bucket
from cove.errors import CoveError, PermissionDenied, SandboxUnavailable, SecretUnavailable, ValidationFailed
from cove.linux.cgroup import find_hierarchies
from cove.model import Outcome
from cove.runtime import bucket as bucket_module
from cove.runtime.home import Home

pytest.importorskip("moto")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed"),
]
SERVED = os.geteuid() == 0 or os.access("/dev/fuse", os.R_OK | os.W_OK)
needs_fuse = pytest.mark.skipif(not SERVED, reason="/dev/fuse is not to be opened")

HOLD = """
import asyncio, sys
from cove import AsyncSandbox, BucketMount, Secret
async def main():
    mount = BucketMount(url="s3://bucket", endpoint=sys.argv[1], target="/data", credentials=Secret("BUCKET_KEYS"))
    sandbox = await AsyncSandbox.create(mounts=[mount])
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Storage]:
    with storage_server() as storage:
        yield storage


@pytest.fixture
def storage(server: Storage, monkeypatch: pytest.MonkeyPatch) -> Storage:
    server.ask("POST", "/moto-api/reset")
    server.ask("PUT", "/bucket")
    server.ask("PUT", "/bucket/pre/hello", b"hello\n")
    server.ask("PUT", "/bucket/top", b"top\n")
    monkeypatch.setenv("BUCKET_KEYS", server.credentials)
    return server


@pytest.fixture(params=["served", "copied"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "copied":
        monkeypatch.setattr(bucket_module, "find_fuse", lambda *_: None)
    elif not SERVED:
        pytest.skip("/dev/fuse is not to be opened")
    name: str = request.param
    return name


def mount_of(storage: Storage, url: str = "s3://bucket/pre", *, read_only: bool = False) -> BucketMount:
    return BucketMount(
        url=url, endpoint=storage.url, target="/data", credentials=Secret("BUCKET_KEYS"), read_only=read_only
    )


def rclones(home: Path) -> list[int]:
    """Those of one state directory, whose path is in what bubblewrap was told, each followed by its child."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes()
            if b"rclone\0mount" in words and str(home).encode() in words:
                pid = path.parent.name
                found += [int(pid), *map(int, (path.parent / "task" / pid / "children").read_text().split())]
    return found


async def test_a_bucket_is_read_written_and_removed(storage: Storage, mode: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.mounts.add(mount_of(storage))
        assert (
            await sandbox.exec("cat /data/hello; ls -A /data; stat -c %u /data/hello")
        ).stdout == "hello\nhello\n1000\n"
        await sandbox.exec(
            "echo more >> /data/hello; mkdir /data/deep; for i in $(seq 9); do echo $i > /data/deep/$i; done"
        )
        warnings = (await sandbox.info()).warnings
        assert any("copied" in warning for warning in warnings) == (mode == "copied")
        await sandbox.mounts.sync("/data")
        assert await asyncio.to_thread(storage.ask, "GET", "/bucket/pre/hello") == b"hello\nmore\n"
        await sandbox.exec("echo last > /data/last")
        await sandbox.mounts.remove("/data")
        keys = await asyncio.to_thread(storage.keys, "bucket")
        assert sorted(keys) == sorted(["pre/hello", "pre/last", "top", *(f"pre/deep/{i}" for i in range(1, 10))])
        assert (await sandbox.exec("ls -d /data; true")).stdout == ""


async def test_what_was_written_is_sent_by_a_restart_and_a_destroy(storage: Storage, mode: str) -> None:
    async with AsyncSandbox.create(mounts=[mount_of(storage)]) as sandbox:
        await sandbox.exec("echo one > /data/one")
        await sandbox.restart()
        assert (await sandbox.exec("cat /data/one && echo two > /data/two")).stdout == "one\n"
    assert await asyncio.to_thread(storage.ask, "GET", "/bucket/pre/one") == b"one\n"
    assert await asyncio.to_thread(storage.ask, "GET", "/bucket/pre/two") == b"two\n"


async def test_a_read_only_bucket_is_not_written(storage: Storage, mode: str) -> None:
    async with AsyncSandbox.create(mounts=[mount_of(storage, "s3://bucket", read_only=True)]) as sandbox:
        result = await sandbox.exec("cat /data/top /data/pre/hello; touch /data/new")
        assert result.stdout == "top\nhello\n"
        assert "Read-only" in result.stderr
    assert sorted(await asyncio.to_thread(storage.keys, "bucket")) == ["pre/hello", "top"]


@needs_fuse
async def test_credentials_are_nowhere_but_in_the_environment_of_rclone(storage: Storage, cove_home: Path) -> None:
    async with AsyncSandbox.create(mounts=[mount_of(storage)]) as sandbox:
        seen = await sandbox.exec(
            "env; cat /proc/*/environ /proc/*/cmdline /proc/self/mountinfo 2>/dev/null", timeout=30
        )
        assert storage.secret not in seen.stdout
        assert storage.secret not in str(await sandbox.info())
        around, serving = rclones(cove_home)
        for pid in (around, serving):
            assert storage.secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert storage.secret.encode() in Path(f"/proc/{serving}/environ").read_bytes()
        found = await asyncio.to_thread(
            subprocess.run, ["grep", "-rl", storage.secret, str(cove_home)], capture_output=True, check=False
        )
        assert found.stdout == b""


async def test_what_cannot_be_used_is_told_when_it_is_added(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(ValidationFailed, match="no such bucket"):
            await sandbox.mounts.add(mount_of(storage, "s3://missing"))
        monkeypatch.delenv("BUCKET_KEYS")
        with pytest.raises(SecretUnavailable, match="BUCKET_KEYS"):
            await sandbox.mounts.add(mount_of(storage))
        monkeypatch.setenv("BUCKET_KEYS", "no-colon")
        with pytest.raises(SecretUnavailable):
            await sandbox.mounts.add(mount_of(storage))
        assert await sandbox.mounts.list() == []
        assert (await sandbox.exec("ls -d /data; true")).stdout == ""


async def test_an_endpoint_that_never_answers_fails_the_call(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "_LIST_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mount = BucketMount(
            url="s3://bucket", endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", target="/data", credentials=None
        )
        async with AsyncSandbox.create() as sandbox:
            with pytest.raises(SandboxUnavailable, match="longer"):
                await sandbox.mounts.add(mount)
            assert (await sandbox.exec("echo lives")).stdout == "lives\n"


@needs_fuse
async def test_an_endpoint_that_stops_to_answer_is_an_io_error_and_holds_nothing_up(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_bucket, "ANSWER_SECONDS", 0.5)
    async with AsyncSandbox.create(mounts=[mount_of(storage)]) as sandbox:
        assert (await sandbox.exec("ls /data")).stdout == "hello\n"
        os.kill(storage.process.pid, signal.SIGSTOP)  # the kernel goes on accepting connections for it
        try:
            reading = asyncio.ensure_future(sandbox.exec("cat /data/hello", timeout=50))
            assert (await sandbox.exec("echo lives")).stdout == "lives\n"
            assert (await sandbox.usage()).pids
            result = await reading
            assert (result.outcome, result.exit_code) == (Outcome.EXITED, 1)
            assert "Input/output error" in result.stderr
            with pytest.raises(CoveError, match="Input/output error"):
                await asyncio.wait_for(sandbox.files.read("/data/hello"), 50)
            await sandbox.mounts.remove("/data")
        finally:
            os.kill(storage.process.pid, signal.SIGCONT)
        await sandbox.mounts.add(mount_of(storage))
        assert (await sandbox.exec("cat /data/hello")).stdout == "hello\n"


@needs_fuse
async def test_a_dead_mount_is_an_io_error_and_can_be_replaced(storage: Storage, cove_home: Path) -> None:
    async with AsyncSandbox.create(mounts=[mount_of(storage)]) as sandbox:
        for pid in rclones(cove_home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        async def is_told() -> bool:
            return any("I/O errors" in warning for warning in (await sandbox.info()).warnings)

        async with asyncio.timeout(20):
            while not await is_told():
                await asyncio.sleep(0)
        result = await sandbox.exec("cat /data/hello", timeout=20)
        assert result.exit_code == 1
        assert "not connected" in result.stderr or "connection abort" in result.stderr
        await sandbox.mounts.remove("/data")
        await sandbox.mounts.add(mount_of(storage))
        assert (await sandbox.exec("cat /data/hello")).stdout == "hello\n"


def stands(serving: int) -> bool:
    """Whether its mount is there still; one that is shows nothing to root."""
    try:
        return Path(f"/proc/{serving}/root/mnt").exists()
    except PermissionError:
        return True


@needs_fuse
async def test_no_rclone_outlives_a_program_that_is_killed(storage: Storage, other_home: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD, storage.url],
        stdout=subprocess.PIPE,
        env={**os.environ, "COVE_HOME": str(other_home)},
    )
    assert program.stdout is not None
    assert await asyncio.to_thread(program.stdout.readline) == b"ready\n"
    _, serving = rclones(other_home)
    program.kill()
    program.wait()
    program.stdout.close()
    await eventually(lambda: rclones(other_home) == [] and not stands(serving))
    await asyncio.to_thread(lambda: Home(other_home).collect(find_hierarchies()))


async def test_files_of_a_bucket_are_used_by_the_api(storage: Storage, mode: str) -> None:
    async with AsyncSandbox.create(mounts=[mount_of(storage, "s3://bucket")]) as sandbox:
        await sandbox.files.write("/data/new", "text")
        assert await sandbox.files.read_text("/data/top") == "top\n"
        assert [each.name for each in await sandbox.files.list("/data")] == ["new", "pre", "top"]
        listed = await sandbox.files.list("/data", recursive=True)
        assert [each.path for each in listed] == ["/data/new", "/data/pre", "/data/pre/hello", "/data/top"]
        assert (await sandbox.files.stat("/data/top")).size == len("top\n")


@needs_fuse
async def test_large_files_of_a_bucket_are_used_or_the_error_says_how(storage: Storage) -> None:
    async with AsyncSandbox.create(mounts=[mount_of(storage)]) as sandbox:
        await sandbox.exec("head -c 100000 /dev/zero > /data/large")
        if os.geteuid() != 0:
            assert len(await sandbox.files.read("/data/large")) == 100_000
            return
        for call in (sandbox.files.read("/data/large"), sandbox.files.write("/data/other", b"0" * 100_000)):
            with pytest.raises(PermissionDenied, match="copy it inside"):
                await call
        assert [each.name for each in await sandbox.files.list("/data")] == ["hello", "large"]
        assert (await sandbox.exec("cp /data/large /tmp/large")).ok
        assert len(await sandbox.files.read("/tmp/large")) == 100_000


@needs_ranges
@needs_busybox
@pytest.mark.parametrize("user", ["web", "root"])
async def test_a_bucket_is_for_the_sandboxs_own_user(storage: Storage, mode: str, user: str, tmp_path: Path) -> None:
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar", settings={"Env": ["PATH=/bin"]}), name="bucket")
    async with AsyncSandbox.create(image="bucket", user=user, mounts=[mount_of(storage)]) as sandbox:
        used = await sandbox.exec(f"cat /data/hello && echo {user} > /data/{user}")
        assert (used.exit_code, used.stdout) == (0, "hello\n"), used
        assert await sandbox.files.read_text("/data/hello") == "hello\n"
        await sandbox.files.write("/data/small", "text")
        assert [each.name for each in await sandbox.files.list("/data")] == sorted(["hello", "small", user])
        assert not (await sandbox.exec("cat /data/hello", user="7:8")).ok
    assert await asyncio.to_thread(storage.ask, "GET", f"/bucket/pre/{user}") == f"{user}\n".encode()
    assert await asyncio.to_thread(storage.ask, "GET", "/bucket/pre/small") == b"text"
    await image.delete()
