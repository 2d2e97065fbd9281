"""Control groups: where ours go, which controllers they get, and how all in one are ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cove.linux.cgroup import Group, find_hierarchies, own_group

FORKER = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
print("forked", flush=True)
time.sleep(1000)
"""


def test_all_in_a_group_are_ended_where_the_kernel_cannot_do_it_at_once() -> None:
    tree = find_hierarchies().unified
    if tree is None:
        pytest.skip("no control group of version 2 can be made here")
    group = Group(os.path.join(tree, f"test-{os.getpid()}"))
    group.create()
    with subprocess.Popen([sys.executable, "-c", "input(); " + f"exec({FORKER!r})"], stdin=-1, stdout=-1) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        group.add(program.pid)
        program.stdin.write(b"\n")
        program.stdin.flush()
        assert program.stdout.readline() == b"forked\n"
        assert len(group.pids()) == 21
        group.kill_each()
        assert program.wait(60) == -signal.SIGKILL
    group.wait_empty(60)
    assert group.pids() == []
    assert group.remove()


def test_a_group_that_is_gone_cannot_be_killed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Group(str(tmp_path / "gone")).kill()


def make_tree(path: Path, memberships: str) -> tuple[str, str]:
    """A hierarchy with the groups of a user, and what a process says of its own."""
    for name in ("user", "user/cove", "user/cove/workers"):
        (path / name).mkdir()
        (path / name / "cgroup.procs").touch()
    said = path / "memberships"
    said.write_text(memberships)
    return str(path), str(said)


@pytest.mark.skipif(os.geteuid() == 0, reason="root's groups are at the top")
@pytest.mark.parametrize(
    ("own", "found"),
    [("/user", "/user"), ("/user/cove/workers", "/user"), ("/other/cove/x", "/other/cove/x"), ("/", "")],
)
def test_a_program_that_is_in_a_group_of_ours_makes_no_others_below_it(tmp_path: Path, own: str, found: str) -> None:
    point, memberships = make_tree(tmp_path, f"1:memory:/elsewhere\n0::{own}\n")
    assert own_group(point, "cove", memberships=memberships) == point + found


def test_what_the_group_above_has_is_switched_on_for_ours(tmp_path: Path) -> None:
    """As the kernel shows them, in plain files: this holds which are written, `make kernels` that the kernel minds."""
    point = tmp_path / "tree"
    for path in (point, point / "cove"):
        path.mkdir()
        (path / "cgroup.procs").touch()
        (path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (path / "cgroup.subtree_control").write_text("io memory\n" if path == point else "\n")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup2 {point} cgroup2 rw 0 0\n")
    if os.geteuid() != 0:
        pytest.skip("a plain user's groups are below its own")
    found = find_hierarchies(mounts=str(mounts))
    assert found.controllers == {"memory", "pids", "cpu"}
    assert (point / "cgroup.subtree_control").read_text().startswith("+pids +cpu")
    assert (point / "cove" / "cgroup.subtree_control").read_text().startswith("+memory +pids +cpu")
