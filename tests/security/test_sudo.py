"""`sudo` inside: who has it, who has not, and what its broker makes of hostile requests."""

from collections.abc import AsyncIterator

import pytest
from support.busybox import needs_busybox
from support.users import needs_one_user, needs_users

from cove import AsyncSandbox, Outcome
from cove.errors import PermissionDenied, UserUnavailable, ValidationFailed
from cove.model import SandboxSpec, make_spec
from cove.server.configuration import Configuration
from cove.verify.system import system_of_the_host

pytestmark = [pytest.mark.anyio, needs_busybox]

ASK = """
import os, socket, sys
path, packet, count = sys.argv[1], sys.argv[2].encode().decode("unicode_escape").encode("latin-1"), int(sys.argv[3])
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.settimeout(5)
sock.connect(path)
files = [os.open("/", os.O_PATH) if number == 3 else number for number in range(count)]
try:
    socket.send_fds(sock, [packet], files)
except BrokenPipeError:
    pass
try:
    print(sock.recv(100).split(b"\\0")[0].decode())
except ConnectionResetError:
    print("refused")
"""


@pytest.fixture
async def image() -> AsyncIterator[str]:
    async with system_of_the_host() as name:
        yield name


@needs_users
async def test_the_user_becomes_root_and_no_more_than_root_inside(image: str) -> None:
    async with AsyncSandbox.create(image=image, user="1000:1000", sudo=True) as sandbox:
        assert (await sandbox.exec("id -u; sudo id -u; sudo touch /etc/made && ls /etc/made")).stdout == (
            "1000\n0\n/etc/made\n"
        )
        status = (await sandbox.exec("sudo grep -E '^(Cap(Prm|Bnd)|NoNewPrivs|Seccomp):' /proc/self/status")).stdout
        assert status.split()[1::2] == ["00000000800005fb", "00000000800005fb", "1", "2"]
        ends = await sandbox.exec(
            "sudo sh -c 'exit 5'; echo $?; sudo absent; echo $?; sudo sh -c 'kill -9 $$'; echo $?"
        )
        assert ends.stdout == "5\n127\n137\n"
        assert (await sandbox.exec("X=1 sudo Y=2 sh -c 'echo $X $Y $HOME; cat'", stdin="in")).stdout == "1 2 /root\nin"
        session = await sandbox.create_session()
        assert (await session.exec("cd /etc; sudo pwd; sudo -u '#0' id -u")).stdout == "/etc\n0\n"


@needs_users
async def test_what_sudo_starts_ends_with_the_command_that_asked(image: str) -> None:
    async with AsyncSandbox.create(image=image, user="1000:1000", sudo=True) as sandbox:
        result = await sandbox.exec("sudo sh -c 'trap : TERM; sleep 1000; sleep 1000'", timeout=1)
        assert result.outcome is Outcome.TIMED_OUT
        session = await sandbox.create_session()
        look = "grep -sqzx '123[4]' /proc/[0-9]*/cmdline"
        stubborn = await session.exec("sudo sh -c 'trap : TERM INT HUP; sleep 1234; sleep 1234'", timeout=1)
        assert (stubborn.outcome, (await session.exec("sudo id -u")).stdout) == (Outcome.TIMED_OUT, "0\n")
        assert (await sandbox.exec(look)).exit_code != 0
        process = await sandbox.start_process("sudo sh -c 'setsid sleep 1234 & sleep 1234'")
        assert (await sandbox.exec(f"until {look}; do :; done", timeout=20)).exit_code == 0
        await process.terminate(grace=0)
        await process.wait()
        assert (await sandbox.exec(look)).exit_code != 0


# The processes beside this one below its launcher, by their states.
BESIDE = """
import os
facts = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        facts[int(pid)] = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError:
        pass
print(sorted(pid for pid, each in facts.items() if int(each[1]) == os.getppid() and pid != os.getpid()))
"""


