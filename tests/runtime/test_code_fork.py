"""Live copies of contexts: what they share, what they do not, and how each of them ends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from support.cancellation import cancel_after
from support.executors import executors, needs_python
from support.inside import commands_inside

from cove import (
    AsyncSandbox,
    ContextCrashed,
    ContextNotFound,
    ForkRefused,
    LimitExceeded,
    Limits,
    Outcome,
    SpawnFailed,
    ValidationFailed,
)
from cove.api import CodeContext
from cove.runtime.code_contexts import MOST_COPIES

pytestmark = [pytest.mark.anyio, needs_python]

PRIVATE_KB = """
sum(int(line.split()[1]) for line in open('/proc/self/smaps_rollup') if line.startswith('Private_'))
"""
DAEMON = "import subprocess; subprocess.run('setsid sleep {} > /dev/null 2>&1 &', shell=True)"


async def value(context: CodeContext, code: str) -> str | None:
    execution = await context.run(code)
    assert execution.error is None, execution.error.traceback
    return execution.text


async def pid_of(context: CodeContext) -> int:
    return int(await value(context, "import os; os.getpid()") or 0)


async def test_a_copy_has_all_variables_and_neither_sees_what_the_other_does_later() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context(cwd="/tmp", env={"A": "b"})
        await parent.run("x = [1]\ndef f(): return x\nimport os; os.chdir('/usr')")
        one, two = await parent.fork(2)
        await parent.run("x.append('parent')")
        await one.run("x.append('one')")
        assert await value(two, "(f(), os.getcwd(), os.environ['A'])") == "([1], '/usr', 'b')"
        assert await value(one, "f()") == "[1, 'one']"
        assert await value(parent, "f()") == "[1, 'parent']"
        assert [context.id for context in await sandbox.list_code_contexts()] == [parent.id, one.id, two.id]
        assert len({await pid_of(context) for context in (parent, one, two)}) == 3


async def test_a_copy_of_a_copy_outlives_both() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        await parent.run("x = 1")
        (child,) = await parent.fork()
        await child.run("x += 1")
        (grandchild,) = await child.fork()
        await parent.delete()
        await child.delete()
        assert await value(grandchild, "x") == "2"
        (last,) = await grandchild.fork()
        await grandchild.delete()
        assert await value(last, "x") == "2"
        assert [context.id for context in await sandbox.list_code_contexts()] == [last.id]
        with pytest.raises(ContextNotFound):
            await sandbox.get_code_context(child.id)


async def test_copies_have_random_numbers_of_their_own() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        await parent.run("import random, numpy, uuid, tempfile, secrets; random.seed(1); numpy.random.seed(1)")
        contexts = [parent, *await parent.fork(3)]
        draws = [await value(context, "(random.random(), numpy.random.rand(), uuid.uuid4())") for context in contexts]
        assert len({draw for draw in draws if draw is not None}) == 4
        for at in range(2):
            assert len({str(draw).split(",")[at] for draw in draws}) == 4
        assert str(draws[0]).startswith("(0.13436424411240122,")  # the parent goes on as it was seeded


async def test_handlers_around_a_fork_run_once_on_each_side() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        await parent.run(
            "import os; seen = []\n"
            "os.register_at_fork(before=lambda: seen.append('before'), after_in_parent=lambda: seen.append('parent'),"
            " after_in_child=lambda: seen.append('child'))"
        )
        (copy,) = await parent.fork()
        assert await value(copy, "seen") == "['before', 'child']"
        assert await value(parent, "seen") == "['before', 'parent']"


async def test_a_large_array_stays_shared() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        await parent.run("import numpy; array = numpy.ones(25_000_000)")
        (copy,) = await parent.fork()
        assert await value(copy, "array.sum()") == "np.float64(25000000.0)"
        assert int(await value(copy, PRIVATE_KB) or 0) < 50_000  # of 200 000
        await copy.run("array += 1")
        assert int(await value(copy, PRIVATE_KB) or 0) > 190_000
        assert await value(parent, "array.sum()") == "np.float64(25000000.0)"


async def test_what_each_prints_is_its_own() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        await parent.run("import sys; print('half', end='')")
        (copy,) = await parent.fork()
        code = "print('{0}'); print('{0}', file=sys.stderr); display('{0}')"
        executions = await asyncio.gather(*(each.run(code.format(name)) for each, name in ((parent, "p"), (copy, "c"))))
        for execution, name in zip(executions, "pc", strict=True):
            assert (execution.stdout, execution.stderr) == (f"{name}\n", f"{name}\n")
            assert execution.results[0].text == f"'{name}'"


async def test_open_files_share_their_position_and_sockets_stay_open() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        await parent.run("import os, gc; file = os.open('/tmp/file', os.O_CREAT | os.O_RDWR); os.write(file, b'abcd')")
        (copy,) = await parent.fork()
        await copy.run("os.lseek(file, 1, 0)")
        assert await value(parent, "os.read(file, 9)") == "b'bcd'"
        # What the copy has left behind of its parent must not be closed a second time under another's number.
        assert await value(copy, "spare = [os.open('/dev/null', 0) for _ in range(300)]; gc.collect(); len(spare)")
        assert await value(copy, "[os.fstat(each).st_size for each in spare] == [0] * 300") == "True"


async def test_top_level_await_works_on_both_sides() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        await parent.run(
            "import asyncio, threading\n"
            "async def woken():\n"
            "    loop, event = asyncio.get_running_loop(), asyncio.Event()\n"
            "    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(event.set,))\n"
            "    thread.start(); await event.wait(); thread.join(); return 'woken'\n"
            "task = asyncio.get_running_loop().create_task(woken()); await asyncio.sleep(0)"
        )
        await parent.run("await task")
        (copy,) = await parent.fork()
        for context in (copy, parent, copy, parent):
            execution = await context.run("await asyncio.wait_for(woken(), 20)", timeout=30)
            assert execution.text == "'woken'", execution


async def test_threads_are_refused_by_name_unless_they_do_not_matter() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await context.run(
            "import threading; gate = threading.Event()\n"
            "thread = threading.Thread(target=gate.wait, name='the waiter'); thread.start()"
        )
        with pytest.raises(ForkRefused, match="'the waiter'") as refused:
            await context.fork()
        assert refused.value.threads == ["the waiter"]
        (copy,) = await context.fork(force=True)
        assert await value(copy, "threading.active_count()") == "1"
        await context.run("gate.set(); thread.join()")
        assert len(await context.fork(2)) == 2
        assert len(await sandbox.list_code_contexts()) == 4


async def test_a_library_that_ends_its_own_threads_around_a_fork_is_no_hindrance() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context(env={"OPENBLAS_NUM_THREADS": "2"})
        multiply = "numpy.dot(a, a)[0, 0]"
        await context.run("import numpy, os; a = numpy.ones((600, 600))")
        assert await value(context, f"{multiply}, len(os.listdir('/proc/self/task'))") == "(np.float64(600.0), 2)"
        (copy,) = await context.fork()
        for each in (copy, context):
            assert await value(each, multiply) == "np.float64(600.0)"


async def test_a_fork_waits_for_the_code_that_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkfifo /tmp/gate")
        context = await sandbox.create_code_context()
        run = asyncio.create_task(context.run("open('/tmp/gate').read(); x = 'after'"))
        fork = asyncio.create_task(context.fork())
        await sandbox.exec("true")
        assert not fork.done()
        await sandbox.exec("echo > /tmp/gate")
        await run
        (copy,) = await fork
        assert await value(copy, "x") == "'after'"


async def test_what_cannot_be_forked_leaves_nothing() -> None:
    async with AsyncSandbox.create(limits=Limits(contexts=3)) as sandbox:
        context = await sandbox.create_code_context()
        for count in (0, -1, MOST_COPIES + 1, True):
            with pytest.raises(ValidationFailed, match="count"):
                await context.fork(count)
        with pytest.raises(LimitExceeded, match="1 of 3 python contexts"):
            await context.fork(3)
        assert len(await sandbox.list_code_contexts()) == 1
        copies = await context.fork(2)
        with pytest.raises(LimitExceeded):
            await copies[0].fork()
        await copies[1].delete()
        assert len(await copies[0].fork()) == 1


async def test_a_context_that_has_ended_says_so() -> None:
    async with AsyncSandbox.create() as sandbox:
        crashed, deleted = await sandbox.create_code_context(), await sandbox.create_code_context()
        with pytest.raises(ContextCrashed):
            await crashed.run("import os; os._exit(3)")
        with pytest.raises(ContextCrashed, match="exit code 3"):
            await crashed.fork()
        await deleted.delete()
        with pytest.raises(ContextNotFound):
            await deleted.fork()
        assert [context.id for context in await sandbox.list_code_contexts()] == [crashed.id]


KillsOne = Callable[[AsyncSandbox, CodeContext], Awaitable[None]]


async def kill(sandbox: AsyncSandbox, context: CodeContext) -> None:
    await sandbox.exec(f"kill -9 {await pid_of(context)}")
    with pytest.raises(ContextCrashed):
        await context.run("1")


async def stop(sandbox: AsyncSandbox, context: CodeContext) -> None:
    await sandbox.exec(f"kill -STOP {await pid_of(context)}")
    with pytest.raises(ContextCrashed):
        await context.run("1")


async def leave(sandbox: AsyncSandbox, context: CodeContext) -> None:
    with pytest.raises(ContextCrashed, match="exit code 7"):
        await context.run("import os; os._exit(7)")


async def delete(sandbox: AsyncSandbox, context: CodeContext) -> None:
    await context.delete()


async def time_out(sandbox: AsyncSandbox, context: CodeContext) -> None:
    code = "import time\nwhile True:\n    try:\n        while True: time.sleep(1)\n    except BaseException: pass"
    assert (await context.run(code, timeout=0.1)).outcome is Outcome.TIMED_OUT


@pytest.mark.parametrize("end", [kill, stop, leave, delete, time_out])
@pytest.mark.parametrize("which", [0, 1])
async def test_the_end_of_one_does_not_touch_the_other(end: KillsOne, which: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        family = [parent, *await parent.fork()]
        for at, context in enumerate(family):
            await context.run(DAEMON.format(1000 + at))
            await context.run("import subprocess; child = subprocess.Popen(['sleep', '2000'])")
        await end(sandbox, family[which])
        other = family[1 - which]
        assert await value(other, "child.poll()") is None
        await family[which].delete()
        commands = await commands_inside(sandbox)
        assert [command for command in commands if "sleep" in command] == [f"sleep {1001 - which}", "sleep 2000"]
        assert await value(other, "1 + 1") == "2"
        await other.delete()
        assert not [command for command in await commands_inside(sandbox) if "sleep" in command]


async def test_an_interrupt_ends_the_code_of_one_only() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkfifo /tmp/gate")
        parent = await sandbox.create_code_context()
        (copy,) = await parent.fork()
        parents = asyncio.create_task(parent.run("open('/tmp/gate').read(); 'whole'"))
        outcome = await copy.run("import time; time.sleep(1000)", timeout=0.2)
        assert (outcome.outcome, outcome.error and outcome.error.name) == (Outcome.TIMED_OUT, "KeyboardInterrupt")
        await sandbox.exec("echo > /tmp/gate")
        assert (await parents).text == "'whole'"
        assert await value(copy, "1") == "1"


async def test_what_no_member_can_be_blamed_for_ends_with_the_last() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        (copy,) = await parent.fork()
        stripped = "import resource; resource.setrlimit(10, (0, 0))"
        await copy.run(f"{stripped}; {DAEMON.format(1000)}")
        await copy.delete()
        assert "sleep 1000" in await commands_inside(sandbox)
        await parent.delete()
        assert "sleep 1000" not in await commands_inside(sandbox)


async def test_a_family_that_ends_all_at_once_leaves_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        family = [parent, *await parent.fork(4)]
        for context in family:
            await context.run(DAEMON.format(1000))
        await asyncio.gather(*(context.delete() for context in family))
        assert not [command for command in await commands_inside(sandbox) if "sleep" in command]
        assert await executors(sandbox) == []
        assert await value(await sandbox.create_code_context(), "1") == "1"


async def test_a_fork_bomb_of_one_copy_is_ended_with_it() -> None:
    async with AsyncSandbox.create(limits=Limits(pids=150)) as sandbox:
        parent = await sandbox.create_code_context()
        (copy,) = await parent.fork()
        with pytest.raises(ContextCrashed):
            await copy.run(
                "import os, signal\n"
                "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
                "if not os.fork():\n"
                "    while True:\n"
                "        try: os.fork()\n"
                "        except OSError: pass\n"
                "os._exit(1)"
            )
        await copy.delete()
        assert await value(parent, "'alive'") == "'alive'"
        assert len([pid for pid in await executors(sandbox) if pid == await pid_of(parent)]) == 1


async def test_the_death_of_the_launcher_ends_the_family_and_nothing_else() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent, other = await sandbox.create_code_context(), await sandbox.create_code_context()
        family = [parent, *await parent.fork(2)]
        launcher = await value(parent, "import os; os.getppid()")
        await sandbox.exec(f"kill -9 {launcher}")
        for context in family:
            with pytest.raises(ContextCrashed):
                await context.run("import time; time.sleep(1000)")
            await context.delete()
        assert await value(other, "1") == "1"


async def test_a_fork_that_is_cancelled_anywhere_leaves_no_copies() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        turns, was_running = 0, True
        while was_running:
            was_running = await cancel_after(turns, parent.fork(2))
            turns += 1 + turns // 8
            if was_running:
                assert len(await sandbox.list_code_contexts()) == 1
                assert await executors(sandbox) == [await pid_of(parent)]
        assert turns > 3
        assert len(await sandbox.list_code_contexts()) == 3


async def test_processes_that_cannot_be_made_are_an_error_that_leaves_none() -> None:
    async with AsyncSandbox.create(limits=Limits(pids=40)) as sandbox:
        parent = await sandbox.create_code_context()
        with pytest.raises(SpawnFailed, match=r"Nothing was started|None is left"):
            await parent.fork(60)
        assert await value(parent, "'alive'") == "'alive'"
        assert len(await sandbox.list_code_contexts()) == 1


async def test_destroying_the_sandbox_ends_a_family() -> None:
    async with AsyncSandbox.create() as sandbox:
        parent = await sandbox.create_code_context()
        copies: Sequence[CodeContext] = await parent.fork(2)
        running = [asyncio.create_task(copy.run("import time; time.sleep(1000)")) for copy in copies]
        await asyncio.sleep(0)
    for task in running:
        assert (await asyncio.gather(task, return_exceptions=True))[0] is not None
