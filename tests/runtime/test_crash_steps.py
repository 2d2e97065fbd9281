"""A program that is killed at any step of a sandbox's life leaves nothing that the next one does not remove."""

import os
from pathlib import Path

import pytest
from support.crash import run_to_its_death
from support.leaks import control_groups, processes_below
from support.programs import mounts_below, places, run_program, wait_until_gone

PROGRAM = """
import asyncio, sys
from support.crash import arm_step
from cove import AsyncSandbox, Limits, NetworkPolicy

async def main():
    arm_step({step!r}, {moment!r})
    sandbox = await AsyncSandbox.create(limits=Limits(memory=256 << 20, disk=32 << 20))
    await sandbox.exec("setsid sleep 1000 & echo x > f")
    session = await sandbox.create_session()
    await session.exec("sleep 1000 & cd /tmp")
    process = await sandbox.start_process("sleep 1000")
    await process.kill()
    await session.delete()
    await sandbox.set_network(NetworkPolicy(allow=["a.example"]))
    await sandbox.exec("getent hosts a.example")
    await sandbox.destroy()

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(main())
print("not reached", flush=True)
"""
NEXT = """
import asyncio
from cove import AsyncSandbox

async def main():
    async with AsyncSandbox.create() as sandbox:
        print((await sandbox.exec("echo ok")).stdout)

asyncio.run(main())
"""
STEPS = [
    "cove.runtime.home Home.open",
    "cove.runtime.home Home.allocate",
    "cove.runtime.home make_locked",
    "cove.runtime.user_ids UserIds.allocate",
    "cove.runtime.home Home._furnish",
    "cove.runtime.sandbox_jail attach_disk",
    "cove.runtime.disk make_image",
    "cove.runtime.disk mount_image",
    "cove.runtime.disk _move_in",
    "cove.runtime.sandbox_jail make_groups",
    "cove.linux.cgroup Group.create",
    "cove.runtime.isolation.bubblewrap Bubblewrap.command",
    "cove.runtime.jail_start _popen",
    "cove.runtime.cgroups SandboxGroups.enter",
    "cove.runtime.jail_start _await_hello",
    "cove.runtime.sandbox_lifecycle SandboxLifecycle.open",
    "cove.runtime.launcher _join",
    "cove.runtime.launcher Launcher.spawn",
    "cove.runtime.supervised Supervised._on_exit",
    "cove.runtime.sessions open_channel",
    "cove.runtime.launcher LauncherPool.end",
    "cove.runtime.egress_process _popen",
    "cove.runtime.egress_process EgressProcess.configure",
    "cove.runtime.egress_process EgressProcess.close",
    "cove.runtime.jail Jail.close",
    "cove.runtime.cgroups SandboxGroups.remove",
    "cove.runtime.home Home.release",
    "cove.runtime.home detach_disk",
    "cove.runtime.home remove_tree",
]
ROOT_ONLY = {"UserIds.allocate", "make_image", "mount_image", "_move_in"}
GROUPS_ONLY = {"_join", "Group.create", "SandboxGroups.enter"}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_what_is_killed_at_a_step_is_removed_by_the_next_program(step: str, moment: str, other_home: Path) -> None:
    name = step.split()[1]
    if os.geteuid() != 0 and name in ROOT_ONLY | GROUPS_ONLY:
        pytest.skip("needs root: only root does this step")
    before = set(processes_below(os.getpid()))
    run_to_its_death(PROGRAM.format(step=step, moment=moment), other_home)
    left = places(other_home) if (other_home / "sandboxes").exists() else []
    assert run_program(NEXT, other_home) == "ok"
    # What it has started belongs to this process since it died: prctl(2), PR_SET_CHILD_SUBREAPER.
    assert wait_until_gone([pid for pid in processes_below(os.getpid()) if pid not in before]) == []
    assert places(other_home) == []
    assert list((other_home / "users").iterdir()) == []
    assert mounts_below(other_home) == []
    assert not [group for group in control_groups() if os.path.basename(group) in left]
