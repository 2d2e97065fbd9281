"""Exports of snapshots, here and on a server: what is loaded elsewhere is what was exported."""

import json
import os
from pathlib import Path

import pytest
from support.serving import Where

from cove import AsyncSandbox, AsyncSnapshot, Snapshot
from cove.blocking.portal import get_portal
from cove.errors import FileNotFound, SnapshotNotFound, ValidationFailed
from cove.model import TransferProgress

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def portal() -> None:
    """The loop of this program lives as long as the program."""
    get_portal()


SCRIPT = """
    mkdir -p d/e; echo one > d/e/f; ln -s /etc/hostname link; head -c 300000 /dev/urandom > random; chmod 600 random
    truncate -s 1G sparse; ln random hard; echo hidden > ~/.profile-of-mine; printf x > $'odd\\xff'
"""
LOOK = (
    "cd ~; find . /workspace -printf '%p %y %m %s %n %l\\n' | LC_ALL=C sort; md5sum /workspace/random .profile-of-mine"
)


async def look(sandbox: AsyncSandbox) -> str:
    return (await sandbox.exec(LOOK)).check().stdout


@pytest.mark.parametrize("kind", ["file", "directory"])
async def test_a_snapshot_is_exported_deleted_and_loaded(where: Where, tmp_path: Path, kind: str) -> None:
    target = str(tmp_path / "out") + ("/" if kind == "directory" else ".tar")
    told: list[TransferProgress] = []
    async with AsyncSandbox.create(**where) as sandbox:
        (await sandbox.exec(SCRIPT)).check()
        first = await sandbox.snapshot(name="first", labels={"a": "b"})
        (await sandbox.exec("rm -r d; echo two > new; rm link; mkdir link; echo in > link/f")).check()
        before = await look(sandbox)
        second = await sandbox.snapshot()
    info = await second.export(target, progress=told.append)
    assert (info.digest, info.layers) == (await second.digest(), info.sent_layers)
    assert info.sent_bytes < 2_000_000
    assert told
    if kind == "directory":
        base = await first.export(target)
        assert (base.sent_layers, base.digest) == (0, await first.digest())
        assert base.digest != info.digest
    await first.delete()
    await second.delete()
    with pytest.raises(SnapshotNotFound):
        await second.digest()
    loaded = await AsyncSnapshot.load(info.location, progress=told.append, **where)
    assert loaded.id != second.id
    assert await loaded.digest() == info.digest
    async with AsyncSandbox.create(snapshot=loaded.id, **where) as copy:
        assert await look(copy) == before
        (await copy.exec("echo more >> new; rm hard")).check()
        changed = [(each.path, each.kind.value) for each in await copy.changes()]
        assert changed == [("/workspace/hard", "deleted"), ("/workspace/new", "modified")]
    again = await AsyncSnapshot.load(info.location, **where)
    assert await again.digest() == info.digest
    for each in (loaded, again):
        await each.delete()


async def test_an_export_that_was_tampered_with_is_refused(where: Where, tmp_path: Path) -> None:
    before = await AsyncSnapshot.list(**where)
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.files.write("a", os.urandom(100_000))
        snapshot = await sandbox.snapshot()
    info = await snapshot.export(str(tmp_path / "out") + "/")
    await snapshot.delete()
    (layer, *_) = sorted((tmp_path / "out" / "layers").iterdir(), key=lambda path: -path.stat().st_size)
    whole = layer.read_bytes()
    layer.write_bytes(whole[:50_000] + b"evil" + whole[50_004:])
    with pytest.raises(ValidationFailed):
        await AsyncSnapshot.load(info.location, **where)
    layer.write_bytes(whole)
    index = Path(info.location)
    facts = json.loads(index.read_text())
    index.write_text(json.dumps({**facts, "layers": [{**facts["layers"][0], "size": 5}]}))
    with pytest.raises(ValidationFailed):
        await AsyncSnapshot.load(info.location, **where)
    with pytest.raises(FileNotFound):
        await AsyncSnapshot.load(str(tmp_path / "missing"), **where)
    with pytest.raises(ValidationFailed):
        await AsyncSnapshot.load("http://127.0.0.1/x", **where)
    assert await AsyncSnapshot.list(**where) == before


async def test_what_is_read_as_bytes_is_what_export_writes(where: Where, tmp_path: Path) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        await sandbox.files.write("a", "a")
        snapshot = await sandbox.snapshot()
    data = b"".join([chunk async for chunk in snapshot.read_archive()])
    await snapshot.export(tmp_path / "one.tar")
    assert (tmp_path / "one.tar").stat().st_size == len(data)
    await snapshot.delete()
    (tmp_path / "two.tar").write_bytes(data)
    loaded = await AsyncSnapshot.load(tmp_path / "two.tar", **where)
    await loaded.delete()


def test_the_blocking_form_does_the_same(tmp_path: Path) -> None:
    from cove import Sandbox

    with Sandbox.create() as sandbox:
        sandbox.files.write("a", "a")
        snapshot = sandbox.snapshot()
    info = snapshot.export(str(tmp_path / "out.tar"))
    snapshot.delete()
    loaded = Snapshot.load(info.location)
    assert loaded.digest() == info.digest
    loaded.delete()


async def test_layers_that_are_equal_are_loaded_as_one(where: Where, tmp_path: Path) -> None:
    async with AsyncSandbox.create(**where) as sandbox:
        made = [await sandbox.snapshot()]
        for text in ("a", "b", "a"):
            await sandbox.exec(f"echo {text} > f; touch -d @0 f .")
            made.append(await sandbox.snapshot())
        made.append(await sandbox.snapshot())
        info = await made[-1].export(str(tmp_path / "out.tar"))
    for snapshot in made:
        await snapshot.delete()
    loaded = await AsyncSnapshot.load(info.location, **where)
    async with AsyncSandbox.create(snapshot=loaded, **where) as sandbox:
        assert (await sandbox.exec("cat f")).stdout == "a\n"
        again = await sandbox.snapshot()
        assert [each.path for each in await sandbox.changes(since=loaded)] == []
    await again.delete()
    await loaded.delete()
