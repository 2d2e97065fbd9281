"""What code in the sandbox can see and do: nothing of the host."""

import os
import pwd
import socket
from pathlib import Path

import pytest

from cove import AsyncSandbox

pytestmark = pytest.mark.anyio

CANARY = "canary-7f3a91c2"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root gives each sandbox a user of its own")

# Reads every environment and command line there is, and every file below / that is small and not the system's own.
SEARCH = """
import os, sys
needle = sys.argv[1].encode()
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('environ', 'cmdline', 'mountinfo', 'cgroup', 'status'):
        try:
            if pid != str(os.getpid()) and needle in open(f'/proc/{pid}/{name}', 'rb').read():
                print(pid, name)
        except OSError:
            pass
for folder, _, files in os.walk('/'):
    if not folder.startswith(('/proc', '/usr', '/lib', '/bin', '/sbin', '/dev')):
        for name in files:
            try:
                if needle in open(os.path.join(folder, name), 'rb').read(1 << 20):
                    print(folder, name)
            except OSError:
                pass
"""


async def test_nothing_of_the_hosts_environment_is_found_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVE_TEST_SECRET", CANARY)
    async with AsyncSandbox.create() as sandbox:
        shown = await sandbox.exec("id; ls /; cat /proc/1/environ; env; cat /proc/*/environ /proc/*/cmdline")
        assert CANARY not in shown.stdout + shown.stderr
        assert "COVE_TEST_SECRET" not in shown.stdout
        found = await sandbox.exec(["python3", "-I", "-c", SEARCH, CANARY])
        assert (found.stdout, found.exit_code) == ("", 0)


async def test_the_environment_is_exactly_the_documented_one() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(["env"])
    assert sorted(line.partition("=")[0] for line in result.stdout.splitlines()) == [
        *("HOME", "LANG", "LOGNAME", "NPM_CONFIG_PREFIX", "NPM_CONFIG_UPDATE_NOTIFIER", "PATH"),
        *("PIP_BREAK_SYSTEM_PACKAGES", "PIP_DISABLE_PIP_VERSION_CHECK", "SHELL", "TERM", "TMPDIR", "USER"),
    ]


async def test_the_root_shows_only_the_system_and_the_sandboxs_own_places() -> None:
    async with AsyncSandbox.create() as sandbox:
        names = set((await sandbox.exec("ls -A /")).stdout.split())
        homes = (await sandbox.exec("ls -A /home /var /run /run/cove /opt | grep -v :")).stdout.split()
    system = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "dev", "proc"}
    assert names - system - {"opt"} == {"home", "run", "tmp", "var", "workspace"}
    assert set(homes) <= {"user", "tmp", "cove", "agent", "executor", "shell", "python"}


async def test_no_user_of_the_host_is_named() -> None:
    names = {entry.pw_name for entry in pwd.getpwall() if entry.pw_uid >= 1000 and entry.pw_name != "nobody"}
    async with AsyncSandbox.create() as sandbox:
        users = (await sandbox.exec("getent passwd; cat /etc/passwd /etc/group")).stdout
        assert {line.split(":")[0] for line in users.splitlines()} == {"root", "user", "nobody", "nogroup"}
        assert not names & {line.split(":")[0] for line in users.splitlines()}
        assert (await sandbox.exec("ls /etc/shadow /etc/sudoers /root /etc/ssh")).exit_code == 2


async def test_the_host_has_another_name_inside() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("hostname; cat /etc/hostname /etc/hosts; uname -n; cat /etc/machine-id")
    assert result.stdout.splitlines()[0] == "cove"
    assert socket.gethostname() not in result.stdout.split() or socket.gethostname() in ("cove", "localhost")
    host_id = Path("/etc/machine-id")
    assert not host_id.exists() or host_id.read_text().strip() not in result.stdout


async def test_the_paths_of_our_state_are_not_shown(cove_home: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("cat /proc/*/cmdline /proc/1/cgroup /proc/self/cgroup | tr '\\0' ' '")
    assert str(cove_home) not in result.stdout


async def test_the_user_inside_is_user_1000_without_any_rights() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.exec("id")).stdout == "uid=1000(user) gid=1000(user) groups=1000(user)\n"
        status = (await sandbox.exec("cat /proc/self/status")).stdout
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert f"{name}:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status


