"""Attach: what it does to a jail, and what hostile code inside, or the death of its helper, can make of it."""

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.servers import serving

from cove import AsyncSandbox
from cove.attach import (
    Action,
    BindFile,
    Binds,
    MountOptions,
    MoveMounts,
    NetworkSetup,
    Nursery,
    Sysctls,
    Target,
    actions,
    plan,
    visit,
)
from cove.attach.visit import Process, Request
from cove.errors import (
    CoveError,
    FileNotFound,
    IsDirectory,
    PermissionDenied,
    PortInUse,
    SandboxUnavailable,
    ValidationFailed,
)
from cove.runtime import jail_start as jail_module
from cove.runtime.attachment import attach
from cove.runtime.jail import Jail
from cove.runtime.machine import Machine
from cove.runtime.network import SandboxNetwork

pytestmark = pytest.mark.anyio

NAMES = "/etc/resolv.conf"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5); print('connected')"
SERVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
time.sleep(1000)
"""
# Takes all it can get of processes, names and descriptors, and signals and traces whatever it can name.
RAGE = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
print("raging", flush=True)
for _ in range(60):
    if os.fork() == 0:
        break
held = []
while True:
    try:
        held += os.pipe()
    except OSError:
        pass
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            libc.ptrace(16, int(name), 0, 0)
            libc.ptrace(17, int(name), 0, 0)
    libc.mount(b"none", b"/etc", b"tmpfs", 0, None)
    libc.umount2(b"/etc/resolv.conf", 2)
    libc.unshare(0x20000)
"""
SWAP = """
import os
os.makedirs("here/in"); open("here/in/file", "w").close()
print("swapping", flush=True)
while True:
    os.rename("here/in", "here/aside")
    os.symlink("/etc", "here/in")
    os.unlink("here/in")
    os.rename("here/aside", "here/in")
"""


def jail_of(sandbox: AsyncSandbox) -> Jail:
    found: Jail = sandbox._jail  # type: ignore[attr-defined]  # has no public name yet
    return found


def names_file(sandbox: AsyncSandbox, text: str = "nameserver 127.0.0.53\n") -> str:
    path = Path(sandbox._place.path, "names")  # type: ignore[attr-defined]
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


@asynccontextmanager
async def attached(sandbox: AsyncSandbox, *actions: Action) -> AsyncIterator[list[socket.socket]]:
    sockets = await jail_of(sandbox).attach(actions)
    try:
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


async def connect(sandbox: AsyncSandbox, address: str, port: int) -> bool:
    return (await sandbox.exec(["python3", "-c", CONNECT, address, str(port)])).stdout == "connected\n"


@pytest.mark.pure
def test_a_plan_enters_the_owner_first_and_changes_nothing_before_the_sockets_are_bound() -> None:
    actions: list[Action] = [
        BindFile("/srv/names", NAMES),
        NetworkSetup(ports=[80]),
        Sysctls({"max_inotify_instances": "16"}),
        MountOptions({"/run": "nr_inodes=4,size=8"}),
        Binds({"/proc/b": "/proc/a"}),
        MoveMounts("/run/m", {"/run/m/0": "/data"}),
    ]
    verbs = [step.verb for step in plan(actions)]
    assert verbs[:4] == ["user", "sysctl", "copy", "tree"]
    assert verbs[4:] == [
        *("net", "socket", "socket", "socket", "listen", "netlink", "netlink"),
        *("mounts", "place", "options", "bind", "move", "detach"),
    ]


async def test_every_synthetic_address_leads_to_the_listeners_and_names_itself() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert not await connect(sandbox, "198.18.7.9", 443)
        async with attached(sandbox, NetworkSetup(ports=[80, 443])) as (web, tls, names, names_stream):
            for address, port, listener in (("198.18.7.9", 443, tls), ("198.19.255.1", 80, web)):
                assert await connect(sandbox, address, port)
                accepted, peer = listener.accept()
                with accepted:
                    assert accepted.getsockname() == (address, port)
                    assert peer[0] == "198.18.0.1"
            assert names.getsockname() == names_stream.getsockname() == ("127.0.0.53", 53)
            assert (names.type, names_stream.type) == (socket.SOCK_DGRAM, socket.SOCK_STREAM)
            assert await connect(sandbox, "127.0.0.53", 53)
            assert not await connect(sandbox, "198.18.7.9", 22)
            assert not await connect(sandbox, "198.20.0.1", 443)


