"""Keys and tenants of a server: who reaches what, for how long, and how much of it."""

import asyncio
import dataclasses
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypedDict, TypeVar

import pytest
from support.bridge_client import BridgeClient
from support.e2b_client import E2bClient, Inside
from support.image_files import Item, directory, make_docker, make_layer
from support.servers import Server, eventually, left_behind, serving
from support.tenants import Tenant, check_all_hidden, tenant, things

from cove import (
    AsyncApiKey,
    AsyncImage,
    AsyncSandbox,
    AsyncSnapshot,
    AsyncVolume,
    Limits,
    Network,
    NetworkPolicy,
    Quota,
)
from cove.api import Process, TerminalConnection
from cove.errors import (
    ApiKeyAlreadyExists,
    ApiKeyNotFound,
    BackupNotFound,
    ConnectionLost,
    CoveError,
    ImageInvalid,
    LimitExceeded,
    PermissionDenied,
    SnapshotNotFound,
    Unauthorized,
    ValidationFailed,
    VolumeNotFound,
)
from cove.model import JournalKind, VolumeMount

pytestmark = pytest.mark.anyio

MEMORY = 64 << 20
T = TypeVar("T")


class Where(TypedDict):
    """Arguments that say which server is meant, and whose key."""

    url: str
    api_key: str


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    home = Path(tempfile.mkdtemp(prefix="cove-tenants-", dir="/tmp"))
    home.chmod(0o711)
    with serving(home) as running:
        yield running
    shutil.rmtree(home)


@pytest.fixture(autouse=True)
async def no_keys_left(server: Server) -> AsyncIterator[None]:
    yield
    for info in await AsyncApiKey.list(url=server.url, api_key=server.key):
        await AsyncApiKey.delete(info.name, url=server.url, api_key=server.key)


async def test_ids_are_a_tenants_own(server: Server) -> None:
    a, b = await tenant(server, "a"), await tenant(server, "b")
    own, other, of_server = await a.create("x"), await b.create("x"), await server.create("x")
    for sandbox, text in ((own, "a"), (other, "b"), (of_server, "server")):
        await sandbox.files.write("who", text)
    for sandbox, text, owner in ((own, "a", "a"), (other, "b", "b"), (of_server, "server", None)):
        assert await sandbox.files.read_text("who") == text
        assert (await sandbox.info()).owner == owner
    assert await a.ids() == await b.ids() == ["x"]
    assert len(await Tenant(server, server.key).ids()) == 3  # an admin lists all
    copies = await own.fork(count=1)
    assert (await copies[0].info()).owner == "a"
    assert set(await b.ids()) == {"x"}
    await own.restart()
    assert (await own.exec("cat who")).stdout == "a"
    for sandbox in (own, other, of_server, *copies):
        await sandbox.destroy()
    await eventually(lambda: left_behind(server.home) == [])


async def test_an_admin_acts_for_a_tenant_that_it_names(server: Server) -> None:
    a = await tenant(server, "a")
    sandbox = await a.create("x")
    admin = Tenant(server, server.key)
    assert (await admin.ask("GET", "/v1/sandboxes/x"))[0] == 404
    assert (await admin.ask("GET", "/v1/sandboxes/x", cove_tenant="a"))[0] == 200
    assert (await (await tenant(server, "b")).ask("GET", "/v1/sandboxes/x", cove_tenant="a"))[0] == 404
    assert (await Tenant(server, "wrong").ask("GET", "/v1/sandboxes/x", cove_tenant="a"))[0] == 401
    await sandbox.destroy()


async def test_no_operation_reaches_what_is_anothers(server: Server) -> None:
    """For each of them, a thing of somebody else's is as one that is not there."""
    a, b = await tenant(server, "a"), await tenant(server, "b")
    async with things(a) as own:
        await check_all_hidden(b, own)
        assert await a.ids() == [own["sandbox"]]
        assert (await (await a.connect(own["sandbox"])).exec("cat f")).stdout == "kept\n"
        status, listed = await b.ask("GET", "/metrics")
        assert (status, own["sandbox"] in json.dumps(listed)) == (200, False)


