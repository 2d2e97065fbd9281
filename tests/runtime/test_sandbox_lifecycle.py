"""A sandbox from creation to destruction."""

import asyncio
import errno
import gc
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest
from support.event_loops import turns as turns_of_the_loop
from support.inside import init_below
from support.programs import wait_until_gone

import cove
from cove import AsyncSandbox, Limits, Mount, Outcome, SandboxSpec
from cove.client import retry
from cove.errors import (
    ConnectionLost,
    FileNotFound,
    PermissionDenied,
    SandboxAlreadyExists,
    SandboxDestroyed,
    SandboxNotFound,
    SandboxUnavailable,
    SpawnFailed,
    ValidationFailed,
)
from cove.runtime import sessions
from cove.runtime.machine import examine_machine
from cove.runtime.provider import EmbeddedProvider
from cove.runtime.sandbox import Sandbox
from cove.runtime.shell_channel import ShellChannel

pytestmark = pytest.mark.anyio

IS_ROOT = os.geteuid() == 0
ROOT_ONLY = pytest.mark.skipif(not IS_ROOT, reason="needs root: a plain user's sandboxes are that user outside")


async def test_a_sandbox_can_be_awaited_or_entered() -> None:
    sandbox = await AsyncSandbox.create()
    assert (await sandbox.exec("echo a")).stdout == "a\n"
    await sandbox.destroy()
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.exec("echo b")).stdout == "b\n"
    with pytest.raises(SandboxDestroyed):
        await sandbox.exec("true")


async def test_info_tells_what_the_sandbox_is_and_what_the_machine_made_possible() -> None:
    async with AsyncSandbox.create(id="known", labels={"a": "b"}, network="host") as sandbox:
        info = await sandbox.info()
        assert (info.id, info.status, info.isolation) == ("known", "running", "bubblewrap")
        assert (info.spec.labels, info.spec.network) == ({"a": "b"}, "host")
        assert info.created_at.utcoffset() is not None
        assert info.tree_kill in ("cgroup", "subreaper")


async def test_tree_kill_says_whether_there_is_a_control_group() -> None:
    async with AsyncSandbox.create() as sandbox:
        info = await sandbox.info()
        group = sandbox._jail.groups.tree  # type: ignore[attr-defined]
        assert (info.tree_kill == "cgroup") == (group is not None)
        if group is not None:
            assert os.path.isdir(group.path)


@pytest.mark.alone  # RLIMIT_NPROC counts all processes of a user
async def test_limits_are_enforced_or_named_in_the_warnings() -> None:
    limits = Limits(memory=256 << 20, pids=64, cpus=1.0)
    async with AsyncSandbox.create(limits=limits) as sandbox:
        info = await sandbox.info()
        assert {"memory", "pids", "cpus"} == set(info.limits_enforced) | {
            name for name in ("memory", "pids", "cpus") if any(name in warning for warning in info.warnings)
        }
        if "pids" in info.limits_enforced:
            filled = await sandbox.exec(["python3", "-c", FORK], timeout=60)
            assert "Resource temporarily unavailable" in filled.stderr
            if not any("RLIMIT_NPROC" in warning for warning in info.warnings):  # which holds for commands only
                with pytest.raises(SpawnFailed, match="temporarily unavailable"):
                    await asyncio.gather(*(sandbox.exec("true", timeout=10) for _ in range(10)))
            assert (await sandbox.info()).status == "running"


FORK = """
import os, sys, time
try:
    while True:
        if not os.fork(): time.sleep(1000)
except OSError as error:
    sys.exit(error.strerror)
"""


@pytest.mark.parametrize("id", ["", "A", "a_b", "../x", "-a", "a" * 129, 5])
async def test_a_bad_id_is_refused(id: object) -> None:
    with pytest.raises(ValidationFailed, match="sandbox id"):
        await AsyncSandbox.create(id=id)  # type: ignore[arg-type]