async def test_a_port_that_is_taken_inside_is_named_and_nothing_has_changed() -> None:
    async with AsyncSandbox.create() as sandbox:
        server = await sandbox.start_process(["python3", "-c", SERVE, "0.0.0.0", "8080"])
        await server.wait_for_log("listening", timeout=20)
        with pytest.raises(PortInUse, match="8080") as raised:
            await jail_of(sandbox).attach([NetworkSetup(ports=[443, 8080]), BindFile(names_file(sandbox), NAMES)])
        assert raised.value.details == {"port": 8080}
        routes = (await sandbox.exec("cat /proc/net/fib_trie")).stdout
        assert "127.0.0.1" in routes
        assert "198.18" not in routes
        assert NAMES not in (await sandbox.exec("cat /proc/self/mountinfo")).stdout
        async with attached(sandbox, NetworkSetup(ports=[443])):
            assert await connect(sandbox, "198.18.0.2", 8080)


@pytest.mark.parametrize("address", ["0.0.0.0", "198.18.0.9", "127.0.0.1"])
async def test_code_inside_cannot_take_a_listeners_port(address: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        async with attached(sandbox, NetworkSetup(ports=[8443])):
            taken = await sandbox.exec(["python3", "-c", SERVE, address, "8443"])
        assert "Address already in use" in taken.stderr
        low = await sandbox.exec(["python3", "-c", SERVE, address, "443"])
        assert "Permission denied" in low.stderr


async def test_more_ports_can_follow_while_the_first_are_served() -> None:
    async with AsyncSandbox.create() as sandbox:
        async with attached(sandbox, NetworkSetup(ports=[443])):
            async with attached(sandbox, NetworkSetup(ports=[5432], dns=False)) as (database,):
                assert database.getsockname() == ("0.0.0.0", 5432)
                assert await connect(sandbox, "198.18.0.2", 5432)
                assert await connect(sandbox, "198.18.0.2", 443)
            with pytest.raises(PortInUse, match="53"):
                await jail_of(sandbox).attach([NetworkSetup()])
        async with attached(sandbox, NetworkSetup(ports=[443, 5432])):
            assert await connect(sandbox, "198.18.0.2", 5432)


def destination(accepted: socket.socket) -> tuple[str, int]:
    """Where a connection wanted to go that the kernel led elsewhere."""
    data = accepted.getsockopt(socket.SOL_IP, 80, 16)
    return socket.inet_ntoa(data[4:8]), int.from_bytes(data[2:4], "big")


async def test_one_socket_gets_the_connections_to_every_port_and_they_name_themselves() -> None:
    """Where nf_tables is there, as it must be where these tests run."""
    async with AsyncSandbox.create() as sandbox:
        server = await sandbox.start_process(["python3", "-c", SERVE, "0.0.0.0", "8080"])
        await server.wait_for_log("listening", timeout=20)
        setup = NetworkSetup(ports=[443, 8080], addresses=["10.0.0.5"], any_port=True)
        for _ in range(2):
            async with attached(sandbox, setup) as (leading, names, _):
                assert (leading.getsockname(), names.getsockname()) == (("127.0.0.53", 54), ("127.0.0.53", 53))
                for address, port in (("198.18.7.9", 443), ("198.19.255.1", 8080), ("10.0.0.5", 65535)):
                    assert await connect(sandbox, address, port)
                    accepted, _ = leading.accept()
                    with accepted:
                        assert destination(accepted) == (address, port)
                for own in ("127.0.0.1", "198.18.0.1"):
                    assert await connect(sandbox, own, 8080)
                assert not await connect(sandbox, "198.20.0.1", 443)
                with pytest.raises(BlockingIOError):
                    leading.accept()
                assert await connect(sandbox, "127.0.0.53", 54)
                accepted, _ = leading.accept()
                with accepted:
                    assert destination(accepted) == ("127.0.0.53", 54)
            assert not await connect(sandbox, "198.18.7.9", 443)


async def test_one_source_port_can_be_used_for_many_destinations() -> None:
    code = """
import socket
held = []
for number in range(200):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.settimeout(5)
    sock.bind((("198.18.0.1", "127.0.0.1")[number % 2], 5555))
    sock.connect((f"198.18.2.{number}", 1000 + number))
    held.append(sock)
print("connected")
"""
    async with AsyncSandbox.create() as sandbox, attached(sandbox, NetworkSetup(any_port=True)) as (leading, *_):
        result = await sandbox.exec(["python3", "-c", code])
        assert result.stdout == "connected\n", result.stderr
        for number in range(200):
            accepted, _ = leading.accept()
            with accepted:
                assert destination(accepted) == (f"198.18.2.{number}", 1000 + number)


async def test_a_kernel_without_nf_tables_gives_a_socket_for_each_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "transaction", lambda _: bytes(20))
    async with AsyncSandbox.create() as sandbox:
        async with attached(sandbox, NetworkSetup(ports=[443, 8080], any_port=True)) as sockets:
            assert [sock.getsockname() for sock in sockets[:2]] == [("0.0.0.0", 443), ("0.0.0.0", 8080)]
            assert await connect(sandbox, "198.18.7.9", 8080)
            assert not await connect(sandbox, "198.18.7.9", 22)
        server = await sandbox.start_process(["python3", "-c", SERVE, "0.0.0.0", "8080"])
        await server.wait_for_log("listening", timeout=20)
        with pytest.raises(PortInUse, match="8080"):
            await jail_of(sandbox).attach([NetworkSetup(ports=[443, 8080], any_port=True)])


