"""Buckets of a server: what its configuration allows, its secrets, and the bridge's routes."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.bridge_client import BridgeClient, fresh_sandbox
from support.servers import Server, serving
from support.serving import address
from support.storage import Storage, storage_server

from cove import AsyncSandbox, BucketMount, Secret
from cove.errors import PermissionDenied

pytest.importorskip("moto")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed"),
]


@dataclass(frozen=True)
class Stage:
    storage: Storage
    server: Server
    closed: str  # an endpoint that is allowed by name, but whose address is private


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    home = Path(tempfile.mkdtemp(prefix="cove-buckets-", dir="/tmp"))
    home.chmod(0o711)
    with storage_server() as storage:
        storage.ask("PUT", "/bucket")
        storage.ask("PUT", "/bucket/pre/hello", b"hello\n")
        keys = home.with_suffix(".keys")
        keys.write_text(storage.credentials)
        port = urlsplit(storage.url).port
        configuration = home.with_suffix(".toml")
        configuration.write_text(
            f'allow_buckets = ["127.0.0.1:{port}", "localhost:{port}"]\n'
            f'[network]\nprivate = ["127.0.0.1:{port}"]\n'
            f'[network.secrets.KEYS]\nfile = "{keys}"\nhosts = ["127.0.0.1"]\n'
            f'[network.secrets.OTHER]\nfile = "{keys}"\nhosts = ["elsewhere.example"]\n'
            f'[bridge_buckets.DATA]\nurl = "s3://bucket"\nendpoint = "{storage.url}"\n'
            'credentials = { name = "KEYS" }\n'
        )
        try:
            with serving(home, "--on-stop", "destroy", "--config", str(configuration)) as server:
                yield Stage(storage, server, f"http://localhost:{port}")
        finally:
            for path in (keys, configuration):
                path.unlink()
            shutil.rmtree(home)


@pytest.fixture
def bridge(stage: Stage) -> Iterator[BridgeClient]:
    with fresh_sandbox(stage.server) as client:
        yield client


def mount_of(stage: Stage, endpoint: str | None = None, secret: str = "KEYS") -> BucketMount:
    return BucketMount(
        url="s3://bucket/pre", endpoint=endpoint or stage.storage.url, target="/data", credentials=Secret(secret)
    )


async def test_a_bucket_of_a_server_comes_back_when_it_is_restarted(stage: Stage) -> None:
    async with AsyncSandbox.create(**address(stage.server)) as sandbox:
        await sandbox.mounts.add(mount_of(stage))
        assert (await sandbox.exec("cat /data/hello")).stdout == "hello\n"
        await sandbox.restart()
        assert (await sandbox.exec("cat /data/hello && echo x > /data/x")).stdout == "hello\n"
        await sandbox.mounts.remove("/data")
        assert await asyncio.to_thread(stage.storage.ask, "GET", "/bucket/pre/x") == b"x\n"
        record = stage.server.directory.place((await stage.server.record(sandbox.id)).key) / "sandbox.json"
        assert stage.storage.secret not in record.read_text()


async def test_what_the_configuration_does_not_name_is_refused(stage: Stage) -> None:
    async with AsyncSandbox.create(**address(stage.server)) as sandbox:
        for mount, reason in (
            (mount_of(stage, "http://s3.example"), "does not allow buckets"),
            (mount_of(stage, secret="PATH"), "defines no secret"),
            (mount_of(stage, secret="OTHER"), "may not be sent to"),
        ):
            with pytest.raises(PermissionDenied, match=reason):
                await sandbox.mounts.add(mount)
            with pytest.raises(PermissionDenied, match=reason):
                await AsyncSandbox.create(mounts=[mount], **address(stage.server))
        closed = BucketMount(url="s3://bucket", endpoint=stage.closed, target="/data")
        with pytest.raises(PermissionDenied, match="private address"):
            await sandbox.mounts.add(closed)
        assert await sandbox.mounts.list() == []


def test_the_bridge_mounts_and_unmounts_with_its_own_credentials(stage: Stage, bridge: BridgeClient) -> None:
    credentials = {"accessKeyId": stage.storage.access, "secretAccessKey": stage.storage.secret}
    options = {"endpoint": stage.storage.url, "prefix": "/pre/", "credentials": credentials, "provider": "r2"}
    body = {"bucket": "bucket", "mountPath": "/mnt/data", "options": options}
    assert bridge.call("POST", "mount", body).json == {"ok": True}
    assert bridge.exec("cat", "/mnt/data/hello").stdout == b"hello\n"
    assert bridge.call("POST", "mount", body).refusal[:2] == (502, "mount_error")
    assert bridge.call("POST", "unmount", {"mountPath": "/mnt/data"}).json == {"ok": True}
    assert bridge.exec("test", "-e", "/mnt/data").exit_code == 1
    assert bridge.call("POST", "unmount", {"mountPath": "/mnt/data"}).refusal[:2] == (502, "unmount_error")


def test_the_bridge_mounts_what_the_server_has_a_name_for(stage: Stage, bridge: BridgeClient) -> None:
    body = {"binding": "DATA", "mountPath": "/workspace/data", "options": {"prefix": "/", "readOnly": True}}
    assert bridge.call("POST", "mount", body).json == {"ok": True}
    assert bridge.exec("cat", "/workspace/data/pre/hello").stdout == b"hello\n"
    assert bridge.exec("touch", "/workspace/data/new").exit_code != 0
    assert bridge.call("POST", "mount", {**body, "binding": "NONE"}).refusal[:2] == (502, "mount_error")