async def test_snapshots_and_volumes_are_a_tenants_own(server: Server) -> None:
    a, b = await tenant(server, "a"), await tenant(server, "b")
    sandbox, other = await a.create(), await b.create()
    snapshot = await sandbox.snapshot()
    assert snapshot.owner == "a"
    volumes = [await AsyncVolume.create("data", url=server.url, api_key=each.key) for each in (a, b)]
    with pytest.raises(SnapshotNotFound):
        await other.restore(snapshot.id)
    with pytest.raises(SnapshotNotFound):
        await b.create(snapshot=snapshot.id)
    assert await AsyncSnapshot.list(url=server.url, api_key=b.key) == []
    assert len(await AsyncSnapshot.list(url=server.url, api_key=server.key)) == 1
    for each in (sandbox, other):
        await each.mounts.add(VolumeMount(volume="data", target="/data"))
    await sandbox.exec("echo secret > /data/f")
    assert (await other.exec("ls /data")).stdout == ""
    with pytest.raises(VolumeNotFound):
        await (await server.create("s")).mounts.add(VolumeMount(volume="data", target="/data"))
    await (await server.connect("s")).destroy()
    for each in (sandbox, other):
        await each.destroy()
    await snapshot.delete()
    for volume in volumes:
        await volume.delete()


async def test_backups_are_a_tenants_own(server: Server) -> None:
    sandboxes = [await (await tenant(server, name)).create() for name in ("a", "b")] + [await server.create("s")]
    saved = []
    for number, sandbox in enumerate(sandboxes):
        await sandbox.files.write("secret", str(number))
        saved.append(await sandbox.backups.create("/workspace"))
    for sandbox, own in zip(sandboxes, saved, strict=True):
        assert await sandbox.backups.list() == [own]
        for other in saved:
            if other != own:
                with pytest.raises(BackupNotFound):
                    await sandbox.backups.restore(other.id, "/workspace/stolen")
                with pytest.raises(BackupNotFound):
                    await sandbox.backups.delete(other.id)
    for sandbox, own in zip(sandboxes, saved, strict=True):
        await sandbox.backups.restore(own.id, "/workspace/mine")
        assert sorted(each.path for each in await sandbox.files.list("/workspace")) == [
            "/workspace/mine",
            "/workspace/secret",
        ]
        await sandbox.backups.delete(own.id)
        await sandbox.destroy()


async def test_a_digest_gives_nobody_the_layers_of_another(server: Server, tmp_path: Path) -> None:
    """Digests are no secrets: they are in logs and configurations. Who has only them has not the content."""
    a, b = await tenant(server, "a"), await tenant(server, "b")
    sandbox = await a.create()
    await sandbox.exec("echo secret > f")
    snapshot = await sandbox.snapshot()
    await snapshot.export(tmp_path / "whole.tar")
    with tarfile.open(tmp_path / "whole.tar") as whole, tarfile.open(tmp_path / "index.tar", "w") as index:
        member = whole.getmembers()[0]
        index.addfile(member, whole.extractfile(member))
    where: Where = {"url": server.url, "api_key": b.key}
    hollow = (tmp_path / "index.tar").read_bytes()
    status, refused = await b.ask("POST", "/v1/snapshots", hollow)
    assert (status, "not all that its index names" in str(refused)) == (400, True)
    assert await AsyncSnapshot.list(**where) == []
    await AsyncSnapshot.load(tmp_path / "whole.tar", **where)
    status, again = await b.ask("POST", "/v1/snapshots", hollow)  # by now it has shown what is in them
    assert status == 201
    other = await b.create(snapshot=str(again["id"]))
    assert await other.files.read_text("f") == "secret\n"
    for each in (sandbox, other):
        await each.destroy()
    await snapshot.delete()
    for info in await AsyncSnapshot.list(**where):
        await (await AsyncSnapshot.get(info.id, **where)).delete()