async def test_a_bound_file_is_read_only_and_shows_what_is_written_to_it_later() -> None:
    async with AsyncSandbox.create() as sandbox:
        path = names_file(sandbox)
        for source in (path, path):
            await jail_of(sandbox).attach([BindFile(source, NAMES)])
        assert (await sandbox.exec(["cat", NAMES])).stdout == "nameserver 127.0.0.53\n"
        names_file(sandbox, "nameserver 127.0.0.1\n")
        assert (await sandbox.exec(["cat", NAMES])).stdout == "nameserver 127.0.0.1\n"
        refused = await sandbox.exec(f"echo x > {NAMES}; chmod 777 {NAMES}; umount {NAMES}; rm {NAMES}")
        assert refused.exit_code != 0
        mounts = [
            line.split()
            for line in (await sandbox.exec("cat /proc/self/mountinfo")).stdout.splitlines()
            if NAMES in line
        ]
        assert [{"ro", "nosuid", "nodev"} <= set(fields[5].split(",")) for fields in mounts] == [True]
    assert Path(path).exists() is False  # it went with the sandbox


async def test_a_file_can_be_bound_by_its_descriptor_and_no_other_file_in_its_place() -> None:
    async with AsyncSandbox.create() as sandbox:
        path = names_file(sandbox)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            await jail_of(sandbox).attach([BindFile(descriptor, NAMES)])
            assert (await sandbox.exec(["cat", NAMES])).stdout == "nameserver 127.0.0.53\n"
            os.rename(path, f"{path}.old")
            os.unlink(f"{path}.old")
            names_file(sandbox, "nameserver 8.8.8.8\n")
            with pytest.raises(CoveError):
                await jail_of(sandbox).attach([BindFile(descriptor, "/etc/hosts")])
        finally:
            os.close(descriptor)
        assert "localhost" in (await sandbox.exec("cat /etc/hosts")).stdout


@pytest.mark.parametrize(
    ("target", "error"),
    [("/etc/missing", FileNotFound), ("/var/tmp/link", PermissionDenied), ("/etc", IsDirectory)],
)
async def test_a_target_that_is_no_file_is_refused(target: str, error: type[CoveError]) -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/tmp/link", "")
        with pytest.raises(error):
            await jail_of(sandbox).attach([BindFile(names_file(sandbox), target)])
        assert "names" not in (await sandbox.exec("cat /proc/self/mountinfo")).stdout


async def test_a_target_can_be_passed_over_where_it_is_no_file() -> None:
    async with AsyncSandbox.create() as sandbox:
        source = names_file(sandbox)
        targets = ("/etc/missing", "/etc/missing/too", "/etc/hosts/below", NAMES)
        await jail_of(sandbox).attach([BindFile(source, target, if_there=True) for target in targets])
        mounted = (await sandbox.exec("cat /proc/self/mountinfo")).stdout
        assert mounted.count("names") == 1
        assert f" {NAMES} " in mounted


