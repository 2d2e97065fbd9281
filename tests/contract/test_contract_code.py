"""Code contexts, whatever way the sandbox is reached."""

import asyncio
from contextlib import aclosing

import pytest
from support.executors import needs_python
from support.inside import commands_inside
from support.serving import MakeSandbox

from cove import (
    ContextAlreadyExists,
    ContextCrashed,
    ContextNotFound,
    Display,
    Done,
    Failure,
    FileNotFound,
    ForkRefused,
    Outcome,
    Text,
    UnsupportedLanguage,
    ValidationFailed,
)

pytestmark = [pytest.mark.anyio, needs_python]


async def test_what_one_run_defines_the_next_one_finds(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context()
        assert context.language == "python"
        await context.run("x = 41")
        execution = await context.run("print('out'); import sys; print('err', file=sys.stderr); x + 1")
        assert (execution.text, execution.stdout, execution.stderr) == ("42", "out\n", "err\n")
        assert (execution.error, execution.execution_count, execution.outcome) == (None, 2, Outcome.EXITED)
        assert execution.duration > 0


async def test_results_are_mime_bundles(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        code = """
from IPython.display import HTML, JSON, Markdown, display
display(HTML('<b>b</b>'), Markdown('*m*'), JSON({'a': [1, None]}))
class Picture:
    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(range(256))
Picture()
"""
        execution = await sandbox.run_code(code)
        html, markdown, json, picture = execution.results
        assert (html.html, markdown.markdown, json.json) == ("<b>b</b>", "*m*", {"a": [1, None]})
        assert picture.is_main
        assert picture.png == b"\x89PNG\r\n\x1a\n" + bytes(range(256))


async def test_an_error_in_the_code_is_a_result(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context()
        execution = await context.run("1 / 0")
        assert execution.error is not None
        assert (execution.error.name, execution.error.message) == ("ZeroDivisionError", "division by zero")
        assert "ZeroDivisionError" in execution.error.traceback
        syntax = await context.run("if")
        assert syntax.error is not None
        assert syntax.error.name == "SyntaxError"
        assert (await context.run("await __import__('asyncio').sleep(0, 'awaited')")).text == "'awaited'"


async def test_events_come_while_the_code_runs(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context()
        await sandbox.exec("mkfifo /tmp/gate")
        async with aclosing(context.stream("print('before')\nopen('/tmp/gate').read()\nprint('after'); 2")) as events:
            assert await anext(events) == Text("stdout", "before\n")
            await sandbox.exec("echo > /tmp/gate")
            rest = [event async for event in events]
        assert rest[0] == Text("stdout", "after\n")
        assert isinstance(rest[1], Display)
        assert rest[1].result.text == "2"
        assert isinstance(rest[-1], Done)
        assert rest[-1].execution_count == 1
        failed = [event async for event in sandbox.stream_code("raise ValueError('x')")]
        assert isinstance(failed[0], Failure)
        assert failed[0].error.name == "ValueError"


async def test_a_reader_that_leaves_interrupts_the_code(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context()
        async with aclosing(context.stream("x = 1; print('up')\nimport time; time.sleep(1000)")) as events:
            await anext(events)
        assert (await context.run("x")).text == "1"


async def test_a_cancelled_run_is_interrupted_and_the_context_goes_on(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context()
        run = asyncio.create_task(context.run("open('/tmp/started', 'w')\nimport time; time.sleep(1000)"))
        await sandbox.exec("until [ -e /tmp/started ]; do sleep 0.01; done", timeout=20)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert (await context.run("'on'", timeout=20)).text == "'on'"


async def test_a_timeout_and_an_interrupt_end_the_run_and_keep_the_context(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context(timeout=0.3)
        await context.run("x = 1")
        execution = await context.run("print('partly'); import time; time.sleep(1000)")
        assert (execution.outcome, execution.stdout) == (Outcome.TIMED_OUT, "partly\n")
        run = asyncio.create_task(context.run("open('/tmp/started', 'w')\ntime.sleep(1000)", timeout=100))
        await sandbox.exec("until [ -e /tmp/started ]; do sleep 0.01; done", timeout=20)
        await context.interrupt()
        interrupted = await run
        assert interrupted.error is not None
        assert interrupted.error.name == "KeyboardInterrupt"
        await context.interrupt()
        assert (await context.run("x")).text == "1"


async def test_contexts_are_made_found_listed_and_deleted(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context(id="c", cwd="/tmp", env={"A": "a"})
        with pytest.raises(ContextAlreadyExists):
            await sandbox.create_code_context(id="c")
        assert (await context.run("import os; os.getcwd(), os.environ['A']")).text == "('/tmp', 'a')"
        (info,) = await sandbox.list_code_contexts()
        assert (info.id, info.language, info.is_running) == ("c", "python", True)
        found = await sandbox.get_code_context("c")
        assert (await found.run("os.getcwd()")).text == "'/tmp'"
        assert (await sandbox.run_code("os.getcwd()", context="c")).text == "'/tmp'"
        assert (await sandbox.run_code("os.getcwd()", context=found)).text == "'/tmp'"
        await sandbox.delete_code_context("c")
        await context.delete()
        for call in (sandbox.get_code_context, sandbox.delete_code_context):
            with pytest.raises(ContextNotFound):
                await call("c")


async def test_wrong_creations_are_refused(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        with pytest.raises(UnsupportedLanguage, match="python"):
            await sandbox.create_code_context("cobol")
        with pytest.raises(UnsupportedLanguage):
            await sandbox.run_code("1", language="cobol")
        with pytest.raises(FileNotFound):
            await sandbox.create_code_context(cwd="/no/such")
        for bad in ("", ".", "a/b", "x" * 129):
            with pytest.raises(ValidationFailed):
                await sandbox.create_code_context(id=bad)
        with pytest.raises(ContextNotFound):
            await sandbox.run_code("1", context="unknown")
        for code in (None, 7, b"1"):
            with pytest.raises(ValidationFailed):
                await sandbox.run_code(code)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ValidationFailed):
            await sandbox.run_code("1", timeout=-1)
        assert await sandbox.list_code_contexts() == []


async def test_contexts_and_borrowed_executors_see_nothing_of_each_other(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        contexts = [await sandbox.create_code_context() for _ in range(3)]
        for number, context in enumerate(contexts):
            await context.run(f"x = {number}; import os; os.chdir('/'); os.environ['X'] = '{number}'")
        assert [(await context.run("x, os.environ['X']")).text for context in contexts] == [
            f"({number}, '{number}')" for number in range(3)
        ]
        for _ in range(2):
            execution = await sandbox.run_code("'x' in globals(), __import__('os').getcwd(); x = 1")
            assert execution.error is None
            assert (await sandbox.run_code("'x' in globals()")).text == "False"


async def test_runs_of_one_context_take_turns_and_different_contexts_run_side_by_side(
    make_sandbox: MakeSandbox,
) -> None:
    async with make_sandbox() as sandbox:
        one = await sandbox.create_code_context()
        await one.run("n = 0")
        code = "m = n; __import__('time').sleep(0.01); n = m + 1"
        await asyncio.gather(*(one.run(code) for _ in range(10)))
        assert (await one.run("n")).text == "10"
        contexts = [await sandbox.create_code_context() for _ in range(4)]
        await sandbox.files.mkdir("/tmp/meeting")
        meet = "import os, time\nopen(f'/tmp/meeting/{os.getpid()}', 'w').close()\n"
        meet += "while len(os.listdir('/tmp/meeting')) < 4: time.sleep(0.01)"
        runs = await asyncio.gather(*(context.run(meet, timeout=60) for context in contexts))
        assert [run.outcome for run in runs] == [Outcome.EXITED] * 4


async def test_an_executor_that_dies_is_noticed_at_once(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context, other = await sandbox.create_code_context(), await sandbox.create_code_context()
        for _ in range(2):
            with pytest.raises(ContextCrashed):
                await context.run("import os; os._exit(3)")
        assert (await other.run("1")).text == "1"
        await context.delete()


async def test_a_context_is_deleted_while_code_runs(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context()
        run = asyncio.create_task(
            context.run(
                "import subprocess; subprocess.Popen(['setsid', 'sleep', '1000']); open('/tmp/up', 'w')\n!sleep 999"
            )
        )
        await sandbox.exec("until [ -e /tmp/up ]; do sleep 0.01; done", timeout=20)
        await context.delete()
        with pytest.raises(ContextCrashed):
            await run
        assert not [command for command in await commands_inside(sandbox) if command.startswith("sleep")]


async def test_large_output_and_odd_text_come_through(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context()
        execution = await context.run("print('ü\\0\\x1b[0m' * 300_000)")
        assert execution.stdout == "ü\0\x1b[0m" * 300_000 + "\n"
        child = await context.run("import os; os.system('echo child')\n_ = os.write(1, b'raw\\n')")
        assert child.stdout == "child\nraw\n"


async def test_javascript_and_typescript_keep_state_and_await(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        if (await sandbox.exec("command -v node")).exit_code:
            pytest.skip("node is not installed")
        context = await sandbox.create_code_context("typescript")
        await context.run("const x: number = 1; console.log('out'); console.error('err')")
        execution = await context.run("const x = await Promise.resolve(41); x + 1")
        assert (execution.text, execution.error) == ("42", None)
        failed = await sandbox.run_code("throw new TypeError('bad')", language="javascript")
        assert failed.error is not None
        assert (failed.error.name, failed.error.message) == ("TypeError", "bad")


async def test_a_fork_is_a_context_with_the_same_variables(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context()
        await context.run("x = [1]")
        one, two = await context.fork(2)
        await one.run("x.append(2)")
        assert [(await each.run("x")).text for each in (context, one, two)] == ["[1]", "[1, 2]", "[1]"]
        ids = [each.id for each in await sandbox.list_code_contexts()]
        assert (ids, one.language) == ([context.id, one.id, two.id], "python")
        await context.delete()
        assert (await (await sandbox.get_code_context(two.id)).run("x")).text == "[1]"
        with pytest.raises(ContextNotFound):
            await context.fork()


async def test_what_cannot_be_forked_says_why(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        context = await sandbox.create_code_context()
        with pytest.raises(ValidationFailed, match="count"):
            await context.fork(0)
        await context.run("import threading; threading.Thread(target=threading.Event().wait, name='w').start()")
        with pytest.raises(ForkRefused) as refused:
            await context.fork()
        assert refused.value.threads == ["w"]
        assert len(await context.fork(force=True)) == 1
        script = await sandbox.create_code_context("javascript")
        with pytest.raises(UnsupportedLanguage, match=r"Node\.js has threads"):
            await script.fork()
        assert len(await sandbox.list_code_contexts()) == 3
