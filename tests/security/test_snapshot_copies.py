"""Snapshots that have to be copied: of a sandbox that goes on meanwhile, or has something mounted over its files."""

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from cove import AsyncSandbox, Mount
from cove.errors import PermissionDenied, SandboxUnavailable
from cove.runtime import layers

pytestmark = pytest.mark.anyio

# Holds a file open for writing, so that the files are copied, and swaps directories for links to a place of the host.
SWAP = """
import ctypes, os, sys
held = open("/workspace/held", "w")
names = [(b"/workspace/a%d" % at, b"/workspace/b%d" % at) for at in range(200)]
for name, other in names:
    os.mkdir(name)
    os.symlink(sys.argv[1], other)
print("ready", flush=True)
exchange = ctypes.CDLL(None).renameat2
while True:
    for name, other in names:
        exchange(-100, name, -100, other, 2)
"""
COPIES = 10


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that sandboxes' users can reach."""
    with tempfile.TemporaryDirectory(prefix="cove-shared-", dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


async def test_a_directory_that_is_swapped_for_a_link_brings_nothing_of_the_host(
    tmp_path: Path, cove_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGCONT, which a timer inside can send, undoes what SIGSTOP does: so nothing is frozen here at all."""
    (tmp_path / "of-the-host").touch()
    monkeypatch.setattr(layers, "frozen", lambda *_: nullcontext())
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/workspace/swap.py", SWAP)
        process = await sandbox.start_process(["python3", "/workspace/swap.py", str(tmp_path)])
        await process.wait_for_log("ready")
        for _ in range(COPIES):
            with suppress(SandboxUnavailable):
                snapshot = await sandbox.snapshot()
                assert list((cove_home / "layers").rglob("a0"))
                assert not list((cove_home / "layers").rglob("of-the-host"))
                await snapshot.delete()


async def test_what_was_mounted_over_when_a_snapshot_was_made_is_not_written_afterwards(shared: Path) -> None:
    async with AsyncSandbox.create(mounts=[Mount(source=str(shared), target="/workspace")]) as sandbox:
        snapshot = await sandbox.snapshot()
        await sandbox.mounts.remove("/workspace")
        await sandbox.exec("touch /workspace/later")
        async with AsyncSandbox.create(snapshot=snapshot) as other:
            assert (await other.exec("ls /workspace")).stdout == ""
        assert (await sandbox.exec("ls /workspace")).stdout == "later\n"
        await snapshot.delete()


async def test_nothing_is_mounted_over_a_directory_of_a_running_sandbox(shared: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        for target in ("/home", "/home/user", "/workspace", "/tmp"):
            with pytest.raises(PermissionDenied):
                await sandbox.mounts.add(Mount(source=str(shared), target=target))