async def test_a_missing_source_is_refused() -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(FileNotFound):
            await jail_of(sandbox).attach([BindFile("/nowhere/at/all", NAMES)])


async def test_the_hosts_own_network_is_never_configured() -> None:
    before = Path("/proc/net/fib_trie").read_text()
    async with AsyncSandbox.create(network="host") as sandbox:
        with pytest.raises(ValidationFailed, match="network"):
            await jail_of(sandbox).attach([NetworkSetup(ports=[61999])])
    assert Path("/proc/net/fib_trie").read_text() == before


async def test_a_sandbox_without_isolation_is_refused() -> None:
    async with AsyncSandbox.create(isolation="none") as sandbox:
        with pytest.raises(ValidationFailed, match="isolation"):
            await jail_of(sandbox).attach([NetworkSetup()])


async def test_a_sandbox_that_has_ended_is_refused() -> None:
    async with AsyncSandbox.create() as sandbox:
        jail = jail_of(sandbox)
    with pytest.raises(SandboxUnavailable, match="ended"):
        await jail.attach([NetworkSetup()])


async def test_an_agent_that_ends_meanwhile_is_told_from_whoever_has_its_pid_then() -> None:
    """The pidfd of an agent that has ended, and the pid of another jail's agent, which lives."""
    async with AsyncSandbox.create() as other:
        async with AsyncSandbox.create() as sandbox:
            jail = jail_of(sandbox)
            pidfd = os.dup(jail.target.pidfd)
            user_id = jail.target.user_id
        try:
            target = Target(pidfd, jail_of(other).agent_pid, user_id)
            machine: Machine = other._machine  # type: ignore[attr-defined]  # has no public name
            with pytest.raises(SandboxUnavailable, match="ended"):
                await asyncio.to_thread(attach, machine, target, [NetworkSetup()])
        finally:
            os.close(pidfd)
        assert "198.18" not in (await other.exec("cat /proc/net/fib_trie")).stdout


def attach_with_start(monkeypatch: pytest.MonkeyPatch, *actions: Action) -> None:
    async def attachments(*_: object) -> tuple[Action, ...]:
        return actions

    monkeypatch.setattr(SandboxNetwork, "attachments", attachments)


async def test_what_is_attached_with_the_start_is_there_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    attach_with_start(monkeypatch, NetworkSetup(ports=[443]))
    async with AsyncSandbox.create() as sandbox:
        assert [sock.getsockname()[1] for sock in jail_of(sandbox).sockets] == [443, 53, 53]
        assert await connect(sandbox, "198.18.3.4", 443)
        await sandbox.restart()
        assert await connect(sandbox, "198.18.3.4", 443)


async def test_a_jail_whose_attachment_fails_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    attach_with_start(monkeypatch, NetworkSetup(), BindFile("/nowhere/at/all", NAMES))
    with pytest.raises(FileNotFound):
        await AsyncSandbox.create()


async def test_attaching_works_beside_code_that_takes_everything_and_attacks_everything() -> None:
    async with AsyncSandbox.create() as sandbox:
        rage = await sandbox.start_process(["python3", "-c", RAGE])
        await rage.wait_for_log("raging", timeout=20)
        path = names_file(sandbox)
        for _ in range(5):
            async with attached(sandbox, NetworkSetup(ports=[443]), BindFile(path, NAMES)) as sockets:
                assert len(sockets) == 3
        await rage.kill(signal.SIGKILL)
        assert (await sandbox.exec(["cat", NAMES])).stdout == "nameserver 127.0.0.53\n"


async def test_a_target_that_is_swapped_for_a_link_in_a_loop_leads_nowhere_else() -> None:
    async with AsyncSandbox.create() as sandbox:
        swap = await sandbox.start_process(["python3", "-c", SWAP])
        await swap.wait_for_log("swapping", timeout=20)
        path = names_file(sandbox)
        placed = 0
        for _ in range(20):
            try:
                await jail_of(sandbox).attach([BindFile(path, "/workspace/here/in/file")])
                placed += 1
            except (PermissionDenied, FileNotFound):
                continue
        await swap.kill(signal.SIGKILL)
        mounts = [line.split() for line in (await sandbox.exec("cat /proc/self/mountinfo")).stdout.splitlines()]
        bound = {fields[4] for fields in mounts if fields[3].endswith("/names")}
        assert bound <= {"/workspace/here/in/file", "/workspace/here/aside/file"}
        assert (await sandbox.exec("cat /etc/hostname")).stdout == "cove\n"