async def test_an_id_is_taken_until_the_sandbox_is_destroyed() -> None:
    async with AsyncSandbox.create(id="taken"):
        with pytest.raises(SandboxAlreadyExists, match="taken"):
            await AsyncSandbox.create(id="taken")
    async with AsyncSandbox.create(id="taken"):
        pass


async def test_of_many_creations_with_one_id_exactly_one_wins() -> None:
    results = await asyncio.gather(
        *(asyncio.ensure_future(_made(AsyncSandbox.create(id="one"))) for _ in range(8)), return_exceptions=True
    )
    made = [result for result in results if isinstance(result, AsyncSandbox)]
    assert len(made) == 1
    assert sum(isinstance(result, SandboxAlreadyExists) for result in results) == 7
    await made[0].destroy()


async def _made(opening: Awaitable[AsyncSandbox]) -> AsyncSandbox:
    return await opening


async def test_a_destroyed_id_is_free_at_once() -> None:
    sandbox = await AsyncSandbox.create(id="free")
    destroying = asyncio.ensure_future(sandbox.destroy())
    await asyncio.sleep(0)
    async with AsyncSandbox.create(id="free"):
        await destroying


async def test_sandboxes_of_this_program_are_listed_and_found() -> None:
    assert await AsyncSandbox.list() == []
    async with AsyncSandbox.create(id="a") as a, AsyncSandbox.create(id="b"):
        assert [info.id for info in await AsyncSandbox.list()] == ["a", "b"]
        found = await AsyncSandbox.connect("a")
        assert found.id == a.id
        await a.exec("echo x > f")
        assert (await found.exec("cat f")).stdout == "x\n"
    assert await AsyncSandbox.list() == []
    with pytest.raises(SandboxNotFound, match="a"):
        await AsyncSandbox.connect("a")


async def test_destroy_can_be_called_any_number_of_times_and_at_once() -> None:
    sandbox = await AsyncSandbox.create()
    await asyncio.gather(*(sandbox.destroy() for _ in range(10)))
    await sandbox.destroy()


async def test_destroy_ends_running_calls_with_an_error_that_says_so() -> None:
    sandbox = await AsyncSandbox.create()
    calls = [asyncio.ensure_future(sandbox.exec(f"echo > /tmp/up{at}; trap '' TERM; sleep 1000")) for at in range(5)]
    await sandbox.exec(
        "until [ -e /tmp/up0 -a -e /tmp/up1 -a -e /tmp/up2 -a -e /tmp/up3 -a -e /tmp/up4 ]; do :; done", timeout=30
    )
    await sandbox.destroy()
    for call in calls:
        with pytest.raises(SandboxDestroyed):
            await asyncio.wait_for(call, 30)
    with pytest.raises(SandboxDestroyed):
        await sandbox.exec("true")


async def test_destroy_while_calls_are_being_made_ends_each_of_them() -> None:
    for turns in (0, 1, 2, 5, 20):
        sandbox = await AsyncSandbox.create()
        calls = [asyncio.ensure_future(sandbox.exec("sleep 1000")) for _ in range(20)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await sandbox.destroy()
        for result in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60):
            assert isinstance(result, SandboxDestroyed)


async def test_background_processes_end_with_the_sandbox() -> None:
    sandbox = await AsyncSandbox.create()
    await sandbox.exec("for i in $(seq 20); do setsid sleep 1000 & done; yes > /dev/null &")
    await sandbox.destroy()


HOSTILE = r"""
import os
os.chdir('/workspace')
for at in range(5000):
    os.mkdir('d'); os.chdir('d')
os.chdir('/workspace')
os.makedirs('locked/inner'); open('locked/inner/f', 'w').close()
os.chmod('locked/inner', 0); os.chmod('locked', 0)
os.makedirs('readonly/inner'); open('readonly/f', 'w').close()
os.chmod('readonly/inner', 0o500); os.chmod('readonly', 0o500)
open('new\nline', 'w').close(); os.mkdir('also\nthis')
open(os.fsdecode(b'\xff\xfe'), 'w').close(); os.mkdir('-rf'); open(' ', 'w').close()
os.symlink('/', 'root'); os.symlink('/etc/passwd', 'file'); os.symlink('loop', 'loop')
os.mkfifo('fifo')
import socket; socket.socket(socket.AF_UNIX).bind('socket')
for at in range(2000): open(f'many-{at}', 'w').close()
os.chmod('/workspace', 0); os.chmod('/home/user', 0); os.chmod('/tmp', 0)
"""