async def test_a_configuration_gives_nobody_the_image_of_another(server: Server, tmp_path: Path) -> None:
    a, b = await tenant(server, "a"), await tenant(server, "b")
    layer = make_layer([directory("etc"), Item("etc/secret", b"of a")])
    whole = make_docker([layer])
    hollow = make_docker([layer]), make_docker([layer], {"Env": ["OTHER=1"]})
    for each in hollow:
        del each.files["0/layer.tar"]
    own = await AsyncImage.load(whole.write(tmp_path / "whole.tar"), name="a", url=server.url, api_key=a.key)
    where: Where = {"url": server.url, "api_key": b.key}
    for number, stolen in enumerate(hollow):
        with pytest.raises(ImageInvalid, match="lacks"):
            await AsyncImage.load(stolen.write(tmp_path / f"{number}.tar"), name="b", **where)
    assert await AsyncImage.list(**where) == []
    made = [await AsyncImage.load(tmp_path / name, name=name, **where) for name in ("whole.tar", "0.tar", "1.tar")]
    for image in (own, *made):
        await image.delete()


async def test_quotas_of_disk_and_snapshots_hold_for_what_is_made_at_once(server: Server) -> None:
    a = await tenant(server, "a", quota=Quota(max_disk=5 * MEMORY, max_snapshots=2))
    sandboxes = await attempts(a.create(limits=Limits(disk=MEMORY)) for _ in range(10))
    assert len(sandboxes) == 5
    snapshots = await attempts(sandbox.snapshot() for sandbox in sandboxes)
    assert len(snapshots) == 2
    for sandbox in sandboxes[1:]:
        await sandbox.destroy()
    where: Where = {"url": server.url, "api_key": a.key}
    volumes = await attempts(AsyncVolume.create(f"v{n}", size=MEMORY, **where) for n in range(8))
    assert len(volumes) == 4
    await sandboxes[0].destroy()
    for snapshot in snapshots:
        await snapshot.delete()
    for volume in volumes:
        await volume.delete()


async def attempts(calls: Iterable[Awaitable[T]]) -> list[T]:
    """What calls made at once have given, but for those that a quota refuses."""
    given = await asyncio.gather(*calls, return_exceptions=True)
    for each in given:
        assert isinstance(each, LimitExceeded) or not isinstance(each, BaseException), each
    return [each for each in given if not isinstance(each, BaseException)]


async def test_only_admins_make_keys(server: Server) -> None:
    a, admin = await tenant(server, "a"), await tenant(server, "boss", is_admin=True)
    with pytest.raises(PermissionDenied):
        await AsyncApiKey.create("more", url=server.url, api_key=a.key)
    for key in (server.key, admin.key):
        names = [info.name for info in await AsyncApiKey.list(url=server.url, api_key=key)]
        assert names == ["a", "boss"]
    with pytest.raises(ApiKeyAlreadyExists):
        await AsyncApiKey.create("a", url=server.url, api_key=admin.key)
    with pytest.raises(ApiKeyNotFound):
        await AsyncApiKey.delete("c", url=server.url, api_key=admin.key)
    for wrong in ({"name": "../x"}, {"name": "c", "expires_at": datetime(2100, 1, 1)}):  # it has no zone
        with pytest.raises(ValidationFailed):
            await AsyncApiKey.create(url=server.url, api_key=admin.key, **wrong)
    text = "".join(path.read_text() for path in (server.home / "keys").iterdir())
    assert a.key not in text
    assert a.key[-43:] not in text  # its secret part, which may have a "_" in it
    assert all(path.stat().st_mode & 0o077 == 0 for path in (server.home / "keys").iterdir())