async def test_a_stopped_agent_delays_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        pidfd = jail_of(sandbox).target.pidfd
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        try:
            async with attached(sandbox, NetworkSetup(ports=[443]), BindFile(names_file(sandbox), NAMES)) as sockets:
                assert len(sockets) == 3
        finally:
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        assert (await sandbox.exec(["cat", NAMES])).stdout == "nameserver 127.0.0.53\n"


def by_process(sandbox: AsyncSandbox) -> Jail:
    """The sandbox's jail; root's actions are done to it as a plain user's are."""
    jail = jail_of(sandbox)
    assert jail._machine is not None
    jail._machine = replace(jail._machine, can_enter_namespaces=False)
    return jail


def before_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[Process], None]) -> list[bytes]:
    """Have something done to the next helper before that step; returns the steps, which are asked for one by one."""
    ask, asked = Process._ask, list[bytes]()

    def meddle(self: Process, requests: Sequence[Request], until: float) -> list[int]:
        if len(asked) == number:
            act(self)
        ((step, _),) = requests
        asked.append(step)
        return ask(self, requests, until)

    monkeypatch.setattr(visit, "_MOST_STEPS", 1)
    monkeypatch.setattr(Process, "_ask", meddle)
    return asked


async def test_a_helper_that_is_killed_at_any_step_fails_the_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(helper: Process) -> None:
        assert helper.process is not None
        helper.process.kill()
        os.waitid(os.P_PID, helper.process.pid, os.WEXITED | os.WNOWAIT)

    async with AsyncSandbox.create() as sandbox:
        jail = by_process(sandbox)
        actions: list[Action] = [NetworkSetup(ports=[443]), BindFile(names_file(sandbox), NAMES)]
        number, count = 0, 2
        while number < count:
            with monkeypatch.context() as patch:
                asked = before_step(patch, number, kill)
                with pytest.raises(SandboxUnavailable, match="helper"):
                    await jail.attach(actions)
                assert len(asked) == number + 1
            number += 1
            if asked[-1] != b"give":
                count = number + 1
        assert number > 10
        async with attached(sandbox, *actions) as sockets:
            assert len(sockets) == 3
            assert await connect(sandbox, "198.18.0.2", 443)


@pytest.mark.parametrize("number", [0, 3, 8])
async def test_a_helper_that_hangs_is_ended_at_the_deadline(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def stop(helper: Process) -> None:
        assert helper.process is not None
        helper.process.send_signal(signal.SIGSTOP)

    async with AsyncSandbox.create() as sandbox:
        jail = by_process(sandbox)
        before_step(monkeypatch, number, stop)
        with pytest.raises(SandboxUnavailable, match="longer than 1 s"):
            await asyncio.to_thread(jail.perform, [NetworkSetup(ports=[443])], 1.0)
        assert (await sandbox.exec("echo 1")).stdout == "1\n"


async def test_a_sandbox_that_ends_at_any_step_ends_no_call_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 5, 9):
        async with AsyncSandbox.create() as sandbox:
            jail = by_process(sandbox)
            pidfd = jail.target.pidfd
            with monkeypatch.context() as patch:
                before_step(patch, number, lambda _, pidfd=pidfd: signal.pidfd_send_signal(pidfd, signal.SIGKILL))  # type: ignore[misc]
                try:
                    sockets = await jail.attach([NetworkSetup(ports=[443]), BindFile(names_file(sandbox), NAMES)])
                except CoveError:
                    continue
            for sock in sockets:
                sock.close()


async def test_a_cancelled_call_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncSandbox.create() as sandbox:
        jail, loop, reached = by_process(sandbox), asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Process) -> None:
            loop.call_soon_threadsafe(reached.set)

        with monkeypatch.context() as patch:
            asked = before_step(patch, 3, tell)
            call = asyncio.ensure_future(jail.attach([NetworkSetup(ports=[443])]))
            await reached.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert asked[-1] == b"give"
        async with attached(sandbox, NetworkSetup(ports=[443])) as sockets:
            assert len(sockets) == 3


