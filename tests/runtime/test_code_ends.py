"""How contexts end, and what is left: interruptions, crashes, deletions, cancellations."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support.executors import executors, fork_servers, needs_python
from support.inside import commands_inside

from cove import (
    AsyncSandbox,
    ContextAlreadyExists,
    ContextCrashed,
    ContextNotFound,
    FileNotFound,
    InterpreterNotReady,
    LimitExceeded,
    Limits,
    Outcome,
    SandboxDestroyed,
    SpawnFailed,
    Text,
    UnsupportedLanguage,
    ValidationFailed,
)
from cove.api import CodeContext
from cove.runtime.code_context import _INTERRUPT_SECONDS, _INTERRUPTS
from cove.runtime.code_contexts import CodeContexts

pytestmark = [pytest.mark.anyio, needs_python]

INTERRUPTION_SECONDS = _INTERRUPTS * _INTERRUPT_SECONDS


async def running(context: CodeContext, code: str) -> "asyncio.Task[object]":
    """Run code that prints a line when it has started."""
    started = asyncio.Event()

    async def run() -> object:
        events = []
        async for event in context.stream(code):
            events.append(event)
            started.set()
        return events

    task = asyncio.create_task(run())
    await started.wait()
    return task


LOOPS = [
    "while True: pass",
    "import time; time.sleep(1000)",
    "import asyncio; await asyncio.sleep(1000)",
    "!sleep 1000",
    "import os; os.system('sleep 1000')",
    "import subprocess; subprocess.run(['sleep', '1000'])",
    "import threading; threading.Event().wait()",
    "while True: display('x' * 10000)",
    "try:\n    while True: __import__('time').sleep(1000)\nexcept KeyboardInterrupt:\n    print('caught')",
]


async def test_a_timeout_interrupts_and_keeps_the_state() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await context.run("kept = 'kept'")
        for code in LOOPS:
            execution = await context.run(f"print('partial')\n{code}", timeout=0.2)
            assert execution.outcome is Outcome.TIMED_OUT, code
            assert execution.stdout.startswith("partial\n"), code
            assert ("caught" in execution.stdout) == ("caught" in code)
            assert execution.error is None or "/executor" not in execution.error.traceback
            assert (await context.run("kept")).text == "'kept'", code
        assert await commands_inside(sandbox) == []


async def test_a_timeout_that_is_over_at_once_ends_that_run_and_no_other() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        for number in range(20):
            await context.run("while True: pass", timeout=number * 0.0002)
            assert (await context.run(f"sum(range(20_000)); {number}")).text == str(number)


async def test_code_that_ignores_interruptions_is_ended_and_nothing_is_left() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        stubborn = "import subprocess; subprocess.Popen(['sleep', '1000'])\nprint('on')\nwhile True:\n    try:\n        while True: __import__('time').sleep(1000)\n    except KeyboardInterrupt: pass"  # noqa: E501
        execution = await context.run(stubborn, timeout=0.2)
        assert (execution.outcome, execution.stdout) == (Outcome.TIMED_OUT, "on\n")
        assert 0.2 + INTERRUPTION_SECONDS <= execution.duration < 0.2 + INTERRUPTION_SECONDS + 2
        with pytest.raises(ContextCrashed):
            await context.run("1")
        assert await executors(sandbox) == []
        assert await commands_inside(sandbox) == []
        await context.delete()


async def test_interrupt_stops_what_runs_and_only_that() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await context.interrupt()
        assert (await context.run("x = 1; x")).text == "1"
        task = await running(context, "print('on')\nwhile True: pass")
        following = asyncio.create_task(context.run("x + 1"))
        await context.interrupt()
        events = await task
        assert "KeyboardInterrupt" in str(events)
        assert (await following).text == "2"


async def test_leaving_a_stream_early_interrupts_the_code_and_the_next_run_hears_nothing_of_it() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        for code in ("print('a', flush=True)\nwhile True: pass", "print('a')\nprint('b')\n1"):
            async for event in context.stream(code):
                assert event == Text("stdout", "a\n") or "a\nb\n" in str(event) or event == Text("stdout", "a\nb\n")
                break
            execution = await context.run("print('next'); 2")
            assert (execution.stdout, execution.text) == ("next\n", "2")


CRASHES = [
    "import os; os._exit(3)",
    "import ctypes; ctypes.string_at(0)",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import os; os.closerange(3, 10_000)",
    "import os\nfor fd in range(3, 300):\n    try: os.write(fd, b'garbage of any kind' * 100)\n    except OSError: pass\nwhile True: pass",  # noqa: E501
    "import os\nfor fd in range(3, 300):\n    try: os.write(fd, b'E\\0\\0\\0\\x011' * 2)\n    except OSError: pass\nwhile True: pass",  # noqa: E501
]


async def run_twice(context: CodeContext, code: str) -> None:
    """A forged end may come first: then the next run finds out."""
    await context.run(code, timeout=30)
    await context.run("1")


async def test_an_executor_that_dies_is_noticed_at_once_and_others_go_on() -> None:
    async with AsyncSandbox.create() as sandbox:
        other = await sandbox.create_code_context()
        await other.run("import os; os.mkfifo('/tmp/gate'); kept = 5")
        busy = await running(other, "print('on'); open('/tmp/gate').read(); kept")
        for code in CRASHES:
            context = await sandbox.create_code_context()
            with pytest.raises(ContextCrashed):
                await run_twice(context, code)
            with pytest.raises(ContextCrashed):
                await context.run("1")
            await context.delete()
            with pytest.raises(ContextNotFound):
                await sandbox.get_code_context(context.id)
            assert len(await executors(sandbox)) == 1
        await sandbox.exec("echo > /tmp/gate")
        await busy
        assert (await other.run("kept")).text == "5"


async def test_an_executor_killed_from_outside_is_noticed_idle_or_running() -> None:
    async with AsyncSandbox.create() as sandbox:
        idle, busy, other = [await sandbox.create_code_context() for _ in range(3)]
        pids = [(await each.run("import os; os.getpid()")).text for each in (idle, busy)]
        task = await running(busy, "print('on')\nwhile True: pass")
        waiting = asyncio.create_task(busy.run("1"))
        await sandbox.exec(f"kill -9 {pids[0]} {pids[1]}")
        for run in (task, waiting, idle.run("1"), idle.run("1"), busy.run("1")):
            with pytest.raises(ContextCrashed, match="crashed"):
                await run
        assert (await other.run("'alive'")).text == "'alive'"
        for context in (idle, busy):
            await context.delete()
            await context.delete()
        assert len(await executors(sandbox)) == 1


async def test_what_a_forked_copy_does_is_not_the_contexts() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        forked = await context.run("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\ndisplay('shown'); 7")
        assert [result.text for result in forked.results] == ["'shown'", "7"]
        pool = "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool: r = pool.map(abs, [-1, -2])\nr"  # noqa: E501
        assert (await context.run(pool)).text == "[1, 2]"
        assert len(await executors(sandbox)) == 1


async def test_deleting_while_code_runs_ends_it_with_everything_it_started() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context(id="mine")
        code = "import subprocess; subprocess.Popen(['setsid', 'sleep', '1000'])\nprint('on')\nwhile True: pass"
        task = await running(context, code)
        waiting = asyncio.create_task(context.run("1"))
        await asyncio.sleep(0)
        await sandbox.delete_code_context("mine")
        with pytest.raises(ContextCrashed, match="deleted"):
            await task
        with pytest.raises((ContextCrashed, ContextNotFound)):
            await waiting
        with pytest.raises(ContextNotFound):
            await sandbox.run_code("1", context="mine")
        with pytest.raises(ContextNotFound):
            await sandbox.delete_code_context("mine")
        assert await executors(sandbox) == []
        assert await commands_inside(sandbox) == []
        again = await sandbox.create_code_context(id="mine")
        assert (await again.run("dir().count('subprocess')")).text == "0"


async def test_a_creation_that_is_cancelled_anywhere_leaves_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        whole = await sandbox.create_code_context()
        steps = 0
        is_complete = False
        while not is_complete:
            creation = asyncio.create_task(sandbox.create_code_context(id="mine"))
            for _ in range(steps):
                await asyncio.sleep(0)
            is_complete = creation.done()
            creation.cancel()
            await asyncio.wait([creation])
            if not creation.cancelled():
                await (await creation).delete()
            assert [each.id for each in await sandbox.list_code_contexts()] == [whole.id]
            steps = steps * 2 + 1
        assert len(await executors(sandbox)) == 1
        assert (await whole.run("1")).text == "1"


async def test_a_first_creation_that_is_cancelled_does_not_disturb_who_waits_for_the_same() -> None:
    async with AsyncSandbox.create() as sandbox:
        first, second = [asyncio.create_task(sandbox.create_code_context()) for _ in range(2)]
        await asyncio.sleep(0)
        first.cancel()
        context = await second
        assert (await context.run("1 + 1")).text == "2"
        assert len(await fork_servers(sandbox)) == len(await executors(sandbox)) == 1


async def test_a_fork_server_that_is_killed_is_replaced_and_other_surfaces_do_not_notice() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        process = await sandbox.start_process("sleep 1000")
        context = await sandbox.create_code_context()
        (server,) = await fork_servers(sandbox)
        task = await running(context, "print('on')\nwhile True: pass")
        await session.exec(f"x=5; kill -9 {server}")
        with pytest.raises(ContextCrashed):
            await task
        fresh = await sandbox.create_code_context()
        assert (await fresh.run("1 + 1")).text == "2"
        assert (await sandbox.run_code("2 + 2")).text == "4"
        assert (await session.exec("echo $x")).stdout == "5\n"
        assert (await process.refresh()).status == "running"
        with pytest.raises(ContextCrashed):
            await context.run("1")
        await context.delete()
        assert len(await fork_servers(sandbox)) == 1


async def test_destroying_the_sandbox_ends_runs_and_creations_in_flight() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        task = await running(context, "print('on')\nwhile True: pass")
        borrowed = asyncio.create_task(sandbox.run_code("while True: pass"))
        creation = asyncio.create_task(sandbox.create_code_context())
        await asyncio.sleep(0)
        await sandbox.destroy()
        for each in (task, borrowed, creation):
            with pytest.raises(SandboxDestroyed):
                await each


async def test_a_run_in_flight_says_that_its_sandbox_was_restarted() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        task = await running(context, "print('on')\nwhile True: pass")
        await sandbox.restart()
        for run in (task, context.run("1")):
            with pytest.raises(ContextCrashed, match="was restarted"):
                await run


async def test_a_deletion_that_meets_the_end_of_the_fork_server_comes_to_an_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        inner: CodeContexts = sandbox._surfaces.contexts  # type: ignore[attr-defined]
        assert inner._servers._current is not None
        deletion = asyncio.create_task(context.delete())
        for _ in range(2):
            await asyncio.sleep(0)  # the killing is under way and has not made its first step
        await inner._servers._current.result().spawner.background.aclose()
        async with asyncio.timeout(20):
            await deletion


Attempt = Callable[[AsyncSandbox], Awaitable[object]]
REFUSED: list[tuple[Attempt, type[Exception], str]] = [
    (lambda sandbox: sandbox.create_code_context("cobol"), UnsupportedLanguage, "python, javascript, typescript"),
    (lambda sandbox: sandbox.run_code("1", language="Python"), UnsupportedLanguage, "python, javascript"),
    (lambda sandbox: sandbox.create_code_context(id="a/b"), ValidationFailed, "context"),
    (lambda sandbox: sandbox.create_code_context(id=""), ValidationFailed, "context"),
    (lambda sandbox: sandbox.create_code_context(id="taken"), ContextAlreadyExists, "taken"),
    (lambda sandbox: sandbox.create_code_context(timeout=-1), ValidationFailed, "timeout"),
    (lambda sandbox: sandbox.create_code_context(env={"A=B": "x"}), ValidationFailed, "A=B"),
    (lambda sandbox: sandbox.create_code_context(cwd="/nowhere"), FileNotFound, "/nowhere"),
    (lambda sandbox: sandbox.run_code("1", context="absent"), ContextNotFound, "absent"),
    (lambda sandbox: sandbox.run_code(5), ValidationFailed, "string"),  # type: ignore[arg-type]
    (lambda sandbox: sandbox.run_code("'\ud800'"), ValidationFailed, "Unicode"),
]


async def test_what_cannot_be_is_refused_and_leaves_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.create_code_context(id="taken")
        for attempt, error, message in REFUSED:
            with pytest.raises(error, match=message):
                await attempt(sandbox)
        assert [each.id for each in await sandbox.list_code_contexts()] == ["taken"]
        assert len(await executors(sandbox)) <= 2


async def test_of_two_creations_with_one_id_one_wins() -> None:
    async with AsyncSandbox.create() as sandbox:
        results = await asyncio.gather(
            *(sandbox.create_code_context(id="mine") for _ in range(5)), return_exceptions=True
        )
        assert sum(isinstance(each, ContextAlreadyExists) for each in results) == 4
        assert len(await executors(sandbox)) == 1


async def test_a_limit_counts_contexts_of_one_language_also_while_they_are_made() -> None:
    async with AsyncSandbox.create(limits=Limits(contexts=2)) as sandbox:
        assert (await sandbox.info()).limits_enforced == ("contexts",)
        results = await asyncio.gather(*(sandbox.create_code_context() for _ in range(4)), return_exceptions=True)
        made = [each for each in results if isinstance(each, CodeContext)]
        assert [type(each) for each in results].count(LimitExceeded) == len(made) == 2
        await made[0].delete()
        await sandbox.create_code_context()
        with pytest.raises(LimitExceeded):
            await sandbox.create_code_context()


async def test_a_python_that_is_killed_while_it_starts_is_not_called_missing() -> None:
    async with AsyncSandbox.create() as sandbox:
        killing = asyncio.ensure_future(sandbox.exec("until pkill -9 -f [e]xecutor/server.py; do :; done", timeout=30))
        with pytest.raises(SpawnFailed, match="killed before it was ready"):
            await sandbox.create_code_context()
        assert (await killing).ok
        assert (await sandbox.run_code("1 + 1")).text == "2"


async def test_without_an_environment_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncSandbox.create() as sandbox:
        inner: CodeContexts = sandbox._surfaces.contexts  # type: ignore[attr-defined]
        monkeypatch.setattr(inner._servers, "_interpreters", replace(inner._interpreters, pythons=()))
        for attempt in (sandbox.create_code_context(), sandbox.run_code("1")):
            with pytest.raises(InterpreterNotReady, match="cove setup"):
                await attempt