async def test_a_revoked_key_stops_at_once_also_in_open_streams(server: Server) -> None:
    a, b = await tenant(server, "a"), await tenant(server, "b")
    sandbox, other = await a.create("x"), await b.create("x")
    process = await sandbox.start_process("sleep 300")
    others = await other.start_process("sleep 300")
    streams = [asyncio.ensure_future(read_all(each)) for each in (process, others)]
    terminal = await sandbox.terminal()
    async with terminal.connect() as viewer:
        await viewer.write(b"echo hello\n")
        await AsyncApiKey.delete("a", url=server.url, api_key=server.key)
        with pytest.raises(CoveError):
            await asyncio.wait_for(watch(viewer), 20)
    with pytest.raises(Unauthorized):
        await sandbox.exec("true")
    with pytest.raises((Unauthorized, ConnectionLost)):
        await asyncio.wait_for(streams[0], 20)
    assert not streams[1].done()
    assert (await other.exec("echo on")).stdout == "on\n"
    await others.kill()
    await streams[1]
    await other.destroy()
    for record in await asyncio.to_thread(server.directory.list):
        await server.starter.of(record.tenant).destroy(record.id)


async def read_all(process: Process) -> None:
    async for _ in process.logs(follow=True):
        pass


async def watch(viewer: TerminalConnection) -> None:
    async for _ in viewer:
        pass


async def test_the_journal_names_the_key_and_believes_no_client(server: Server) -> None:
    a = await tenant(server, "a", tenant="team")
    sandbox = await a.create("x")
    body = b'{"command":"true"}'
    assert (await a.ask("POST", "/v1/sandboxes/x/exec", body, cove_key="somebody-else"))[0] == 200
    admin = Tenant(server, server.key)
    forged = {"cove_tenant": "team", "cove_key": "somebody-else"}
    assert (await admin.ask("POST", "/v1/sandboxes/x/exec", body, **forged))[0] == 200
    events = [event async for event in sandbox.journal()]
    assert {event.key for event in events if event.kind is JournalKind.CREATED} == {"a"}
    assert [event.key for event in events if event.kind is JournalKind.EXEC] == ["a", "server key"]
    await sandbox.destroy()


async def test_keys_expire_and_are_replaced(server: Server) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    a = await tenant(server, "a", expires_at=soon)
    await asyncio.sleep((soon - datetime.now(UTC)).total_seconds() + 0.05)
    with pytest.raises(Unauthorized):
        await a.ids()
    b = await tenant(server, "b")
    assert await b.ids() == []
    new = await AsyncApiKey.rotate("b", url=server.url, api_key=server.key)
    with pytest.raises(Unauthorized):
        await b.ids()
    assert await Tenant(server, new.key).ids() == []
    assert (await AsyncApiKey.get("b", url=server.url, api_key=server.key)).last_used_at is not None


async def test_a_quota_of_sandboxes_is_kept_exactly(server: Server) -> None:
    a = await tenant(server, "a", quota=Quota(max_sandboxes=10))
    made = await asyncio.gather(*(a.create(f"s{n}") for n in range(100)), return_exceptions=True)
    sandboxes = [each for each in made if isinstance(each, AsyncSandbox)]
    refused = [each for each in made if isinstance(each, BaseException)]
    assert len(sandboxes) == 10
    assert all(isinstance(each, LimitExceeded) and "max_sandboxes" in str(each) for each in refused)
    await sandboxes[0].stop()
    another = await a.create("another")
    with pytest.raises(LimitExceeded):
        await sandboxes[0].start()
    await another.destroy()
    await sandboxes[0].start()
    for each in sandboxes:
        await each.destroy()


