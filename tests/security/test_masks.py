"""What /proc, /sys, /dev and the mounts tell inside: nothing about the host that daily tools do without."""

import os
import re
from pathlib import Path

import pytest

from cove import AsyncSandbox
from cove.attach.performer import Performer
from cove.core.jail import MASKED_PROC_DIRECTORIES, MASKED_PROC_FILES
from cove.errors import SandboxUnavailable

pytestmark = pytest.mark.anyio


async def test_what_proc_tells_about_the_host_is_masked() -> None:
    read = (
        'for f in "$@"; do if [ -e /proc/$f ]; then printf "%s %s\\n" $f $(cat /proc/$f 2>/dev/null | wc -c); fi; done'
    )
    async with AsyncSandbox.create() as sandbox:
        files = await sandbox.exec(["bash", "-c", read, "bash", *MASKED_PROC_FILES])
        listed = await sandbox.exec(
            ["bash", "-c", 'cd /proc; ls -A "$@" 2>/dev/null', "bash", *MASKED_PROC_DIRECTORIES]
        )
    sizes = dict(line.split() for line in files.stdout.splitlines())
    assert sizes
    assert set(sizes.values()) == {"0"}
    assert [line for line in listed.stdout.splitlines() if line and not line.endswith(":")] == []


async def test_the_masks_hide_something_that_is_there_outside() -> None:
    shown = [name for name in MASKED_PROC_FILES if _has_content(f"/proc/{name}")]
    assert {"cmdline", "interrupts", "sys/kernel/random/boot_id", "cgroups", "misc", "devices"} <= set(shown)
    assert {"ioports", "softirqs", "sys/fs/file-nr", "sys/fs/inode-nr", "sys/kernel/pty/nr"} <= set(shown)


def _has_content(path: str) -> bool:
    """Without waiting for a log that has no more lines."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return bool(os.read(descriptor, 16))
    except OSError:
        return False
    finally:
        os.close(descriptor)


async def test_a_mask_cannot_be_taken_away() -> None:
    async with AsyncSandbox.create() as sandbox:
        for command in (
            "umount /proc/cmdline",
            "rm -f /proc/cmdline",
            "mount --move /proc/cmdline /tmp",
            "touch /proc/fs/x",
        ):
            assert (await sandbox.exec(command)).exit_code != 0
        assert (await sandbox.exec("cat /proc/cmdline")).stdout == ""


async def test_every_mask_is_a_read_only_mount() -> None:
    async with AsyncSandbox.create() as sandbox:
        lines = [line.split() for line in (await sandbox.exec("cat /proc/self/mountinfo")).stdout.splitlines()]
    options = {fields[4]: fields[5].split(",") for fields in lines}
    names = [name for name in (*MASKED_PROC_FILES, *MASKED_PROC_DIRECTORIES) if Path("/proc", name).exists()]
    assert names
    for name in names:
        assert {"ro", "nosuid", "nodev"} <= set(options[f"/proc/{name}"])


async def test_a_sandbox_whose_masks_cannot_be_made_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if os.geteuid() != 0:
        pytest.skip("only root's masks are copied")
    monkeypatch.setattr(Performer, "bind", refuse)
    with pytest.raises(SandboxUnavailable):
        await AsyncSandbox.create()


async def test_what_daily_tools_need_of_proc_is_there() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(
            "cd /proc; cat meminfo cpuinfo stat loadavg uptime version filesystems mounts > /dev/null"
        )
        assert result.exit_code == 0, result.stderr
        assert (
            await sandbox.exec("ps aux > /dev/null && free > /dev/null && uptime > /dev/null && nproc")
        ).exit_code == 0


async def test_there_is_no_sysfs_and_no_host_group_is_named() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.exec("ls /sys")).exit_code == 2
        groups = (await sandbox.exec("cat /proc/self/cgroup /proc/1/cgroup")).stdout
        key = sandbox._place.key  # type: ignore[attr-defined]
    own = {
        line.partition("::")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")
    }
    for line in groups.splitlines():
        path = line.split(":", 2)[2]
        assert re.fullmatch(rf"/((\.\./)*cove/{key}(/\d+)?)?", path) or path in own, line


async def test_mounts_name_only_the_system_and_our_own_places(cove_home: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        lines = (await sandbox.exec("cat /proc/self/mountinfo")).stdout.splitlines()
        key = sandbox._place.key  # type: ignore[attr-defined]
    bound = [
        (line.split()[3], line.split()[4])
        for line in lines
        if line.split(" - ")[1].split()[0] not in ("tmpfs", "proc", "devpts")
    ]
    state = cove_home.relative_to(_mount_point(cove_home))
    python = Path(os.environ["COVE_PYTHON"])
    for root, target in bound:
        own = root.startswith(
            (f"/{state}/etc/", f"/{state}/agent/", f"/{state}/executor/", f"/{state}/sandboxes/{key}/")
        )
        system = root.startswith(("/usr", "/etc/", "/lib", "/bin", "/sbin")) or target.startswith(("/dev/", "/proc/"))
        assert (
            own
            or system
            or (target == "/opt/cove/python" and root.endswith(str(python.relative_to(_mount_point(python)))))
        )


def _mount_point(path: Path) -> Path:
    while not os.path.ismount(path):
        path = path.parent
    return path


@pytest.mark.parametrize(
    "command",
    ["chmod 000 /run/cove", "mv /run /elsewhere", "rm -rf /run/cove", "mv /run/cove /tmp", "touch /run/cove/x"],
)
async def test_what_sessions_stand_on_cannot_be_taken_away(command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        assert (await session.exec(command)).exit_code != 0
        assert (await session.exec("echo alive")).stdout == "alive\n"
        other = await sandbox.create_session()
        assert (await other.exec("echo alive")).stdout == "alive\n"


async def test_run_is_there_for_those_who_want_to_write_to_it() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.exec("mkdir /run/mine && echo 1 > /run/mine/pid && cat /run/mine/pid")).stdout == "1\n"
        assert (await sandbox.exec("head -c 8M /dev/zero > /run/big")).exit_code != 0


async def test_no_descriptor_of_ours_is_inherited_anywhere() -> None:
    list_all = "for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null; done"
    with open("/etc/hostname") as held, open("/dev/null") as other:
        os.set_inheritable(held.fileno(), True)
        os.set_inheritable(other.fileno(), True)
        async with AsyncSandbox.create() as sandbox:
            process = await sandbox.start_process("sleep 100")
            session = await sandbox.create_session()
            shown = (await session.exec(list_all)).stdout + (await sandbox.exec(list_all)).stdout
            await process.kill()
    targets = set(re.findall(r"-> (\S+)", shown))
    assert {
        target
        for target in targets
        if target.startswith("/") and not target.startswith(("/dev/null", "/proc/", "/run/cove/", "/memfd:cove"))
    } == set()
