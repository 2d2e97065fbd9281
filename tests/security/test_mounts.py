"""Mounts under attack: links that are planted, swapped in a loop, or left for the next start."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.servers import eventually, serving

from cove import AsyncSandbox, Mount
from cove.archive.remove_tree import remove_tree
from cove.errors import CoveError, FileNotFound, PermissionDenied, ValidationFailed
from cove.model import SandboxSpec, SandboxStatus
from cove.runtime.mounts import resolve_mounts

pytestmark = pytest.mark.anyio

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what root alone can change")
SECRET = "nobody inside may see this"
# Puts a link in the place of a directory and the directory back, without end; says so once it has begun.
SWAP = """
import os, sys
path, elsewhere = sys.argv[1:]
print(flush=True)
while True:
    os.rename(path, path + ".aside")
    os.symlink(elsewhere, path)
    os.unlink(path)
    os.rename(path + ".aside", path)
"""


@pytest.fixture
def ground() -> Iterator[Path]:
    """A directory that every sandbox can write: `shared/inner` is for all, `private` for none."""
    path = Path(tempfile.mkdtemp(prefix="cove-ground-", dir="/var/tmp"))
    for each in (path, path / "shared", path / "shared" / "inner", path / "private", path / "out"):
        each.mkdir(exist_ok=True)
        each.chmod(0o777)
    (path / "shared" / "inner" / "file").write_text("for all")
    (path / "private" / "file").write_text(SECRET)
    yield path
    remove_tree(str(path))


def mount(source: Path, target: str = "/data", *, read_only: bool = True) -> Mount:
    return Mount(source=str(source), target=target, read_only=read_only)


@contextmanager
def swapping(path: Path, elsewhere: Path | str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", SWAP, path, elsewhere], stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        try:
            yield
        finally:
            swapper.kill()


async def shown(sandbox: AsyncSandbox, path: str = "/data/file") -> str:
    return (await sandbox.exec(["cat", path])).stdout


async def seen_in_many(source: Path) -> set[str]:
    """What sandboxes see of a source that changes while they are made; some are refused."""
    seen: set[str] = set()
    for _ in range(40):
        with suppress(CoveError):
            async with AsyncSandbox.create(mounts=[mount(source)]) as sandbox:
                seen.add(await shown(sandbox))
    return seen


async def test_a_source_that_is_swapped_for_a_link_in_a_loop_never_shows_where_that_leads(ground: Path) -> None:
    source = ground / "shared" / "inner"
    with swapping(source, ground / "private"):
        assert await seen_in_many(source) <= {"for all"}


async def test_a_source_below_a_directory_that_is_swapped_in_a_loop_never_shows_where_that_leads(ground: Path) -> None:
    source = ground / "shared" / "inner"
    (ground / "private" / "inner").mkdir()
    (ground / "private" / "inner" / "file").write_text(SECRET)
    (ground / "private" / "inner").chmod(0o755)
    with swapping(ground / "shared", ground / "private"):
        assert await seen_in_many(source) <= {"for all"}


async def test_a_link_that_one_sandbox_plants_is_not_followed_by_the_mount_of_another(ground: Path) -> None:
    async with AsyncSandbox.create(mounts=[mount(ground / "shared", read_only=False)]) as sandbox:
        (
            await sandbox.exec(f"rm -rf /data/inner/file; mv /data/inner /data/x; ln -s {ground}/private /data/inner")
        ).check()
    with pytest.raises(PermissionDenied, match="symbolic link"):
        await AsyncSandbox.create(mounts=[mount(ground / "shared" / "inner")])


async def test_a_source_that_became_a_link_is_not_followed_by_a_restart(ground: Path) -> None:
    source = ground / "shared" / "inner"
    async with AsyncSandbox.create(mounts=[mount(source)]) as sandbox:
        assert await shown(sandbox) == "for all"
        source.rename(source.with_name("aside"))
        source.symlink_to(ground / "private")
        with pytest.raises(PermissionDenied, match="symbolic link"):
            await sandbox.restart()
        source.unlink()
        source.with_name("aside").rename(source)
        await sandbox.restart()
        assert await shown(sandbox) == "for all"


@pytest.mark.parametrize("way", ["/oldroot{out}", "{out}", "../../../oldroot{out}", "/newroot/run/cove"])
async def test_a_link_planted_in_a_target_leads_no_mount_elsewhere(ground: Path, way: str) -> None:
    source = ground / "shared"
    (source / "init.pyc").write_bytes(b"not the agent")
    mounts = [mount(source, "/workspace/in/agent", read_only=False)]
    async with AsyncSandbox.create(mounts=mounts) as sandbox:
        assert await shown(sandbox, "in/agent/inner/file") == "for all"
        link = way.format(out=ground / "out")
        (await sandbox.exec(f"mv in aside; ln -s {link} in")).check()
        with pytest.raises(PermissionDenied, match="symbolic link"):
            await sandbox.restart()
    assert list((ground / "out").iterdir()) == []


async def test_a_parent_that_was_moved_away_is_made_again_by_a_restart(ground: Path) -> None:
    async with AsyncSandbox.create(mounts=[mount(ground / "shared", "/workspace/a/b")]) as sandbox:
        (await sandbox.exec("mv a c")).check()
        await sandbox.restart()
        assert await shown(sandbox, "a/b/inner/file") == "for all"
        assert (await sandbox.exec("ls -A c/b")).stdout == ""


async def test_a_target_in_another_mount_that_is_swapped_in_a_loop_leads_nowhere_else(ground: Path) -> None:
    (ground / "shared" / "inner" / "file").unlink()
    mounts = [mount(ground / "shared", read_only=False), mount(ground / "private", "/data/inner/point")]
    seen = set[str]()
    with swapping(ground / "shared" / "inner", f"/oldroot{ground}/out"):
        for _ in range(40):
            try:
                async with AsyncSandbox.create(mounts=mounts) as sandbox:
                    seen.add((await sandbox.exec("grep -c /data /proc/self/mountinfo")).stdout)
            except CoveError:
                continue
    assert list((ground / "out").iterdir()) == []
    assert seen <= {"2\n"}


@pytest.mark.parametrize("place", ["/workspace", "/home/user", "/tmp", "/data"])
async def test_mounts_below_writable_places_and_other_mounts_work(ground: Path, place: str) -> None:
    mounts = [
        mount(ground / "shared" / "inner" / "file", f"{place}/new/file"),
        mount(ground / "private", f"{place}/deep/er", read_only=False),
        mount(ground / "out", "/data", read_only=False),
    ]
    async with AsyncSandbox.create(mounts=mounts) as sandbox:
        assert await shown(sandbox, f"{place}/new/file") == "for all"
        assert (await sandbox.exec(f"touch {place}/deep/er/made && ! touch {place}/new/file")).exit_code == 0
        assert (await sandbox.exec("ls -A /run/cove/mounts")).stdout == ""
    assert (ground / "private" / "made").exists()


async def test_a_mount_at_the_workspace_replaces_it(ground: Path) -> None:
    async with AsyncSandbox.create(mounts=[mount(ground / "shared" / "inner", "/workspace")]) as sandbox:
        assert await shown(sandbox, "file") == "for all"


@pytest.mark.parametrize("source", ["/", "/proc", "/proc/1", "/sys", "/dev", "/dev/null", "/run", "//proc", "/./sys/"])
def test_a_source_that_shows_the_hosts_system_is_refused(source: str, cove_home: Path) -> None:
    with pytest.raises(PermissionDenied, match="refused"):
        resolve_mounts(SandboxSpec(mounts=(Mount(source=source, target="/data"),)), str(cove_home))


def test_our_own_state_is_refused_by_whatever_name(ground: Path) -> None:
    state = ground / "out" / "state"
    (state / "sandboxes").mkdir(parents=True)
    (ground / "link").symlink_to(state)
    for source in (state, state / "sandboxes", ground / "out", ground):
        for name in (state, ground / "link"):
            with pytest.raises(PermissionDenied, match="Cove's own state"):
                resolve_mounts(SandboxSpec(mounts=(mount(source),)), str(name))


@ROOT_ONLY
async def test_a_link_that_root_alone_can_have_placed_is_followed_once(ground: Path) -> None:
    ground.chmod(0o755)
    (ground / "link").symlink_to("shared/../shared/inner")
    async with AsyncSandbox.create(mounts=[mount(ground / "link")]) as sandbox:
        assert await shown(sandbox) == "for all"
        (found,) = (await sandbox.info()).spec.mounts
        assert isinstance(found, Mount)
        assert found.source == str(ground / "shared" / "inner")


def test_a_source_that_vanishes_during_the_check_is_an_error_of_ours(ground: Path, cove_home: Path) -> None:
    spec = SandboxSpec(mounts=(mount(ground / "shared" / "inner"),))
    with swapping(ground / "shared" / "inner", ground / "missing"):
        for _ in range(300):
            try:
                resolve_mounts(spec, str(cove_home))
            except (FileNotFound, PermissionDenied):
                continue


async def test_a_nul_in_a_mount_is_refused_before_anything_runs(ground: Path) -> None:
    with pytest.raises(ValidationFailed, match="NUL"):
        await AsyncSandbox.create(mounts=[mount(ground / "shared", "/data\0--bind\0/\0/host")])


async def test_a_server_mounts_what_is_allowed_and_no_link_below_it(ground: Path, other_home: Path) -> None:
    configuration = other_home.with_name(f"{other_home.name}.toml")
    configuration.write_text(f'allow_mounts = ["{ground}/shared"]\n')
    (ground / "shared" / "link").symlink_to("inner")
    try:
        with serving(other_home, "--on-stop", "destroy", "--config", str(configuration)) as server:
            inner = ground / "shared" / "inner"
            sandbox = await server.create(mounts=[mount(inner, "/workspace/x")])
            assert await shown(sandbox, "/workspace/x/file") == "for all"
            inner.rename(inner.with_name("aside"))
            inner.symlink_to(ground / "private")
            with pytest.raises(CoveError):  # the runtime may be gone before its answer is read
                await sandbox.restart()
            record = await server.record(sandbox.id)
            await eventually(lambda: server.directory.status(record) is SandboxStatus.LOST)
            with pytest.raises(CoveError, match="symbolic link"):
                await sandbox.restart()
            await sandbox.destroy()
            for source in (ground / "private", ground / "shared" / "link", inner):
                with pytest.raises(PermissionDenied):
                    await server.create(mounts=[mount(source)])
    finally:
        configuration.unlink()
