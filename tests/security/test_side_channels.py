"""What sandboxes on one image learn of each other by the files that they share."""

import ast
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.image_files import Item

from cove import AsyncImage, AsyncSandbox

pytestmark = [pytest.mark.anyio, needs_busybox]

WATCH = """
import ctypes, os, select, struct
library = ctypes.CDLL(None, use_errno=True)
events = library.inotify_init1(os.O_CLOEXEC)
EVERYTHING = 0xFFF
watched = [library.inotify_add_watch(events, path, EVERYTHING) for path in (b"/etc", b"/bin")]
assert min(watched) > 0
"""
# The events of a queue are in order: what happened before the last file was opened has been told before it.
READ = """
names = set()
while "last" not in names and select.select([events], [], [], 60)[0]:
    data = os.read(events, 65536)
    while data:
        size = struct.unpack_from("iIII", data)[3]
        names.add(data[16 : 16 + size].rstrip(b"\\0").decode())
        data = data[16 + size :]
sorted(names - {""})
"""


@pytest.fixture
async def image(tmp_path: Path) -> AsyncIterator[str]:
    path = write_busybox(tmp_path / "image.tar", *(Item(f"etc/{name}", b"x") for name in ("first", "last", "other")))
    image = await AsyncImage.load(path, name="watched")
    yield image.name
    await image.delete()


async def test_inotify_on_an_image_shows_what_the_sandbox_itself_opens_and_nothing_of_others(image: str) -> None:
    async with AsyncSandbox.create(image=image) as sandbox, AsyncSandbox.create(image=image) as neighbour:
        context = await sandbox.create_code_context()
        assert (await context.run(WATCH)).error is None
        assert (await sandbox.exec(["cat", "/etc/first"])).stdout == "x"
        assert (await neighbour.exec(["cat", "/etc/other"])).stdout == "x"
        assert (await neighbour.exec(["sh", "-c", "echo y > /etc/other; rm /etc/first; touch /bin/new"])).ok
        assert (await sandbox.exec(["cat", "/etc/last"])).stdout == "x"
        seen = (await context.run(READ)).text
        assert seen is not None
        assert {"first", "last"} <= set(ast.literal_eval(seen))
        assert "other" not in seen
        assert "new" not in seen