async def test_quotas_of_memory_disk_and_snapshots(server: Server) -> None:
    quota = Quota(max_memory=3 * MEMORY, max_disk=4 * MEMORY, max_snapshots=1)
    a = await tenant(server, "a", quota=quota)
    limits = Limits(memory=MEMORY, disk=MEMORY)
    sandboxes = [await a.create(limits=limits) for _ in range(3)]
    with pytest.raises(LimitExceeded, match="max_memory"):
        await a.create(limits=limits)
    await sandboxes[2].destroy()
    with pytest.raises(LimitExceeded, match="max_disk"):
        await AsyncVolume.create("v", size=3 * MEMORY, url=server.url, api_key=a.key)
    snapshot = await sandboxes[0].snapshot()
    with pytest.raises(LimitExceeded, match="max_snapshots"):
        await sandboxes[1].snapshot()
    await snapshot.delete()
    await (await sandboxes[1].snapshot()).delete()
    for each in sandboxes[:2]:
        await each.destroy()


async def test_a_key_bounds_what_sandboxes_reach(server: Server) -> None:
    a = await tenant(server, "a", quota=Quota(network=NetworkPolicy(allow=["*.allowed.example"])))
    with pytest.raises(PermissionDenied):
        await a.create(network=Network.INTERNET)
    with pytest.raises(PermissionDenied, match=r"other\.example"):
        await a.create(network=NetworkPolicy(allow=["other.example"]))
    sandbox = await a.create(network=NetworkPolicy(allow=["api.allowed.example"]))
    with pytest.raises(PermissionDenied):
        await sandbox.set_network(NetworkPolicy(allow=["other.example"]))
    await sandbox.destroy()


async def test_a_rate_holds_over_all_workers(server: Server) -> None:
    a = await tenant(server, "a", quota=Quota(rate=5))
    answers = [await a.ask("GET", "/v1/sandboxes/x") for _ in range(12)]
    statuses = [status for status, _ in answers]
    assert statuses.count(429) >= 5
    assert statuses.count(404) >= 5
    refused = next(body for status, body in answers if status == 429)
    assert refused["code"] == "LIMIT_EXCEEDED"


async def test_a_rate_holds_for_tokens_of_its_tenants_sandboxes(server: Server) -> None:
    a = await tenant(server, "a", tenant="with-tokens")
    sandbox = await a.create("x")
    token = Tenant(server, await sandbox.token(["get_sandbox"]))
    await tenant(server, "fast", tenant="with-tokens", quota=Quota(rate=1000))
    await tenant(server, "slow", tenant="with-tokens", quota=Quota(rate=1))
    await tenant(server, "other", quota=Quota(rate=0.1))
    wrong = [await Tenant(server, f"{token.key[:-4]}AAAA").ask("GET", "/v1/sandboxes/x") for _ in range(5)]
    assert [status for status, _ in wrong] == [401] * 5
    answers = [await token.ask("GET", "/v1/sandboxes/x") for _ in range(5)]
    assert answers[0][0] == 200
    refused = next(body for status, body in answers if status == 429)
    assert (refused["code"], refused["details"]["limit"]) == ("LIMIT_EXCEEDED", "rate")  # type: ignore[index]  # JSON
    await AsyncApiKey.delete("slow", url=server.url, api_key=server.key)
    assert [(await token.ask("GET", "/v1/sandboxes/x"))[0] for _ in range(5)] == [200] * 5
    await sandbox.destroy()


async def test_a_rate_holds_for_e2bs_tokens(server: Server) -> None:
    a = await tenant(server, "a", tenant="with-e2bs-tokens")
    client = E2bClient(as_tenant(server, a.key))
    made = await asyncio.to_thread(client.call, "POST", "/v2/sandboxes", {})
    await tenant(server, "slow", tenant="with-e2bs-tokens", quota=Quota(rate=1))
    await asyncio.to_thread(exceed_rate, Inside(client, made.json))
    await (await a.connect(made.json["sandboxID"])).destroy()