@needs_users
async def test_there_is_a_broker_only_once_somebody_asks_and_another_when_root_has_killed_it(image: str) -> None:
    async with AsyncSandbox.create(image=image, user="1000:1000", sudo=True) as sandbox:
        assert (await sandbox.exec(["python3", "-c", BESIDE])).stdout == "[]\n"
        again = f"""
import subprocess
subprocess.run(["sudo", "true"], check=True)
{BESIDE}
(broker,) = [pid for pid, each in facts.items() if int(each[1]) == os.getppid() and pid != os.getpid()]
print(subprocess.run(["sudo", "kill", "-9", str(broker)]).returncode)
print(subprocess.run(["sudo", "id", "-u"], capture_output=True, text=True).stdout)
"""
        lines = (await sandbox.exec(["python3", "-c", again])).stdout.splitlines()
        assert lines[1:] == ["1", "0", ""]
        assert (await sandbox.exec("sudo id -u")).stdout == "0\n"
        assert (await sandbox.exec(["python3", "-c", BESIDE])).stdout == "[]\n"


@needs_users
async def test_nobody_else_is_served(image: str) -> None:
    async with AsyncSandbox.create(image=image, user="1000:1000", sudo=True) as sandbox:
        assert (await sandbox.exec("sudo id -u", user="2000")).exit_code == 1
        holder = await sandbox.start_process("echo $PPID > /workspace/above; sudo id -u; sleep 1000")
        await holder.wait_for_log("0")
        path = f"/run/cove-sudo/{(await sandbox.files.read_text('/workspace/above')).strip()}"
        for user in ("2000", "1000:1000", "0"):
            command = ["/usr/bin/python3", "-c", ASK, path, "0:0\\0001\\0id", "4"]
            assert (await sandbox.exec(command, user=user)).stdout == "refused\n", user


@needs_users
@pytest.mark.parametrize(
    ("packet", "count"),
    [
        ("0:0\\0001\\0id", 3),
        ("0:0\\0001\\0id", 0),
        ("0:0\\0001\\0id", 5),
        pytest.param("0:0\\0001\\0id\\0A=" + "x" * 70_000, 4, id="long"),
        ("0", 4),
        ("0:0", 4),
        ("\\0001\\0id", 4),
        ("0:0\\0002\\0id", 4),
        ("70000:0\\0001\\0id", 4),
        ("-1:0\\0001\\0id", 4),
        ("0:0\\0x\\0id", 4),
        ("0:0\\0001\\0id\\0no-variable", 4),
        ("0:0\\0001\\0", 4),
    ],
)
async def test_a_request_that_is_none_is_refused_and_the_next_is_served(packet: str, count: int, image: str) -> None:
    async with AsyncSandbox.create(image=image, user="1000:1000", sudo=True) as sandbox:
        await sandbox.files.write("/workspace/ask.py", ASK)
        line = f"python3 ask.py /run/cove-sudo/$PPID '{packet}' {count}; sudo id -u"
        assert (await sandbox.exec(line, cwd="/workspace")).stdout == "refused\n0\n"


async def test_without_it_sudo_says_how_to_ask(image: str) -> None:
    async with AsyncSandbox.create(image=image, user="1000:1000") as sandbox:
        result = await sandbox.exec(["/run/cove-sudo/bin/sudo", "id"])
        assert (result.exit_code, "sudo=True" in result.stderr) == (1, True)


@needs_one_user
async def test_where_users_are_not_real_only_root_has_it(image: str) -> None:
    with pytest.raises(UserUnavailable, match="user='root'"):
        await AsyncSandbox.create(image=image, user="1000:1000", sudo=True)
    async with AsyncSandbox.create(image=image, user="root", sudo=True) as sandbox:
        assert (await sandbox.exec("sudo id -u")).stdout == "0\n"


def test_it_needs_an_image_and_a_server_that_allows_it() -> None:
    with pytest.raises(ValidationFailed, match="image"):
        make_spec(None, {"sudo": True})
    spec = SandboxSpec(sudo=True, image="debian")
    assert Configuration().admit(spec).sudo
    with pytest.raises(PermissionDenied, match="allow_sudo"):
        Configuration(allow_sudo=False).admit(spec)
