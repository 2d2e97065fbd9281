"""JavaScript contexts in sandboxes on images: the image's Node.js where it is new enough, the host's otherwise."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.image_files import Item

from cove import AsyncImage, AsyncSandbox
from cove.core.jail import HOST_DIRECTORY
from cove.errors import FileNotFound, InterpreterNotReady
from cove.linux.dynamic_loader import find_loader, loader_words
from cove.runtime.interpreters import NodeProgram, find_node
from cove.runtime.isolation import bubblewrap

pytestmark = [
    pytest.mark.anyio,
    needs_busybox,
    pytest.mark.skipif(find_node() is None, reason="there is no Node.js below /usr"),
]


@pytest.fixture
async def busybox(tmp_path: Path) -> AsyncIterator[str]:
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar"), name="busybox-node")
    yield image.name
    await image.delete()


async def test_javascript_contexts_bring_their_own_node_where_the_image_has_none(busybox: str) -> None:
    async with AsyncSandbox.create(image=busybox) as sandbox:
        result = await sandbox.run_code("const n: number = 6; n * 7", language="typescript")
        assert (result.error, result.text) == (None, "42")
        context = await sandbox.create_code_context("javascript", cwd="/etc")
        await context.run("const fs = require('fs'); const found = [process.cwd(), fs.existsSync('/usr/lib')]")
        assert (await context.run("found.join(' ')")).text == "'/etc false'"
        who = "require('child_process').execFileSync('id', ['-u'], {encoding: 'utf8'}).trim()"
        assert (await context.run(who)).text == "'0'"
        assert [info.interpreter for info in await sandbox.list_code_contexts()] == ["cove"]
        with pytest.raises(FileNotFound):
            await sandbox.create_code_context("javascript", cwd="/nowhere")


# A node of an image that starts everywhere: the host's, by its loader.
NODE = " ".join(loader_words(find_loader("/usr/bin/python3"), find_node() or "", HOST_DIRECTORY))
OLD = b"Object.defineProperty(process, 'versions', { value: { node: '18.19.0' } });"


@pytest.mark.parametrize(
    ("options", "interpreter"),
    [pytest.param("", "image", id="new"), pytest.param("-r /etc/old.cjs", "cove", id="old")],
)
async def test_the_node_of_an_image_is_used_where_it_is_new_enough(
    tmp_path: Path, options: str, interpreter: str
) -> None:
    script = Item("usr/bin/node", f'#!/bin/sh\nexec {NODE} {options} "$@"\n'.encode(), mode=0o755)
    path = write_busybox(tmp_path / "image.tar", script, Item("etc/old.cjs", OLD))
    image = await AsyncImage.load(path, name="with-node")
    async with AsyncSandbox.create(image="with-node") as sandbox:
        first, second = [await sandbox.create_code_context("javascript") for _ in range(2)]
        assert ((await first.run("6 * 7")).text, (await second.run("'é'")).text) == ("42", "'é'")
        assert {info.interpreter for info in await sandbox.list_code_contexts()} == {interpreter}
    await image.delete()


@pytest.fixture
def node_root(tmp_path: Path) -> Path:
    """A root that has Node.js, its libraries and a shell."""
    program = os.path.realpath(find_node() or "")
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for source in (program, "/bin/busybox", *{word for word in listed.split() if word.startswith("/")}):
        target = tmp_path / "root" / ("usr/local/bin/node" if source == program else source.lstrip("/"))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755)
    (tmp_path / "root/bin/sh").symlink_to("busybox")
    return tmp_path / "root"


async def test_a_real_node_of_an_image_runs_javascript_by_the_libraries_of_the_image(node_root: Path) -> None:
    image = await AsyncImage.load(node_root, name="real-node")
    async with AsyncSandbox.create(image="real-node") as sandbox:
        context = await sandbox.create_code_context("typescript")
        assert (await context.run("const where: string = process.execPath; where")).text == "'/usr/local/bin/node'"
        assert [info.interpreter for info in await sandbox.list_code_contexts()] == ["image"]
        version = (await sandbox.exec(["node", "--version"])).stdout.strip()
        assert (await context.run("process.version")).text == f"'{version}'"
    await image.delete()


async def test_what_is_missing_for_javascript_is_named(busybox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "_nodes", lambda machine, system: ())
    async with AsyncSandbox.create(image=busybox) as sandbox:
        with pytest.raises(InterpreterNotReady, match=r"Node.js 20 or newer below /usr.*or in the image"):
            await sandbox.create_code_context("javascript")
    old = NodeProgram(("/bin/false",))
    monkeypatch.setattr(bubblewrap, "_nodes", lambda machine, system: (old,))
    async with AsyncSandbox.create(image=busybox) as sandbox:
        with pytest.raises(FileNotFound, match="/bin/false"):
            await sandbox.create_code_context("javascript")
    monkeypatch.setattr(bubblewrap, "_nodes", lambda machine, system: (old, NodeProgram(("/bin/cat",))))
    async with AsyncSandbox.create(image=busybox) as sandbox:
        with pytest.raises(InterpreterNotReady, match=r"needs Node.js 20 or newer, in the image or below /usr"):
            await sandbox.create_code_context("javascript")