async def test_destroy_removes_a_hostile_tree(cove_home: Path) -> None:
    sandbox = await AsyncSandbox.create()
    (await sandbox.exec(["python3", "-c", HOSTILE], cwd="/")).check()
    place = sandbox._place.path  # type: ignore[attr-defined]
    await sandbox.destroy()
    assert not place.exists()
    assert Path("/etc/passwd").exists()


async def test_destroy_leaves_what_a_link_points_to_alone(tmp_path: Path) -> None:
    outside = Path(tempfile.mkdtemp(prefix="cove-outside-", dir="/tmp"))
    try:
        (outside / "kept").write_text("x")
        mode = outside.stat().st_mode
        sandbox = await AsyncSandbox.create()
        await sandbox.exec(f"ln -s {outside} link; ln -s {outside}/kept file; mkdir d; ln -s {outside} d/link")
        await sandbox.destroy()
        assert (outside / "kept").read_text() == "x"
        assert outside.stat().st_mode == mode
    finally:
        (outside / "kept").unlink()
        outside.rmdir()


async def test_without_isolation_the_same_agent_runs_and_says_so_loudly() -> None:
    async with AsyncSandbox.create(isolation="none") as sandbox:
        info = await sandbox.info()
        assert info.isolation == "none"
        assert any("no isolation" in warning for warning in info.warnings)
        result = await sandbox.exec("pwd; echo $HOME; id -u; echo x > f; cat f")
        lines = result.stdout.split()
        assert lines[0].endswith("/workspace")
        assert (lines[1].endswith("/home"), lines[2], lines[3]) == (True, str(os.geteuid()), "x")
        assert (await sandbox.exec("nosuchprogram")).exit_code == 127
        timed_out = await sandbox.exec("setsid sleep 1000 & trap '' TERM; sleep 1000", timeout=0.2)
        assert timed_out.outcome == "timed_out"
        await sandbox.exec("sleep 1000 & (setsid sleep 2000 &)")


async def test_without_isolation_nothing_outlives_a_killed_agent() -> None:
    async with AsyncSandbox.create(isolation="none") as sandbox:
        if (await sandbox.info()).tree_kill != "cgroup":
            pytest.skip("needs a control group this user may write to")
        call = asyncio.ensure_future(sandbox.exec("echo > up; sleep 3000"))
        await sandbox.exec("until [ -e up ]; do :; done", timeout=30)
        started = await sandbox.exec("sleep 1000 & echo $!; setsid sleep 2000 & echo $!")
        os.kill(sandbox._jail.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        assert (await asyncio.wait_for(call, 30)).outcome == "lost"
    assert wait_until_gone([int(pid) for pid in started.stdout.split()]) == []


async def test_isolation_is_never_left_out_silently_when_bubblewrap_is_missing() -> None:
    embedded = EmbeddedProvider()
    embedded._machine = replace(await asyncio.to_thread(examine_machine), bubblewrap=None)
    with pytest.raises(SandboxUnavailable, match="apt install bubblewrap"):
        await embedded.create(None, SandboxSpec())
    assert await embedded.list() == []


@pytest.mark.parametrize("reason", ["", "bwrap: No permissions to create new namespace"])
async def test_a_refusal_of_bubblewrap_is_passed_on_and_leaves_nothing(reason: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="cove-fake-", dir="/tmp"))
    folder.chmod(0o755)
    fake = folder / "bwrap"
    fake.write_text(f"#!/bin/sh\necho '{reason}' >&2\nexit 1\n")
    fake.chmod(0o755)
    embedded = EmbeddedProvider()
    embedded._machine = replace(await asyncio.to_thread(examine_machine), bubblewrap=str(fake))
    try:
        with pytest.raises(SandboxUnavailable, match="did not start") as caught:
            await embedded.create("refused", SandboxSpec())
        assert reason in caught.value.message
        with pytest.raises(SandboxUnavailable):
            await embedded.create("refused", SandboxSpec())
    finally:
        fake.unlink()
        folder.rmdir()