def exceed_rate(sandbox: Inside) -> None:
    assert [sandbox.send("GET", "/envs", token="wrong").status for _ in range(5)] == [401] * 5
    assert [sandbox.send("GET", "/health", token="").status for _ in range(5)] == [204] * 5
    replies = [sandbox.send("GET", "/envs") for _ in range(5)]
    assert replies[0].status == 200
    refused = next(each for each in replies if each.status == 429)
    assert refused.refusal == (429, "this key may make 1 requests a second: try again later")
    assert refused.headers["retry-after"] == "1"


async def test_keys_of_this_machine_need_no_server(other_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVE_HOME", str(other_home))
    made = await AsyncApiKey.create("a", quota=Quota(max_sandboxes=1))
    assert [info.name for info in await AsyncApiKey.list()] == ["a"]
    assert (await AsyncApiKey.rotate("a")).key != made.key
    await AsyncApiKey.delete("a")
    assert os.listdir(other_home / "keys") == []


def as_tenant(server: Server, key: str) -> Server:
    """The server, for clients that show another key."""
    return dataclasses.replace(server, key=key)


async def test_e2bs_clients_have_what_is_their_tenants(server: Server) -> None:
    a, b = await tenant(server, "a"), await tenant(server, "b")
    await asyncio.to_thread(use_e2b, E2bClient(as_tenant(server, a.key)), E2bClient(as_tenant(server, b.key)))
    assert await a.ids() == []


def use_e2b(a: E2bClient, b: E2bClient) -> None:
    with a.sandbox(metadata={"of": "a"}) as sandbox:
        assert sandbox.run("echo inside") == (b"inside\n", {"exited": True, "exitCode": 0, "status": "exit status 0"})
        assert [each["sandboxID"] for each in a.call("GET", "/v2/sandboxes").json] == [sandbox.id]
        assert b.call("GET", "/v2/sandboxes").json == []
        for method, path in (
            ("GET", f"/sandboxes/{sandbox.id}"),
            ("DELETE", f"/sandboxes/{sandbox.id}"),
            ("POST", f"/sandboxes/{sandbox.id}/pause"),
            ("POST", f"/sandboxes/{sandbox.id}/timeout"),
        ):
            assert b.call(method, path, None if method != "POST" else {"timeout": 1}).status == 404
        assert a.call("GET", f"/sandboxes/{sandbox.id}").status == 200


async def test_one_idempotency_key_makes_each_tenant_a_sandbox_with_an_id_of_its_own(server: Server) -> None:
    a, b = await tenant(server, "a"), await tenant(server, "b")
    clients = [E2bClient(as_tenant(server, key)) for key in (a.key, b.key, server.key)]
    assert len(await asyncio.to_thread(create_once, clients)) == len(clients)


def create_once(clients: list[E2bClient]) -> set[str]:
    """The ids that the same key gives to them."""
    made = [[each.call("POST", "/v2/sandboxes", {}, Idempotency_Key="1").json for _ in range(2)] for each in clients]
    for client, (first, second) in zip(clients, made, strict=True):
        assert first == second
        assert client.call("DELETE", f"/sandboxes/{first['sandboxID']}").status == 204
    return {first["sandboxID"] for first, _ in made}


async def test_the_bridge_makes_what_is_a_tenants(server: Server) -> None:
    a, b = await tenant(server, "a"), await tenant(server, "b")
    await asyncio.to_thread(use_bridge, as_tenant(server, a.key), as_tenant(server, b.key))


def use_bridge(a: Server, b: Server) -> None:
    own, other = BridgeClient(a, "bridged"), BridgeClient(b, "bridged")
    assert own.shell("echo a > /tmp/who; cat /tmp/who").stdout == b"a\n"
    assert other.send("GET", f"{other.root}/running").json == {"running": False}
    assert other.shell("cat /tmp/who").exit_code == 1
    assert own.shell("cat /tmp/who").stdout == b"a\n"
    for path in ("/v1/pool/stats", "/v1/pool/prime", "/v1/pool/shutdown-prewarmed"):
        assert own.send("GET" if path.endswith("stats") else "POST", path).status == 403
    own.delete()
    other.delete()
