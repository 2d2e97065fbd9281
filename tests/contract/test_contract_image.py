"""Images, and sandboxes on them, in this program and on a server."""

import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.busybox import busybox_items, needs_busybox, write_busybox
from support.image_files import Item, directory, make_layer, make_oci
from support.servers import Server
from support.serving import MakeSandbox, Where, address

from cove import AsyncImage, AsyncSandbox, TransferProgress
from cove.errors import FileNotFound, ImageInUse, ImageInvalid, ImageNotFound, ValidationFailed

pytestmark = [pytest.mark.anyio, needs_busybox]

SETTINGS = {"Env": ["GREETING=hello"], "User": "web", "Labels": {"team": "a"}}


@pytest.fixture
async def image(contract_servers: list[Server], tmp_path: Path) -> AsyncIterator[str]:
    """An image here and on the server."""
    path = write_busybox(tmp_path / "image.tar", settings=SETTINGS)
    places = (Where(), *map(address, contract_servers))
    images = [await AsyncImage.load(path, name="contract", **where) for where in places]
    yield "contract"
    for each in images:
        await each.delete()


async def test_a_sandbox_has_the_system_of_its_image(make_sandbox: MakeSandbox, image: str) -> None:
    async with make_sandbox(image=image) as sandbox:
        assert (await sandbox.exec("id -u; echo $GREETING; echo $HOME")).stdout == "33\nhello\n/var/web\n"
        assert (await sandbox.info()).spec.image == image
        await sandbox.set_env({"MORE": "1"})
        await sandbox.exec("touch /var/web/kept")
        await sandbox.restart()
        assert (await sandbox.exec("ls ~; echo $GREETING $MORE")).stdout == "kept\nhello 1\n"


async def test_the_user_is_chosen_when_it_is_created(make_sandbox: MakeSandbox, image: str) -> None:
    async with make_sandbox(image=image, user="root") as sandbox:
        assert (await sandbox.exec("id -u; cd; pwd")).stdout == "0\n/root\n"


async def test_an_image_that_is_not_there_is_named(make_sandbox: MakeSandbox, image: str) -> None:
    with pytest.raises(ImageNotFound, match="absent"):
        async with make_sandbox(image="absent"):
            pass


async def test_an_image_is_loaded_found_and_forgotten(where: Where, tmp_path: Path) -> None:
    told: list[TransferProgress] = []
    path = write_busybox(tmp_path / "image.tar", settings=SETTINGS)
    loaded = await AsyncImage.load(path, name="team/made:1", progress=told.append, **where)
    assert loaded.name == "team/made:1"
    assert (told[-1].layers, told[-1].total_layers) == (1, 1)
    assert told[-1].bytes > 1_000_000
    info = await (await AsyncImage.get("team/made:1", **where)).info()
    assert (info.layers, info.user, info.labels) == (1, "web", {"team": "a"})
    assert info in await AsyncImage.list(**where)
    await loaded.delete()
    for call in (loaded.info(), loaded.delete(), AsyncImage.get("team/made:1", **where)):
        with pytest.raises(ImageNotFound, match="team/made:1"):
            await call
    assert "team/made:1" not in {each.name for each in await AsyncImage.list(**where)}


async def test_a_saved_image_is_loaded_again_and_saved_as_the_same_bytes(where: Where, tmp_path: Path) -> None:
    below = make_layer([*busybox_items(), Item("var/old", b"x"), Item("opt/old", b"x"), directory("tmp", 0o1777)])
    above = make_layer(
        [Item("var/.wh.old"), Item("opt/.wh..wh..opq"), Item("opt/new", b"y"), Item("zero", bytes(1 << 20) + b"end")]
    )
    twice = make_layer([Item("twice", b"x")])
    source = make_oci([below, above, twice, twice], SETTINGS).write(tmp_path / "image.tar")
    image = await AsyncImage.load(source, name="saved", **where)
    told: list[TransferProgress] = []
    await image.save(tmp_path / "one.tar", progress=told.append)
    assert told[-1].bytes > 100_000
    await image.delete()
    again = await AsyncImage.load(tmp_path / "one.tar", **where)
    assert again.name == "saved:latest"
    await again.save(tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert len(archive.getnames()) == 9  # the layer that comes twice is there once
    async with AsyncSandbox.create(image="saved", **where) as sandbox:
        seen = await sandbox.exec("ls /var /opt; id -u; echo $GREETING; ls -ld /tmp; busybox tail -c 3 /zero")
        assert seen.stdout.startswith("/opt:\nnew\n\n/var:\nweb\n33\nhello\ndrwxrwxrwt"), seen
        assert seen.stdout.endswith("end")
    await again.delete()


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo")
async def test_other_tools_take_a_saved_image(where: Where, tmp_path: Path) -> None:
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar", settings=SETTINGS), name="other:2", **where)
    await image.save(tmp_path / "saved.tar")
    command = [
        "skopeo",
        "--insecure-policy",
        "copy",
        f"oci-archive:{tmp_path}/saved.tar",
        f"docker-archive:{tmp_path}/d.tar:x:1",
    ]
    end = subprocess.run(command, capture_output=True, check=False)
    assert end.returncode == 0, end.stderr
    back = await AsyncImage.load(tmp_path / "d.tar", name="back", **where)
    assert (await back.info()).id == (await image.info()).id or (await back.info()).layers == 1
    for each in (image, back):
        await each.delete()


async def test_a_directory_is_sent_as_a_root_file_system(where: Where, tmp_path: Path) -> None:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "note").write_text("text")
    (tmp_path / "root" / "link").symlink_to("/etc/note")
    image = await AsyncImage.load(tmp_path / "root", name="directory", **where)
    async with AsyncSandbox.create(image="directory", **where) as sandbox:
        assert await sandbox.files.read("/link") == b"text"
        with pytest.raises(ImageInUse, match="directory"):
            await image.delete()
        await image.delete(force=True)
        assert await sandbox.files.read("/etc/note") == b"text"