async def test_a_server_that_is_not_there_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.2)
    with pytest.raises(SandboxUnavailable, match="cove serve"):
        await AsyncSandbox.create(url="http://127.0.0.1:1")
    monkeypatch.setenv("COVE_URL", "http://127.0.0.1:1")
    with pytest.raises(SandboxUnavailable, match="cove serve"):
        await AsyncSandbox.create()


@pytest.mark.parametrize("url", ["localhost:8787", "ftp://127.0.0.1", "127.0.0.1"])
async def test_what_is_not_the_address_of_a_server_is_said_to_be_none(
    url: str, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(ValidationFailed, match="write it as http"):
        await AsyncSandbox.create(url=url)
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


@ROOT_ONLY
async def test_a_state_directory_that_sandboxes_cannot_reach_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setenv("COVE_HOME", str(closed / "home"))
    with pytest.raises(SandboxUnavailable, match="COVE_HOME"):
        await EmbeddedProvider().create(None, SandboxSpec())


async def test_a_workdir_that_the_caller_chose_is_where_commands_run() -> None:
    async with AsyncSandbox.create(workdir="/tmp") as sandbox:
        assert (await sandbox.exec("pwd")).stdout == "/tmp\n"


@pytest.fixture
def shared() -> "object":
    path = Path(tempfile.mkdtemp(prefix="cove-shared-", dir="/tmp"))
    path.chmod(0o755)
    (path / "file").write_text("from the host\n")
    yield path
    for entry in path.iterdir():
        entry.unlink()
    path.rmdir()


async def test_a_mount_is_read_only_unless_asked_for(shared: Path) -> None:
    async with AsyncSandbox.create(mounts=[Mount(source=str(shared), target="/data")]) as sandbox:
        assert (await sandbox.exec("cat /data/file")).stdout == "from the host\n"
        assert (await sandbox.exec("touch /data/new")).exit_code == 1
    shared.chmod(0o777)
    mounts = [Mount(source=str(shared), target="/workspace/out", read_only=False)]
    async with AsyncSandbox.create(mounts=mounts) as sandbox:
        assert (await sandbox.exec("echo x > out/new")).exit_code == 0
    assert (shared / "new").read_text() == "x\n"
    assert stat.S_IMODE(shared.stat().st_mode) == 0o777


async def test_a_mount_is_judged_by_where_it_leads(shared: Path, cove_home: Path) -> None:
    (shared / "link").symlink_to("/proc")
    (shared / "state").symlink_to(cove_home)
    for name in ("link", "state"):  # as root, who alone can place links there, they are followed and judged
        with pytest.raises(PermissionDenied, match=r"host's system|Cove's own state|symbolic link"):
            await AsyncSandbox.create(mounts=[Mount(source=str(shared / name), target="/data")])
    with pytest.raises(FileNotFound):
        await AsyncSandbox.create(mounts=[Mount(source=str(shared / "missing"), target="/data")])


async def test_a_socket_is_not_mounted(shared: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shared / "socket"))
        with pytest.raises(PermissionDenied, match="socket"):
            await AsyncSandbox.create(mounts=[Mount(source=str(shared / "socket"), target="/data")])


@ROOT_ONLY
async def test_a_mount_that_the_sandboxs_user_cannot_reach_is_refused_by_name(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "open").mkdir(parents=True)
    closed.chmod(0o700)
    with pytest.raises(PermissionDenied) as caught:
        await AsyncSandbox.create(mounts=[Mount(source=str(closed / "open"), target="/data")])
    assert any(str(folder) in caught.value.message for folder in (closed, *closed.parents[:-2]))


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.slow)])
async def test_many_sandboxes_live_at_once(count: int) -> None:
    sandboxes = await asyncio.gather(*(_made(AsyncSandbox.create(id=f"n{at}")) for at in range(count)))
    try:
        results = await asyncio.gather(*(sandbox.exec(f"echo {sandbox.id}") for sandbox in sandboxes))
        assert [result.stdout.strip() for result in results] == [sandbox.id for sandbox in sandboxes]
        assert len(await AsyncSandbox.list()) == count
    finally:
        await asyncio.gather(*(sandbox.destroy() for sandbox in sandboxes))


