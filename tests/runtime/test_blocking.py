"""The same API without asyncio: threads, Ctrl-C, iterators that are left, forks, and the end of the program."""

import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.executors import needs_python
from support.programs import places, program, read_line, run_program

from cove import Sandbox, Volume, VolumeMount, api, blocking
from cove.blocking import Process
from cove.blocking.portal import get_portal
from cove.errors import CommandFailed, ProcessNotFound, ProcessWaitTimeout, ValidationFailed
from cove.model import Exit, Output, ProcessStatus
from cove.runtime import sandbox_jail
from cove.runtime.sandbox_lifecycle import SandboxLifecycle

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module", autouse=True)
def portal() -> None:
    """The loop of this program lives as long as the program."""
    get_portal()


def commands(sandbox: Sandbox) -> list[str]:
    return sandbox.exec("pgrep -a sleep").stdout.splitlines()


@contextmanager
def interrupted(sandbox: Sandbox, name: str) -> Iterator[None]:
    """Ctrl-C as soon as that file is there and the main thread waits in a call."""

    def interrupt() -> None:
        sandbox.exec(f"until [ -e {name} ]; do sleep 0.01; done", timeout=30).check()
        while not _main_thread_waits():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # from the start on, it may come at any moment
        thread.start()
        yield
    thread.join()


def _main_thread_waits() -> bool:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    names = [each.f_code.co_filename for each, _ in traceback.walk_stack(frame)]
    return any(name.endswith("blocking/portal.py") for name in names)


def test_commands_run_and_fail_as_they_do_with_asyncio() -> None:
    with Sandbox.create(env={"A": "1"}) as sandbox:
        result = sandbox.exec("echo $A; cat; exit 3", stdin="in")
        assert (result.stdout, result.exit_code) == ("1\nin", 3)
        with pytest.raises(CommandFailed):
            result.check()
        with pytest.raises(ValidationFailed):
            sandbox.exec([])
        sandbox.set_env({"A": "2"})
        assert sandbox.exec("echo $A").stdout == "2\n"
        assert [info.id for info in Sandbox.list()] == [sandbox.id]
        with Sandbox.connect(sandbox.id) as same:
            assert same.exec("echo same").stdout == "same\n"
        assert sandbox.exec("echo alive").stdout == "alive\n"


def test_a_process_is_started_watched_fed_and_ended() -> None:
    with Sandbox.create() as sandbox:
        process = sandbox.start_process("echo up; cat; exit 4", id="one", stdin=True)
        assert process.wait_for_log("up").line == "up"
        assert (process.status, process.pid > 0, process.exit_code) == (ProcessStatus.RUNNING, True, None)
        process.write_stdin("fed\n")
        with pytest.raises(ProcessWaitTimeout):
            process.wait(timeout=0.01)
        process.close_stdin()
        assert (process.wait().exit_code, process.output().stdout) == (4, "up\nfed\n")
        assert [one.id for one in sandbox.list_processes()] == ["one"]
        process = sandbox.get_process("one")
        assert process.refresh() is process
        assert process.exit_code == 4
        assert (sandbox.kill_all_processes(), sandbox.cleanup_processes()) == (0, 1)
        with pytest.raises(ProcessNotFound):
            sandbox.kill_process("one")


def test_logs_are_an_iterator_that_ends_with_the_exit() -> None:
    with Sandbox.create() as sandbox:
        process = sandbox.start_process("echo a; read; echo b", stdin=True)
        logs = process.logs()
        assert next(logs) == Output("stdout", b"a\n", "2")
        process.close_stdin()
        assert [type(event) for event in logs] == [Output, Exit]
        assert list(logs) == []
        assert [event.cursor for event in process.logs(since="2", follow=False)] == ["4", "4"]


def fail_in_the_middle(process: Process) -> None:
    for _ in process.logs():
        raise StopAsyncIteration