@pytest.mark.parametrize(
    "content", [b"", b"garbage" * 1000, bytes(10240), b"\x1f\x8b garbage", b"\x28\xb5\x2f\xfd bad"]
)
async def test_what_is_no_archive_is_named_so(where: Where, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ImageInvalid, match="is no image"):
        await AsyncImage.load(tmp_path / "file", name="x", **where)
    with pytest.raises(FileNotFound, match="missing"):
        await AsyncImage.load(tmp_path / "missing", name="x", **where)


async def test_only_images_that_nothing_stands_on_are_pruned(where: Where, tmp_path: Path) -> None:
    path = write_busybox(tmp_path / "image.tar")
    for name in ("used", "kept-by-snapshot", "unused"):
        await AsyncImage.load(path, name=name, **where)
    async with AsyncSandbox.create(image="used", **where):
        async with AsyncSandbox.create(image="kept-by-snapshot", **where) as other:
            snapshot = await other.snapshot()
        assert await AsyncImage.prune(**where) == []
        assert await AsyncImage.prune(all=True, **where) == ["unused:latest"]
    await snapshot.delete()
    assert await AsyncImage.prune(all=True, **where) == ["kept-by-snapshot:latest", "used:latest"]


async def test_a_sandbox_becomes_an_image_with_all_that_it_has_written(
    where: Where, image: str, tmp_path: Path
) -> None:
    async with AsyncSandbox.create(image=image, user="root", **where) as sandbox:
        await sandbox.exec(
            "mkdir -p /usr/d && echo system > /usr/d/f; rm -r /var/web; rm /bin/tty; mkdir /var/web; "
            "echo work > /workspace/w; mkdir /workspace/old; touch /workspace/old/x; echo home > /home/user/h; "
            "busybox ln /usr/d/f /usr/d/same; echo mine >> /etc/hosts"
        )
        snapshot = await sandbox.snapshot()
        await sandbox.exec("echo more > /usr/d/more; rm -r /workspace/old; mkdir /workspace/old; echo t > /tmp/t")
        made = await sandbox.commit("made:1")
    await snapshot.delete()
    assert (await made.info()).env == ("GREETING=hello",)
    seen = (
        "cat /usr/d/f /usr/d/more /workspace/w /home/user/h /tmp/t; ls /bin/tty /var/web /workspace/old; id -u; pwd; "
    )
    seen += "busybox stat -c %h /usr/d/same"
    expected = "system\nmore\nwork\nhome\nt\n/var/web:\n\n/workspace/old:\n0\n/workspace\n2\n"
    async with AsyncSandbox.create(image="made:1", **where) as one:
        assert (await one.exec(seen)).stdout == expected
        assert (await one.exec("cat /etc/hosts; echo $GREETING; touch -r /usr/d/f x")).stdout.count("mine") == 0
        await one.exec("rm /workspace/w; echo two > /home/user/h")
        second = await one.commit("made:2")
        await second.save(tmp_path / "made.tar")
    for each in (made, second):
        await each.delete(force=True)
    loaded = await AsyncImage.load(tmp_path / "made.tar", **where)
    async with AsyncSandbox.create(image="made:2", **where) as two:
        result = await two.exec(seen)
        assert result.stdout == expected.replace("work\nhome", "two"), result
    await loaded.delete()


async def test_an_image_is_made_of_any_sandbox_on_an_image(
    make_sandbox: MakeSandbox, image: str, contract_servers: list[Server]
) -> None:
    async with make_sandbox(image=image) as sandbox:
        assert (await sandbox.commit("team/made")).name == "team/made:latest"
        with pytest.raises(ValidationFailed, match="no image"):
            await sandbox.commit("Not A Name")
    for place in (Where(), *map(address, contract_servers)):
        for each in await AsyncImage.list(**place):
            if each.name == "team/made:latest":
                await (await AsyncImage.get(each.name, **place)).delete()


async def test_a_sandbox_on_the_hosts_system_is_no_image(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        with pytest.raises(ValidationFailed, match="host's system"):
            await sandbox.commit("made")


async def test_what_an_image_starts_runs_when_that_is_asked_for_and_at_every_start(
    make_sandbox: MakeSandbox, image: str
) -> None:
    async with make_sandbox(image=image) as sandbox:
        assert await sandbox.list_processes() == []
    async with make_sandbox(image=image, startup=["sh", "-c", "id -u; pwd; sleep 100"]) as sandbox:
        process = await sandbox.get_process("startup")
        await process.wait_for_log("33")
        assert [each.id for each in await sandbox.list_processes()] == ["startup"]
        await sandbox.restart()
        await (await sandbox.get_process("startup")).wait_for_log("33")


async def test_a_startup_that_nobody_names_is_refused(make_sandbox: MakeSandbox, image: str) -> None:
    with pytest.raises(ValidationFailed, match="image"):
        async with make_sandbox(startup=True):
            pass
    with pytest.raises(ValidationFailed, match="says nothing"):
        async with make_sandbox(image=image, startup=True):
            pass
    with pytest.raises(ValidationFailed, match="empty"):
        async with make_sandbox(startup=[]):
            pass