async def test_uvloop_serves_as_well() -> None:
    import subprocess
    import sys

    pytest.importorskip("uvloop")
    program = (
        "import asyncio, uvloop\nfrom cove import AsyncSandbox\n"
        "async def main():\n  async with AsyncSandbox.create() as s:\n"
        "    r = await s.exec('cat; yes | head -c 3000000 | wc -c; sleep 1000', stdin='in ', timeout=0.5)\n"
        "    print(r.stdout, r.outcome)\nuvloop.run(main())"
    )
    answer = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout.split() == ["in", "3000000", "timed_out"], answer.stderr
    assert cove.__version__


async def test_a_restart_ends_everything_and_keeps_the_files() -> None:
    async with AsyncSandbox.create(env={"A": "1"}) as sandbox:
        session = await sandbox.create_session(id="s")
        await session.exec("echo kept > /workspace/file; echo tmp > /tmp/file; cd /tmp")
        process = await sandbox.start_process("sleep 1000", id="p")
        await sandbox.terminal(id="t")
        pending = asyncio.ensure_future(sandbox.exec("touch begun; sleep 1000"))
        await sandbox.exec("until [ -e begun ]; do :; done")
        await asyncio.gather(sandbox.restart(), sandbox.restart())
        assert (await pending).outcome is Outcome.STOPPED
        assert (await process.wait()).outcome is Outcome.STOPPED
        assert not [*await sandbox.list_terminals(), *await sandbox.list_processes()]
        assert (await sandbox.exec("cat file /tmp/file; pgrep sleep; echo $A")).stdout == "kept\ntmp\n1\n"
        assert (await session.exec("pwd")).stdout == "/tmp\n"
        assert await sandbox.files.read("file") == b"kept\n"


TWO_LOOPS = """
import asyncio
from cove import AsyncSandbox, CoveError

async def create():
    return await AsyncSandbox.create(id="of-another-loop")

async def use(sandbox):
    try:
        await sandbox.exec("true")
    except CoveError as error:
        print(error.code, error)

sandbox = asyncio.run(create())
asyncio.run(use(sandbox))
asyncio.run(sandbox.destroy())
asyncio.run(use(sandbox))
asyncio.run(use(asyncio.run(create())))
"""


async def test_a_sandbox_belongs_to_its_event_loop_and_can_be_destroyed_without_it() -> None:
    end = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", TWO_LOOPS], capture_output=True, text=True, timeout=60
    )
    elsewhere = "belongs to the event loop it was created in: use it there, or take cove.Sandbox"
    assert end.stdout.splitlines() == [
        f"VALIDATION_FAILED sandbox of-another-loop {elsewhere}",
        "SANDBOX_DESTROYED sandbox of-another-loop was destroyed",
        f"VALIDATION_FAILED sandbox of-another-loop {elsewhere}",
    ]
    assert end.stderr == ""


async def test_calls_in_flight_say_that_their_sandbox_was_restarted() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("x", b"a" * 40 + b"\n")
        session = await sandbox.create_session()
        in_session = asyncio.ensure_future(session.exec("touch begun; sleep 1000"))
        searching = asyncio.ensure_future(sandbox.files.search(r"(a*)*b"))
        await sandbox.exec("until [ -e begun ] && pgrep -f errand[.]pyc; do :; done")
        starting = asyncio.ensure_future(sandbox.create_session())
        await asyncio.sleep(0)
        await sandbox.restart()
        assert (await in_session).outcome is Outcome.STOPPED
        for call in (searching, starting):
            with pytest.raises((ConnectionLost, SandboxUnavailable), match="was restarted"):
                await call
        assert (await session.exec("echo on")).stdout == "on\n"