@pytest.mark.parametrize("how", ["break", "close", "drop", "error"])
def test_an_iterator_that_is_left_early_frees_its_reader(how: str) -> None:
    with Sandbox.create() as sandbox:
        process = sandbox.start_process("echo a; sleep 1000")
        if how == "break":
            for _ in process.logs():
                break
        elif how == "error":
            with pytest.raises(StopAsyncIteration):
                fail_in_the_middle(process)
        else:
            logs = process.logs()
            next(logs)
            logs.close() if how == "close" else None
            del logs
        gc.collect()
        assert process._inner.log.readers == 0  # type: ignore[attr-defined]
        assert process.status is ProcessStatus.RUNNING


def test_an_iterator_collected_in_the_loops_own_thread_frees_its_reader() -> None:
    with Sandbox.create() as sandbox:
        process = sandbox.start_process("echo a; sleep 1000")
        kept = [process.logs()]
        next(kept[0])

        async def collect() -> None:
            kept.clear()

        get_portal().call(collect)
        sandbox.exec("true")
        assert process._inner.log.readers == 0  # type: ignore[attr-defined]


def test_ctrl_c_ends_the_command_with_all_it_started_and_nothing_else() -> None:
    with Sandbox.create() as sandbox:
        with interrupted(sandbox, "up"):
            sandbox.exec("setsid sleep 1000 & trap '' TERM; touch up; sleep 1001")
        assert commands(sandbox) == []
        assert sandbox.exec("echo usable").stdout == "usable\n"


@pytest.mark.parametrize("wait", ["wait", "output", "wait_for_log", "wait_for_port", "logs", "write_stdin"])
def test_ctrl_c_while_waiting_for_a_process_leaves_it_running(wait: str) -> None:
    with Sandbox.create() as sandbox:
        process = sandbox.start_process("touch up; sleep 1000", stdin=True)
        calls: dict[str, Callable[[], object]] = {
            "wait": process.wait,
            "output": process.output,
            "wait_for_log": lambda: process.wait_for_log("never"),
            "wait_for_port": lambda: process.wait_for_port(3000),
            "logs": lambda: list(process.logs()),
            "write_stdin": lambda: process.write_stdin(b"x" * 1_000_000),
        }
        with interrupted(sandbox, "up"):
            calls[wait]()
        assert process.status is ProcessStatus.RUNNING
        assert process._inner.log.readers == 0  # type: ignore[attr-defined]
        process.kill("KILL")
        assert process.exit_code == 137


@pytest.mark.parametrize(
    ("place", "name"), [(sandbox_jail, "make_groups"), (sandbox_jail, "start_jail"), (SandboxLifecycle, "open")]
)
def test_ctrl_c_while_a_sandbox_is_made_leaves_nothing(
    place: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = getattr(place, name)

    def interrupt(*args: object, **options: object) -> object:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return work(*args, **options)

    monkeypatch.setattr(place, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        Sandbox.create()
    assert Sandbox.list() == []


def test_one_sandbox_serves_many_threads() -> None:
    def work(number: int) -> str:
        process = sandbox.start_process(f"echo {number}; exit {number % 5}")
        lines = b"".join(event.data for event in process.logs() if isinstance(event, Output)).decode()
        return f"{lines.strip()} {process.wait().exit_code} {sandbox.exec(f'echo {number}').stdout.strip()}"

    with Sandbox.create() as sandbox, ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(64))) == [f"{number} {number % 5} {number}" for number in range(64)]


def test_sandboxes_are_made_and_destroyed_in_many_threads() -> None:
    def work(number: int) -> str:
        with Sandbox.create() as sandbox:
            return sandbox.exec(f"echo {number} > x; cat x").stdout

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [f"{number}\n" for number in range(16)]
    assert Sandbox.list() == []