async def test_nothing_inside_sees_the_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still while all processes inside are listed."""
    async with AsyncSandbox.create() as sandbox:
        jail, loop = by_process(sandbox), asyncio.get_running_loop()
        reached, listed = asyncio.Event(), threading.Event()

        def stand_still(_: Process) -> None:
            loop.call_soon_threadsafe(reached.set)
            listed.wait(20)

        list_all = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        asked = before_step(monkeypatch, 10, stand_still)
        call = asyncio.ensure_future(
            jail.attach([NetworkSetup(ports=[443]), BindFile(names_file(sandbox), "/etc/hosts")])
        )
        await reached.wait()
        shown = (await sandbox.exec(list_all)).stdout
        listed.set()
        for sock in await call:
            sock.close()
        assert b"mounts" in asked
        assert "init.pyc" in shown
        assert "attach.pyc" not in shown


async def test_a_servers_zygote_forks_helpers_and_without_one_they_are_started(
    monkeypatch: pytest.MonkeyPatch, other_home: Path
) -> None:
    forked = list[bool]()

    def note(helper: Process) -> None:
        forked.append(helper.process is None)

    async with AsyncSandbox.create() as sandbox:
        jail = by_process(sandbox)
        assert jail._machine is not None
        with serving(other_home, "--on-stop", "destroy") as server:
            path = server.directory.helpers(jail._machine.attach.parent.name)
            jail._machine = replace(jail._machine, attach_socket=str(path))
            actions: list[Action] = [NetworkSetup(ports=[443]), BindFile(names_file(sandbox), NAMES)]
            with monkeypatch.context() as patch:
                before_step(patch, 0, note)
                async with attached(sandbox, *actions) as sockets:
                    assert len(sockets) == 3
                    assert await connect(sandbox, "198.18.0.2", 443)
            assert (await sandbox.exec(["cat", NAMES])).stdout == "nameserver 127.0.0.53\n"
        assert not path.exists()
        with monkeypatch.context() as patch:
            before_step(patch, 0, note)
            async with attached(sandbox, *actions) as sockets:
                assert len(sockets) == 3
    assert forked == [True, False]


async def test_a_nursery_forks_helpers_that_outlive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    forked = list[bool]()
    async with AsyncSandbox.create() as sandbox:
        jail = by_process(sandbox)
        assert jail._machine is not None
        nursery = await asyncio.to_thread(Nursery, jail._machine.attach_command)
        jail._machine = replace(jail._machine, nursery=nursery)

        def end_nursery(helper: Process) -> None:
            forked.append(helper.process is None)
            nursery.close()

        bind = BindFile(names_file(sandbox), NAMES)
        with monkeypatch.context() as patch:
            before_step(patch, 2, end_nursery)
            async with attached(sandbox, bind):
                assert (await sandbox.exec(["cat", NAMES])).stdout == "nameserver 127.0.0.53\n"
        with monkeypatch.context() as patch:
            before_step(patch, 2, end_nursery)
            async with attached(sandbox, bind):
                pass
    assert forked == [True, False]


async def test_copies_that_start_at_once_share_one_interpreter_for_their_helpers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AsyncSandbox.create() as sandbox:
        snapshot = await sandbox.snapshot()
        started, start = list[int](), visit._start_program

        def note(command: Sequence[str], sock: socket.socket) -> "subprocess.Popen[bytes]":
            process = start(command, sock)
            started.append(process.pid)
            return process

        with monkeypatch.context() as patch:
            patch.setattr(visit, "_start_program", note)
            copies = await sandbox.fork(3)
        assert len(started) == 2  # for the seal, and for the copies
        for copy in copies:
            assert (await copy.exec("echo up")).stdout == "up\n"
            await (await copy.snapshot()).delete()
            await copy.destroy()
        await snapshot.delete()


async def test_a_pid_that_has_come_to_be_another_processs_is_not_taken_for_the_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def somebody_elses(info: int) -> int:
        await read_child_pid(info)
        return os.getpid()

    read_child_pid = jail_module._read_child_pid
    monkeypatch.setattr(jail_module, "_read_child_pid", somebody_elses)
    with pytest.raises(SandboxUnavailable, match="ended"):
        await AsyncSandbox.create()
