"""Attempts by images, exports and secrets: archives that lead out, the image of a neighbour, a value of the host's."""

import hashlib
import io
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import zstandard

from cove import AsyncImage, AsyncSandbox, AsyncSnapshot, NetworkPolicy, NetworkRule, Secret
from cove.core.snapshot_index import VERSION, IndexedLayer, SnapshotIndex, encode_index, layer_file
from cove.errors import CoveError
from cove.layers.places import archive_of
from cove.local.threads import in_thread
from cove.verify.inside.harness import Blocked
from cove.verify.outside import Facts, NothingToSee, outside_probe
from cove.verify.system import system_of_the_host

AREA = "images"
_PLANTED = "planted"

# Every file and variable that code inside can read; the last argument is where a copy was put for it to find.
_SEARCH = r"""
import os, sys
secret = sys.argv[1][::-1].encode()
names = [f"/proc/{pid}/{name}" for pid in os.listdir("/proc") if pid.isdigit() for name in ("environ", "cmdline")]
for top in ("/etc", "/run", "/tmp", "/workspace", "/home", "/dev/shm"):
    names += [os.path.join(folder, name) for folder, _, found in os.walk(top) for name in found]
for name in names:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        continue
    try:
        if secret in os.read(descriptor, 1 << 20):
            print(name)
    except OSError:
        pass
    finally:
        os.close(descriptor)
"""


def _make_archive(path: Path, way: str, outside: Path) -> None:
    """Write an archive with a link that leads out, and a file behind it."""
    with tarfile.open(path, "w") as archive:
        top = tarfile.TarInfo(way.partition("/")[0])
        top.type, top.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(top)
        link = tarfile.TarInfo(way)
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        archive.addfile(link)
        file = tarfile.TarInfo(f"{way}/{_PLANTED}")
        file.size = len(_PLANTED)
        archive.addfile(file, io.BytesIO(_PLANTED.encode()))


def _prepare(facts: Facts, name: str, way: str) -> tuple[Path, Path]:
    """Make an archive by which tar(1) itself, which trusts it, would write elsewhere; return it and that place."""
    folder = Path(facts["folder"], name)
    archive, outside = folder / "archive.tar", folder / "outside"
    for each in (folder, outside, folder / "trusting"):
        each.mkdir()
    _make_archive(archive, way, outside)
    with tarfile.open(archive) as trusted:
        for member in trusted.getmembers():
            trusted.extract(member, folder / "trusting", filter="fully_trusted")
    if not (outside / _PLANTED).exists():
        raise NothingToSee("the archive leads nowhere")
    (outside / _PLANTED).unlink()
    return archive, outside


def _write_export(path: Path, layer: bytes) -> None:
    """Write an export whose only layer is that archive."""
    digest = "sha256:" + hashlib.sha256(layer).hexdigest()
    index = SnapshotIndex(
        version=VERSION, created_at=datetime.now(UTC), layers=(IndexedLayer(digest=digest, size=len(layer)),)
    )
    packed = path.with_name("layer.tar.zst")
    packed.write_bytes(zstandard.compress(layer))
    with path.open("wb") as file:
        file.writelines(archive_of(encode_index(index), [(layer_file(digest), packed)]))


async def _has_led_out(outside: Path) -> bool:
    return bool(await in_thread(os.listdir, outside))


@outside_probe(AREA, "an image writes to the host when it is loaded", is_own_control=True)
async def write_out_by_an_image(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    archive, outside = await in_thread(_prepare, facts, "image", "etc/way")
    refusal = "the link was followed within the image"
    try:
        image = await AsyncImage.load(str(archive), name=facts["secret"])
    except CoveError as error:
        refusal = str(error)
    else:
        await image.delete()
    if await _has_led_out(outside):
        return "a file was written on the host"
    raise Blocked(refusal)


@outside_probe(AREA, "an export of a snapshot writes to the host when it is loaded", is_own_control=True)
async def write_out_by_an_export(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    archive, outside = await in_thread(_prepare, facts, "export", "workspace/way")
    export = archive.with_name("export.tar")
    await in_thread(_write_export, export, await in_thread(archive.read_bytes))
    try:
        await (await AsyncSnapshot.load(str(export))).delete()
        refusal = "it was loaded without"
    except CoveError as error:
        refusal = str(error)
    if await _has_led_out(outside):
        return "a file was written on the host"
    raise Blocked(refusal)


@outside_probe(AREA, "root of one sandbox changes the image of another", is_own_control=True)
async def write_to_the_image_of_a_neighbour(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    async with (
        system_of_the_host() as image,
        AsyncSandbox.create(image=image, user="root") as writer,
        AsyncSandbox.create(image=image, user="root") as reader,
    ):
        await writer.exec(f"echo {_PLANTED} > /etc/{_PLANTED}; echo {_PLANTED} >> /etc/passwd")
        if _PLANTED not in (await writer.exec(f"cat /etc/{_PLANTED} /etc/passwd")).stdout:
            raise NothingToSee("nothing could be written at all")
        seen = [(await reader.exec(f"cat /etc/{_PLANTED} /etc/passwd")).stdout]
        async with AsyncSandbox.create(image=image, user="root") as later:
            seen.append((await later.exec(f"cat /etc/{_PLANTED} /etc/passwd")).stdout)
    if any(_PLANTED in each for each in seen):
        return "it was changed"
    raise Blocked("each has its own")


@outside_probe("network policy", "a secret of the policy can be found inside", is_own_control=True)
async def find_a_secret_of_the_policy(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    name, value = "COVE_VERIFY_SECRET", f"{facts['secret']}-of-a-policy"
    os.environ[name] = value
    try:
        rule = NetworkRule("cove-verify.invalid", inject={"Authorization": Secret(name, format="Bearer {}")})
        async with AsyncSandbox.create(network=NetworkPolicy(allow=[rule])) as holder:
            found = await _find(holder, value)
            await holder.files.write("/workspace/copy", value.encode())
            if not await _find(holder, value):
                raise NothingToSee("even a copy is not found")
    finally:
        del os.environ[name]
    if found:
        return f"it is in {found}"
    raise Blocked("only the egress process has it")


async def _find(sandbox: AsyncSandbox, value: str) -> list[str]:
    """Search for a value that is told backwards, so that the search does not find itself."""
    command = ["/usr/bin/python3", "-I", "-c", _SEARCH, value[::-1]]
    return (await sandbox.exec(command, timeout=60)).stdout.split()