def test_a_call_from_the_loops_own_thread_is_refused_instead_of_waiting_for_itself() -> None:
    with Sandbox.create() as sandbox:

        async def call() -> None:
            sandbox.exec("true")

        with pytest.raises(RuntimeError, match="AsyncSandbox"):
            get_portal().call(call)


def test_a_forked_child_is_told_to_make_its_own_sandbox_and_can(other_home: Path) -> None:
    answer = run_program(
        """
        import os, sys
        from cove import Sandbox, SandboxUnavailable

        with Sandbox.create() as sandbox:
            process = sandbox.start_process("echo a; sleep 1000")
            logs = process.logs()
            next(logs)
            child = os.fork()
            if child == 0:
                for call in (lambda: sandbox.exec("true"), lambda: process.kill(), lambda: next(process.logs())):
                    try:
                        call()
                    except SandboxUnavailable as error:
                        print("refused", "fork" in str(error))
                logs.close()
                print("listed", Sandbox.list())
                with Sandbox.create() as own:
                    print(own.exec("echo own").stdout, end="", flush=True)
                os._exit(0)
            print(os.waitpid(child, 0)[1], process.status, sandbox.exec("echo parent").stdout, end="")
        """,
        other_home,
    )
    assert answer.splitlines() == ["refused True"] * 3 + ["listed []", "own", "0 running parent"]
    assert places(other_home) == []


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "import signal; signal.raise_signal(signal.SIGINT)"])
def test_a_program_that_ends_in_the_middle_of_everything_ends_at_once(ending: str, other_home: Path) -> None:
    text = f"""
import threading
from cove import Sandbox
sandbox = Sandbox.create()
process = sandbox.start_process("echo a; sleep 1000", stdin=True)
logs = process.logs()
next(logs)
threading.Thread(target=process.wait, daemon=True).start()
threading.Thread(target=lambda: list(process.logs()), daemon=True).start()
print(sandbox.exec("true").exit_code, flush=True)
{ending}
"""
    with program(text, other_home) as running:
        assert read_line(running) == "0"
        running.wait(timeout=30)
        assert running.returncode == {"": 0, "raise SystemExit(3)": 3}.get(ending, -signal.SIGINT)
    assert places(other_home) == []


def test_the_blocking_classes_are_made_from_the_asynchronous_ones() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "make_blocking.py"), "--check"]
    answer = subprocess.run(check, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("waiting", "blocked"), [(api.AsyncSandbox, blocking.Sandbox), (api.Process, blocking.Process)]
)
def test_every_call_is_there_with_the_same_parameters(waiting: type, blocked: type) -> None:
    names = [name for name, member in vars(waiting).items() if not name.startswith("_") and callable(member)]
    assert "info" in names or "logs" in names
    for name in names:
        wanted, found = inspect.signature(getattr(waiting, name)), inspect.signature(getattr(blocked, name))
        assert list(found.parameters) == list(wanted.parameters), name


@needs_python
def test_copies_of_contexts_and_sessions_are_blocking_too() -> None:
    with Sandbox.create() as sandbox:
        context = sandbox.create_code_context()
        context.run("x = 1")
        copies = context.fork(2)
        assert [copy.run("x").text for copy in copies] == ["1", "1"]
        copies[0].delete()
        assert len(sandbox.list_code_contexts()) == 2
        session = sandbox.create_session()
        session.exec("x=1")
        assert session.fork().exec("echo $x").stdout == "1\n"


def test_volumes_are_made_mounted_and_deleted() -> None:
    made = Volume.create("blocking")
    try:
        with Sandbox.create() as sandbox:
            sandbox.mounts.add(VolumeMount(volume="blocking", target="/data"))
            assert sandbox.exec("echo x > /data/x; cat /data/x").stdout == "x\n"
            assert [mount.target for mount in sandbox.mounts.list()] == ["/data"]
            sandbox.mounts.remove("/data")
        assert [info.name for info in Volume.list()] == ["blocking"]
        assert Volume.get("blocking").info().name == made.name
    finally:
        made.delete()
