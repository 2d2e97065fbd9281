"""What lives on when parts of a server are killed, and what ends with them."""

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from support.inside import is_alive
from support.leaks import control_groups, processes_below
from support.programs import wait_until_gone
from support.servers import DEFAULT, Server, eventually, left_behind, serving

from cove import AsyncSandbox, Output, SandboxSpec, SandboxStatus
from cove.errors import ConnectionLost, CoveError, SandboxUnavailable

pytestmark = pytest.mark.anyio


async def test_sandboxes_outlive_a_killed_server_and_the_next_one_finds_them(other_home: Path) -> None:
    with serving(other_home) as first:
        sandbox = await first.create("x")
        session = await sandbox.create_session(id="s")
        await session.exec("cd /tmp; NAME=kept")
        await sandbox.start_process("sleep 1000", id="p")
        context = await sandbox.create_code_context(id="c")
        await sandbox.run_code("x = 41", context=context)
        await sandbox.detach()
        runtime = await first.runtime("x")
        first.kill_all()
        assert is_alive(runtime)
    with serving(other_home) as second:
        sandbox = await second.connect("x")
        session = await sandbox.get_session("s")
        assert (await session.exec("pwd; echo $NAME")).stdout == "/tmp\nkept\n"
        assert (await sandbox.run_code("x + 1", context="c")).text == "42"
        assert (await sandbox.get_process("p")).status == "running"
        assert await second.runtime("x") == runtime
        await sandbox.destroy()
        await eventually(lambda: left_behind(other_home) == [])


async def test_a_process_that_runs_while_no_server_does_loses_no_output(other_home: Path) -> None:
    with serving(other_home) as first:
        sandbox = await first.create("x")
        await sandbox.start_process("for n in $(seq 200); do echo $n; sleep 0.01; done", id="p")
        await sandbox.detach()
        first.kill_all()
    with serving(other_home) as second:
        sandbox = await second.connect("x")
        process = await sandbox.get_process("p")
        printed = b"".join([event.data async for event in process.logs() if isinstance(event, Output)])
        assert printed.decode().split() == [str(number) for number in range(1, 201)]
        await sandbox.destroy()


async def test_an_idle_sandbox_stops_and_a_lifetime_ends_also_while_no_server_runs(other_home: Path) -> None:
    with serving(other_home) as first:
        await first.starter.create("idle", SandboxSpec(idle_timeout=1.0))
        await first.starter.create("mortal", SandboxSpec(lifetime=1.0))
        pids = [await first.runtime("idle"), await first.runtime("mortal")]
        first.kill_all()
    assert await asyncio.to_thread(wait_until_gone, pids) == []
    with serving(other_home) as second:
        assert await second.status("idle") is SandboxStatus.STOPPED
        assert [record.id for record in await asyncio.to_thread(second.directory.list)] == ["idle"]
        await second.starter.destroy("idle")
        await eventually(lambda: left_behind(other_home) == [])


async def test_a_killed_runtime_costs_one_sandbox_which_keeps_its_files(other_home: Path) -> None:
    with serving(other_home) as server:
        other = await server.create("other")
        sandbox = await server.create("x")
        await sandbox.exec("echo kept > file; setsid sleep 1000 &")
        await sandbox.start_process("trap '' TERM; sleep 1000")
        runtime, key = await server.runtime("x"), (await server.record("x")).key
        inside = processes_below(runtime)
        assert len(inside) >= 3
        os.kill(runtime, signal.SIGKILL)
        assert await asyncio.to_thread(wait_until_gone, [runtime, *inside]) == []
        assert (await sandbox.info()).status is SandboxStatus.LOST
        ways = r"`sandbox.restart\(\)`, `cove restart x` or POST /v1/sandboxes/x/restart"
        with pytest.raises(SandboxUnavailable, match=ways) as caught:
            await sandbox.exec("true")
        assert caught.value.is_infrastructure_failure
        assert (await other.exec("echo fine")).stdout == "fine\n"
        lost = await server.record("x")
        await asyncio.gather(*(server.starter.start(lost) for _ in range(5)))
        assert (await sandbox.exec("cat file; pgrep sleep")).stdout == "kept\n"
        assert (await server.record("x")).key == key
        for each in (sandbox, other):
            await each.destroy()
        assert left_behind(other_home) == []
        assert not [group for group in control_groups() if os.path.basename(group) == key]


