"""Another user of the host, who knows every path: what a sandbox of root's does and holds stays closed to him."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from support.servers import serving

from cove import AsyncSandbox, Limits
from cove.archive.remove_tree import remove_tree
from cove.linux.pidfd import kill_processes_of

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root can be another user")
pytestmark = pytest.mark.anyio

OTHER_USER = 61_234
SECRET = "tell-nobody-4711"
# Gets paths as a list and says which of them it can see, list, read, write or enter, and what it reads of processes.
PROBE = """
import json, os, sys
paths, seen = json.load(sys.stdin), []
def attempt(what, path, act):
    try:
        act()
        seen.append([what, path])
    except OSError:
        pass
for path in paths:
    attempt("stat", path, lambda: os.lstat(path))
    attempt("list", path, lambda: os.listdir(path))
    if not os.path.exists(path) or os.path.isfile(path):
        attempt("read", path, lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))
    attempt("write", path, lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)))
lines = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("cmdline", "environ"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                lines.append(file.read().decode(errors="replace"))
        except OSError:
            pass
print(json.dumps([seen, lines]))
"""


def as_other_user(code: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python as a user who is nobody to root and to the sandbox."""
    return subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-c", code, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
    )


def probe(paths: list[Path]) -> tuple[list[list[str]], list[str]]:
    """What the other user sees of these paths, and what all processes tell him."""
    done = as_other_user(PROBE, stdin=json.dumps([str(path) for path in paths]))
    assert done.returncode == 0, done.stderr
    seen, lines = json.loads(done.stdout)
    return seen, lines


def everything_below(path: Path) -> list[Path]:
    return [Path(folder, name) for folder, *names in os.walk(path) for name in (*names[0], *names[1])]


def private_paths(home: Path) -> list[Path]:
    """All of the state but the programs that every sandbox runs, and the directories on the way."""
    shared = [home / name for name in ("agent", "attach", "executor", "etc", "python", "sandboxes")]
    below = [path for path in everything_below(home) if not any(path.is_relative_to(each) for each in shared[:4])]
    return [path for path in below if path not in shared]


# Leaves an open directory with a setuid program in every writable place, a session's command with its input, a log.
async def use(sandbox: AsyncSandbox) -> None:
    open_up = "for d in /workspace /home/user /tmp; do chmod 777 $d; cp /bin/true $d/su; chmod 6777 $d/su; done"
    (await sandbox.exec(open_up, cwd="/")).check()
    session = await sandbox.create_session(env={"TOKEN": SECRET})
    await session.exec(f"cat >/dev/null # {SECRET}", stdin=SECRET)
    process = await sandbox.start_process("cat; exec sleep 1000", stdin=True)
    await process.write_stdin(SECRET.encode())
    await sandbox.terminal(id="main")


def hidden(seen: list[list[str]], home: Path) -> list[list[str]]:
    """What he must not see: all but that names in the two directories that everybody may pass exist.

    `empty` is what masks show: all may see that nothing is in it.
    """
    return [
        [what, path]
        for what, path in seen
        if (what != "stat" or Path(path).parent not in (home, home / "sandboxes")) and Path(path) != home / "empty"
    ]


@needs_root
@pytest.mark.parametrize("limits", [Limits(), Limits(disk=32 << 20)], ids=["plain", "disk"])
async def test_another_local_user_reads_nothing_of_an_embedded_sandbox(cove_home: Path, limits: Limits) -> None:
    async with AsyncSandbox.create(limits=limits) as sandbox:
        await use(sandbox)
        (place,) = await anyio.to_thread.run_sync(lambda: list((cove_home / "sandboxes").iterdir()))
        paths = await anyio.to_thread.run_sync(private_paths, cove_home)
        seen, lines = await anyio.to_thread.run_sync(probe, paths)
        assert any(path.name == "su" for path in paths)
        assert hidden(seen, cove_home) == []
        assert not [line for line in lines if SECRET in line or place.name in line]


@needs_root
async def test_another_local_user_reads_nothing_of_a_servers_sandbox(other_home: Path) -> None:
    with serving(other_home, "--on-stop", "destroy") as server:
        sandbox = await server.create()
        await use(sandbox)
        record = await server.record(sandbox.id)
        paths = await anyio.to_thread.run_sync(private_paths, other_home)
        seen, lines = await anyio.to_thread.run_sync(probe, paths)
        await sandbox.destroy()
        assert hidden(seen, other_home) == []
        secrets = (SECRET, record.key, server.key)
        assert not [line for line in lines if any(secret in line for secret in secrets)]


@needs_root
async def test_a_setuid_program_left_in_the_workspace_is_out_of_reach(cove_home: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        await use(sandbox)
        (program,) = await anyio.to_thread.run_sync(lambda: list(cove_home.glob("sandboxes/*/workspace/su")))
        run = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
        done = await anyio.to_thread.run_sync(as_other_user, run, str(program))
        assert "PermissionError" in done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="cove-removal-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


# Swaps a directory for a link to its last argument and back, as fast as it can, until its input ends: rename(2).
SWAP = """
import ctypes, select, sys
libc = ctypes.CDLL(None)
first, second = (name.encode() for name in sys.argv[1:3])
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(1000):
        libc.renameat2(-100, first, -100, second, 2)
"""


def test_removal_follows_no_link_that_is_swapped_in_meanwhile(folder: Path) -> None:
    victim = folder / "victim"
    victim.mkdir(mode=0o755)
    for _ in range(60):
        tree, link = folder / "tree", folder / "link"
        (tree / "swapped").mkdir(parents=True)
        link.symlink_to(victim)
        with subprocess.Popen(
            [sys.executable, "-c", SWAP, str(tree / "swapped"), str(link)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as swapping:
            assert swapping.stdout is not None
            swapping.stdout.readline()
            with suppress(OSError):  # what is removed changes all the time
                remove_tree(str(tree))
            swapping.communicate()
        remove_tree(str(tree))
        if link.is_symlink():
            link.unlink()
        else:
            link.rmdir()
        assert victim.stat().st_mode & 0o777 == 0o755


def test_removal_manages_without_any_right_on_the_directories(folder: Path) -> None:
    deepest = folder / "a/b/c"
    deepest.mkdir(parents=True)
    (deepest / "file").touch()
    for path in (deepest, deepest.parent, folder / "a"):
        path.chmod(0o000)
    remove_tree(str(folder / "a"))
    assert list(folder.iterdir()) == []


@needs_root
def test_whoever_became_the_sandboxes_user_is_ended() -> None:
    intruder = subprocess.Popen(["sleep", "1000"], user=OTHER_USER, group=OTHER_USER)
    bystander = subprocess.Popen(["sleep", "1000"], user=OTHER_USER + 1, group=OTHER_USER)
    try:
        assert kill_processes_of(OTHER_USER) == 1
        assert intruder.wait(10) == -9
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