@pytest.mark.parametrize(
    "command",
    [
        "unshare --user true",
        "unshare --mount true",
        "unshare --net true",
        "mount -t tmpfs none /mnt",
        "chroot / true",
        "mknod /tmp/device c 1 3",
        "hostname other",
        "echo x > /proc/sys/kernel/hostname",
        "echo x > /etc/passwd",
        "touch /usr/x",
        "touch /usr/bin/x",
        "mkdir /dev/x",
        "touch /run/cove/agent/x",
        "rm /run/cove/agent/init.pyc",
        "chown 0 /workspace",
        "nsenter -t 1 -m true",
        "dmesg",
    ],
)
async def test_a_way_out_is_closed(command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(command)
    assert result.exit_code != 0


async def test_a_set_user_id_program_gives_no_rights() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("cp /usr/bin/id /tmp/id; chmod u+s /tmp/id; /tmp/id -u; su -c id root; sudo -n id")
    assert result.stdout.split()[0] == "1000"
    assert "uid=0" not in result.stdout


@ROOT_ONLY
async def test_as_root_every_sandbox_has_a_host_user_of_its_own() -> None:
    async with AsyncSandbox.create() as one, AsyncSandbox.create() as other:
        users = set()
        for sandbox in (one, other):
            await sandbox.exec("touch /workspace/mine")
            place = sandbox._place  # type: ignore[attr-defined]
            found = os.stat(place.workspace / "mine")
            assert found.st_uid == found.st_gid == place.user_id >= 2_000_000_000
            assert os.stat(f"/proc/{sandbox._jail.pid}").st_uid in (0, place.user_id)  # type: ignore[attr-defined]
            assert (place.workspace.stat().st_mode & 0o777, place.logs.stat().st_mode & 0o777) == (0o700, 0o700)
            users.add(place.user_id)
        assert len(users) == 2


async def test_a_sandbox_sees_neither_the_files_nor_the_processes_of_another() -> None:
    async with AsyncSandbox.create() as one, AsyncSandbox.create() as other:
        await one.exec(f"echo {CANARY} > /workspace/f; echo {CANARY} > /tmp/f; echo {CANARY} > ~/f; sleep 4321 &")
        await one.exec(f"echo {CANARY} > /dev/shm/f; mkdir /own")
        found = await other.exec(["python3", "-I", "-c", SEARCH, CANARY])
        assert found.stdout == ""
        assert (await other.exec("ls /dev/shm /workspace /tmp ~; ls -d /own")).stdout.replace(":", "").split() == [
            *("/dev/shm", "/home/user", "/tmp", "/workspace")
        ]
        assert "4321" not in (await other.exec("ps aux; ipcs")).stdout


async def test_without_a_network_there_is_only_loopback() -> None:
    async with AsyncSandbox.create() as sandbox:
        interfaces = await sandbox.exec("ls /sys/class/net; cat /proc/net/dev; cat /proc/net/route")
        names = [line.split(":")[0].strip() for line in interfaces.stdout.splitlines() if ":" in line]
        assert names == ["lo"]
        connect = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
        result = await sandbox.exec(["python3", "-c", connect], timeout=30)
        assert result.exit_code == 1
        assert "Network is unreachable" in result.stderr


async def test_loopback_works_and_is_the_sandboxs_own() -> None:
    server = "python3 -m http.server 3000 --bind 127.0.0.1"
    ask = "import urllib.request as u; print(u.urlopen('http://localhost:3000/f', timeout=20).read().decode())"
    wait = "until (exec 3<>/dev/tcp/127.0.0.1/3000) 2>/dev/null; do :; done"
    async with AsyncSandbox.create() as one, AsyncSandbox.create() as other:
        for name, sandbox in (("one", one), ("other", other)):
            await sandbox.exec(f"echo {name} > f; {server} > /tmp/log 2>&1 &")
            await sandbox.exec(wait, timeout=30)
        for name, sandbox in (("one", one), ("other", other)):
            assert (await sandbox.exec(["python3", "-c", ask])).stdout.strip() == name


async def test_with_the_hosts_network_a_service_of_the_host_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with AsyncSandbox.create(network="host") as sandbox:
            assert (await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}")).exit_code == 0
        async with AsyncSandbox.create() as sandbox:
            assert (await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}")).exit_code == 1


async def test_every_writable_memory_place_has_a_size() -> None:
    async with AsyncSandbox.create() as sandbox:
        for place in ("/", "/dev/shm"):
            result = await sandbox.exec(f"df --output=size -k {place} | tail -1")
            assert int(result.stdout) <= 256 * 1024
        assert (await sandbox.exec("head -c 80M /dev/zero > /big")).exit_code != 0