async def test_a_call_whose_runtime_is_killed_is_a_failure_of_ours(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x")
        runtime = await server.runtime("x")
        process = await sandbox.start_process("echo begun; sleep 1000")
        await process.wait_for_log("begun", timeout=20)
        call = asyncio.create_task(sandbox.exec("echo > begun; sleep 1000"))
        await eventually(lambda: next(other_home.glob("sandboxes/*/workspace/begun"), None) is not None)
        os.kill(runtime, signal.SIGKILL)
        with pytest.raises(ConnectionLost) as caught:
            await call
        assert caught.value.is_infrastructure_failure
        await eventually(lambda: server.directory.status(server.directory.find("x")) is SandboxStatus.LOST)  # type: ignore[arg-type]  # it is there
        await sandbox.destroy()


async def test_the_groups_of_a_killed_runtime_are_removed_by_the_next_server_and_its_files_are_not(
    other_home: Path,
) -> None:
    with serving(other_home) as first:
        record = await first.starter.create("x", DEFAULT)
        runtime = await first.runtime("x")
        first.kill_all()
        os.kill(runtime, signal.SIGKILL)
        assert await asyncio.to_thread(wait_until_gone, [runtime]) == []
    with serving(other_home) as second:
        await eventually(lambda: not [group for group in control_groups() if group.endswith(record.key)])
        await eventually(lambda: not second.directory.socket(record).exists())
        assert await second.status("x") is SandboxStatus.LOST
        assert (second.directory.place(record.key) / "workspace").is_dir()
        await second.starter.destroy("x")
        assert left_behind(other_home) == []


async def test_a_sandbox_whose_jail_dies_is_lost_and_can_be_restarted(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x")
        await sandbox.exec("echo kept > file")
        runtime = await server.runtime("x")
        (jail,) = [pid for pid in processes_below(runtime) if _parent(pid) == runtime]
        os.kill(jail, signal.SIGKILL)
        assert await asyncio.to_thread(wait_until_gone, [runtime]) == []
        assert await server.status("x") is SandboxStatus.LOST
        await sandbox.restart()
        assert (await sandbox.exec("cat file")).stdout == "kept\n"
        await sandbox.destroy()


async def test_a_restart_at_the_moment_of_a_loss_holds_or_says_that_nothing_was_started(other_home: Path) -> None:
    with serving(other_home) as server:
        made = await server.create("x")
        await made.exec("echo kept > file")
        for _ in range(5):
            runtime = await server.runtime("x")
            (jail,) = [pid for pid in processes_below(runtime) if _parent(pid) == runtime]
            url = f"unix://{server.directory.socket(await server.record('x'))}"
            async with AsyncSandbox.connect("x", url=url) as sandbox:
                await sandbox.info()  # the connection is there: its request is read together with the loss
                os.kill(runtime, signal.SIGSTOP)
                os.kill(jail, signal.SIGKILL)
                restart = asyncio.ensure_future(sandbox.restart())
                await asyncio.sleep(0.1)
                os.kill(runtime, signal.SIGCONT)
                try:
                    await restart
                except SandboxUnavailable:
                    pass
                else:
                    assert (await sandbox.exec("cat file")).stdout == "kept\n"
                    continue
            assert await asyncio.to_thread(wait_until_gone, [runtime]) == []
            await made.restart()
            assert (await made.exec("cat file")).stdout == "kept\n"
        await made.destroy()


async def test_a_killed_zygote_is_replaced_and_its_sandboxes_live_on(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x")
        zygote = server.zygote()
        os.kill(zygote, signal.SIGKILL)
        await eventually(lambda: "zygote" in [role for pid, role in server.children().items() if pid != zygote])
        assert await _next_line(server) == f"The zygote with pid {zygote} was ended by SIGKILL: another one is started."
        assert (await sandbox.exec("echo fine")).stdout == "fine\n"
        await _create_when_the_zygote_is_ready(server, "y")
        await server.starter.destroy("y")
        await sandbox.destroy()
        assert left_behind(other_home) == []


async def test_killed_workers_are_replaced(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x")
        workers = [pid for pid, role in server.children().items() if role == "worker"]
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        await eventually(lambda: len(set(server.children()) - set(workers)) == 3)
        lines = {await _next_line(server) for _ in workers}
        end = "was ended by SIGKILL: another one is started."
        assert lines == {f"The worker with pid {pid} {end}" for pid in workers}
        for _ in range(2):
            with suppress(CoveError):  # its connection was to a worker that is gone
                await sandbox.exec("true")
        assert (await sandbox.exec("echo fine")).stdout == "fine\n"
        await sandbox.destroy()


async def test_a_server_that_is_told_to_stop_leaves_its_sandboxes_or_ends_them(other_home: Path) -> None:
    with serving(other_home, "--warm", "1") as first:
        await first.starter.create("x", DEFAULT)
        runtime = await first.runtime("x")
        children = list(first.children())
        first.process.terminate()
        assert await asyncio.to_thread(first.process.wait, 30) == 0
        assert await asyncio.to_thread(wait_until_gone, children) == []
        assert is_alive(runtime)
        assert not first.directory.zygote.exists()
    with serving(other_home, "--on-stop", "destroy") as second:
        assert await second.status("x") is SandboxStatus.RUNNING
        second.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(second.process.wait, 30) == 0
        assert await asyncio.to_thread(wait_until_gone, [runtime]) == []
    assert left_behind(other_home) == []


async def test_two_servers_cannot_have_one_state_directory(other_home: Path) -> None:
    with serving(other_home), pytest.raises(AssertionError), serving(other_home):
        pass


async def test_a_runtime_and_the_zygote_hold_no_key_and_no_socket_of_the_gateway(
    other_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVE_API_KEY", "secret-of-this-test")
    with serving(other_home) as server:
        server.key = "secret-of-this-test"
        sandbox = await server.create("x")
        runtime, zygote = await server.runtime("x"), server.zygote()
        for pid in (runtime, zygote):
            assert b"secret-of-this-test" not in Path(f"/proc/{pid}/environ").read_bytes()
            assert _listening(pid) == []
        assert os.getsid(runtime) == runtime
        assert _name(runtime, 2).endswith("runtime.log")
        await sandbox.destroy()


async def test_a_server_that_cannot_listen_says_so_and_leaves_nothing(other_home: Path) -> None:
    before = set(processes_below(os.getpid()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError), serving(other_home, "--port", str(port)):
            pass
    await eventually(lambda: not set(processes_below(os.getpid())) - before)


async def _create_when_the_zygote_is_ready(server: Server, id: str) -> None:
    while True:
        try:
            await server.starter.create(id, DEFAULT)
            return
        except SandboxUnavailable:
            await asyncio.sleep(0.01)


async def _next_line(server: Server) -> str:
    assert server.process.stdout is not None
    return (await asyncio.to_thread(server.process.stdout.readline)).strip()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _name(pid: int, descriptor: int) -> str:
    return os.readlink(f"/proc/{pid}/fd/{descriptor}")


def _listening(pid: int) -> list[str]:
    """The TCP sockets of this machine that listen and that this process has."""
    inodes = {
        line.split()[9]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    names = [_name(pid, int(number)) for number in os.listdir(f"/proc/{pid}/fd")]
    return [name for name in names if name.startswith("socket:[") and name[8:-1] in inodes]