@pytest.mark.parametrize("restarts", [True, False])
async def test_a_session_whose_files_cannot_be_made_says_why(restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def open_late(*args: object) -> ShellChannel:
        assert go_on.wait(30)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sessions, "open_channel", open_late)
    async with AsyncSandbox.create() as sandbox:
        starting = asyncio.ensure_future(sandbox.create_session())
        await asyncio.sleep(0)
        if restarts:
            await sandbox.restart()
        go_on.set()
        expected = (SandboxUnavailable, "was restarted") if restarts else (SpawnFailed, "No space left on device")
        with pytest.raises(expected[0], match=expected[1]):
            await starting


@pytest.mark.parametrize("how", ["lost", "restarted", "destroyed"])
async def test_a_request_that_was_not_answered_says_what_became_of_its_sandbox(how: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        agent = init_below(os.getpid())
        os.kill(agent, signal.SIGSTOP)
        asking = asyncio.ensure_future(sandbox.files.stat("/"))
        await asyncio.sleep(0)
        if how == "lost":
            os.kill(agent, signal.SIGKILL)
        else:
            ending = asyncio.ensure_future(sandbox.restart() if how == "restarted" else sandbox.destroy())
            await asyncio.wait([asking])
            await ending
        with pytest.raises(SandboxDestroyed if how == "destroyed" else ConnectionLost, match=f"was {how}"):
            await asking


async def test_a_lost_sandbox_can_be_restarted_with_its_files() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("file", "kept")
        os.kill(sandbox._jail.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        await sandbox._jail.exited  # type: ignore[attr-defined]
        await sandbox.restart()
        assert (await sandbox.exec("cat file")).stdout == "kept"
        assert (await sandbox.info()).status == "running"


async def test_one_whose_process_only_ends_is_not_said_to_be_destroyed() -> None:
    sandbox = await AsyncSandbox.create()
    assert isinstance(sandbox, Sandbox)
    await sandbox.close()  # as the process of a server's sandbox does that was lost
    for change in (sandbox.restart, sandbox.start, sandbox.stop, sandbox.pause):
        with pytest.raises(SandboxUnavailable, match="its files are kept"):
            await change()
    await sandbox.destroy()
    with pytest.raises(SandboxDestroyed):
        await sandbox.restart()


async def test_who_attaches_to_a_jail_that_has_ended_may_try_again() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        jail = sandbox._jail
        await sandbox.stop()
        with pytest.raises(SandboxUnavailable, match="has ended"):
            await jail.attach([])


async def test_a_sandbox_can_be_destroyed_while_it_restarts_and_not_restarted_after() -> None:
    sandbox = await AsyncSandbox.create()
    restarting = asyncio.ensure_future(sandbox.restart())
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(sandbox.exec("true"))
    await asyncio.sleep(0)
    await sandbox.destroy()
    await asyncio.wait([restarting, waiting])
    assert isinstance(waiting.exception(), SandboxDestroyed)
    assert restarting.exception() is None or isinstance(restarting.exception(), SandboxDestroyed)
    with pytest.raises(SandboxDestroyed):
        await sandbox.restart()


async def test_a_call_that_a_destruction_ends_is_told_so_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = await AsyncSandbox.create()
    loop = asyncio.get_running_loop()
    init = init_below(os.getpid())

    def dawdle() -> None:
        """All inside has ended, and the event loop has seen what there is to see of it."""
        wait_until_gone([init])
        asyncio.run_coroutine_threadsafe(turns_of_the_loop(), loop).result()

    monkeypatch.setattr(sandbox.layers, "end_copy", dawdle)  # type: ignore[attr-defined]  # of the runtime's
    calling = asyncio.ensure_future(sandbox.exec("touch begun; sleep 1000"))
    while not await sandbox.files.exists("begun"):
        await asyncio.sleep(0)
    await sandbox.destroy()
    with pytest.raises(SandboxDestroyed):
        await calling
