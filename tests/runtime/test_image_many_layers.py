"""Images with more layers than a sandbox can stand on, and sandboxes that have made many: both work, merged."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.busybox import busybox_items, needs_busybox
from support.image_files import Item, directory, make_layer, make_oci

from cove import AsyncImage, AsyncSandbox
from cove.images.shortening import MOST_IMAGE_LAYERS

pytestmark = [pytest.mark.anyio, needs_busybox]

COUNT = 128


def layer(number: int) -> bytes:
    """Each adds a file, changes one, and takes one of those before away; one hides a whole directory."""
    items = [Item(f"srv/f{number}", b"%d" % number, uid=number), Item("srv/last", b"%d" % number)]
    items += [Item(f"srv/.wh.f{number - 10}")] if number > 60 else []
    items += [Item("opt/.wh..wh..opq"), Item("opt/new", b"n")] if number == 100 else []
    return make_layer(items)


@pytest.fixture
async def many(tmp_path: Path) -> AsyncIterator[AsyncImage]:
    first = make_layer([*busybox_items(), directory("srv"), Item("opt/old", b"o"), Item("workspace/w", b"w")])
    layers = [first, *(layer(number) for number in range(1, COUNT))]
    image = await AsyncImage.load(make_oci(layers).write(tmp_path / "image.tar"), name="many")
    yield image
    await image.delete()


async def test_an_image_with_all_layers_that_there_may_be_shows_what_it_has(
    many: AsyncImage, tmp_path: Path, cove_home: Path
) -> None:
    assert (await many.info()).layers == MOST_IMAGE_LAYERS
    here = set(os.listdir(cove_home / "layers"))
    expected = sorted([f"f{number}" for number in (*range(1, 51), *range(118, COUNT))] + ["last"])
    look = "cat /srv/last; echo; ls /srv; ls /opt; cat /workspace/w"
    async with AsyncSandbox.create(image="many", user="root") as sandbox:
        seen = (await sandbox.exec(look)).stdout.split()
        assert seen == [str(COUNT - 1), *expected, "new", "w"]
        owner = (await sandbox.exec("busybox stat -c %u /srv/f20")).stdout.strip()
        assert owner == ("20" if (await sandbox.info()).users == "real" else owner)
    again = await AsyncImage.load(tmp_path / "image.tar", name="again")
    assert here >= set(os.listdir(cove_home / "layers")), "what is here is not unpacked again"
    await again.save(tmp_path / "saved.tar")
    await again.delete()
    saved = await AsyncImage.load(tmp_path / "saved.tar", name="saved")
    async with AsyncSandbox.create(image="saved", user="root") as sandbox:
        assert (await sandbox.exec(look)).stdout.split() == seen
    await saved.delete()


async def test_a_sandbox_on_such_an_image_makes_snapshots_and_is_one_layer_of_an_image(many: AsyncImage) -> None:
    async with AsyncSandbox.create(image="many", user="root") as sandbox:
        snapshots = []
        for number in range(4):
            await sandbox.exec(f"echo {number} > /srv/new{number}; rm /srv/f{number + 1}; echo {number} > /srv/last")
            snapshots.append(await sandbox.snapshot())
        await sandbox.exec("rm -r /opt; mkdir /opt; echo w > /workspace/mine; rm /workspace/w")
        made = await sandbox.commit("committed")
    for snapshot in snapshots:
        await snapshot.delete()
    async with AsyncSandbox.create(image="committed", user="root") as sandbox:
        seen = (await sandbox.exec("cat /srv/last; ls /srv; ls -A /opt; ls /workspace")).stdout.split()
        assert seen[0] == "3"
        assert [each for each in ("f1", "f4", "f5", "new0", "new3", "new", "w") if each in seen] == [
            "f5",
            "new0",
            "new3",
        ]
        assert seen[-1] == "mine"
    assert (await made.info()).layers == MOST_IMAGE_LAYERS
    await made.delete()


async def test_a_build_with_many_steps_is_an_image_like_any_other(many: AsyncImage, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    steps = [f"COPY file /made/{number}" for number in range(40)]
    (context / "file").write_text("x")
    (context / "Dockerfile").write_text("\n".join(("FROM many", *steps, "RUN rm /made/0; echo run > /made/run")))
    built = await AsyncImage.build(str(context), name="built")
    assert (await built.info()).layers == MOST_IMAGE_LAYERS
    async with AsyncSandbox.create(image="built", user="root") as sandbox:
        assert (await sandbox.exec("ls /made | busybox wc -l; cat /srv/last")).stdout.split() == ["40", str(COUNT - 1)]
    await built.delete()
    await AsyncImage.prune()
