"""Attempts on the file API by planted links (symlink attacks): most escapes from sandboxes have been of this kind."""

from pathlib import Path

from cove import AsyncSandbox
from cove.local.threads import in_thread
from cove.verify.inside.harness import Blocked
from cove.verify.outside import Facts, outside_probe

AREA = "file API"


def _check(content: bytes, facts: Facts) -> str:
    if facts["secret"].encode() not in content:
        raise Blocked("it is another file")
    return "the canary was read"


@outside_probe(AREA, "a path of the host is read")
async def read_a_path_of_the_host(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return _check(await sandbox.files.read(facts["canary"]), facts)


@outside_probe(AREA, "a planted link leads a read to the host")
async def read_through_a_link(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await sandbox.exec(["ln", "-s", facts["canary"], "link"])
    return _check(await sandbox.files.read("link"), facts)


@outside_probe(AREA, "a path that climbs leads a read to the host")
async def read_by_climbing(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return _check(await sandbox.files.read("../" * 40 + facts["canary"].lstrip("/")), facts)


@outside_probe(AREA, "a link in the middle of a path leads a read to the host")
async def read_through_a_linked_directory(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await sandbox.exec(["ln", "-s", facts["folder"], "folder"])
    return _check(await sandbox.files.read("folder/canary"), facts)


@outside_probe(AREA, "a magic link of /proc leads a read to the host")
async def read_through_a_magic_link(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    return _check(await sandbox.files.read("/proc/self/root" + facts["canary"]), facts)


@outside_probe(AREA, "a planted link leads a write to the host")
async def write_through_a_link(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    target = Path(facts["folder"], "written")
    await sandbox.exec(["ln", "-s", facts["folder"], "folder"])
    await sandbox.files.write("folder/written", b"x")
    if not await in_thread(target.exists):
        raise Blocked("nothing was written outside")
    await in_thread(target.unlink)
    return "a file was written outside"


@outside_probe(AREA, "a planted link leads a listing to the host")
async def list_through_a_link(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await sandbox.exec(["ln", "-s", facts["folder"], "folder"])
    names = [entry.path for entry in await sandbox.files.list("folder")]
    if not any("canary" in name for name in names):
        raise Blocked("it is another directory")
    return "the canary is listed"


@outside_probe(AREA, "a planted link leads a copy to the host")
async def copy_through_a_link(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await sandbox.exec(["ln", "-s", facts["canary"], "link"])
    await sandbox.files.copy("link", "copied")
    return _check(await sandbox.files.read("copied"), facts)
