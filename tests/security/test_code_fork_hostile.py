"""Executors that lie about a fork: nobody but their own context pays for it."""

import os

import pytest
from support.executors import executors, needs_python

from cove import AsyncSandbox, ContextCrashed, CoveError, SpawnFailed
from cove.api import CodeContext
from cove.runtime import executor_fork

pytestmark = [pytest.mark.anyio, needs_python]

# Takes the place of the executor's own answer: `answer(request)` is called.
TAKE_OVER = """
import os, sys
def frame(kind, payload=b""):
    return kind + len(payload).to_bytes(4, "big") + payload
def send(data):
    os.write(200, data)
executor = sys.meta_path[0].give_display.__globals__
executor["fork"] = lambda request: answer(request)
"""

LIES = {
    "nothing that is a frame": "os.write(200, b'\\xff' * 9)",
    "a second greeting": "send(frame(b'R'))",
    "a run that ended": "send(frame(b'E', b'1'))",
    "a pid that is no number": "send(frame(b'F', b'x'))",
    "no reason": "send(frame(b'N', b'?'))",
    "two answers": "send(frame(b'F', b'%d' % os.getpid()) + frame(b'F', b'%d' % os.getpid()))",
    "its own end": "os._exit(9)",
    "a stop": "os.kill(os.getpid(), 19)",
}
WRONG_PIDS = ["os.getpid()", "os.getppid()", "1", "0", "2 ** 40"]


async def taken_over(sandbox: AsyncSandbox, body: str) -> CodeContext:
    context = await sandbox.create_code_context()
    execution = await context.run(f"{TAKE_OVER}\ndef answer(request):\n    {body}")
    assert execution.error is None, execution.error.traceback
    return context


@pytest.mark.parametrize("name", LIES)
async def test_a_lie_ends_the_liar(name: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        other = await sandbox.create_code_context()
        (copy,) = await other.fork()
        liar = await taken_over(sandbox, LIES[name])
        with pytest.raises(CoveError) as failure:
            await liar.fork(2)
        assert isinstance(failure.value, ContextCrashed | SpawnFailed)
        with pytest.raises(ContextCrashed):
            await liar.run("1")
        await liar.delete()
        assert [(await each.run("1 + 1")).text for each in (other, copy)] == ["2", "2"]
        assert len(await sandbox.list_code_contexts()) == 2


async def test_a_pid_that_is_no_copy_is_not_adopted() -> None:
    async with AsyncSandbox.create() as sandbox:
        other = await sandbox.create_code_context()
        (sibling,) = await other.fork()
        for pid in [*WRONG_PIDS, (await other.run("import os; os.getpid()")).text]:
            liar = await taken_over(sandbox, f"send(frame(b'F', b'%d' % ({pid})))")
            with pytest.raises(SpawnFailed):
                await liar.fork()
            assert (await liar.run("'goes on'")).text == "'goes on'"
        siblings = (await sibling.run("import os; os.getpid()")).text
        await other.run(f"{TAKE_OVER}\ndef answer(request):\n    send(frame(b'F', b'{siblings}'))")
        with pytest.raises(SpawnFailed):
            await other.fork()
        assert [(await each.run("1 + 1")).text for each in (other, sibling)] == ["2", "2"]


async def test_an_executor_that_never_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_fork, "_ANSWER_SECONDS", 0.2)
    async with AsyncSandbox.create() as sandbox:
        silent = await taken_over(sandbox, "import time; time.sleep(1000)")
        other = await sandbox.create_code_context()
        with pytest.raises(ContextCrashed):
            await silent.fork()
        assert (await other.run("1")).text == "1"


async def test_a_copy_that_is_never_ready_is_ended_and_its_parent_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_fork, "_READY_SECONDS", 0.2)
    async with AsyncSandbox.create() as sandbox:
        context = await taken_over(
            sandbox,
            "pid = os.fork()\n"
            "    if not pid:\n"
            "        if os.fork(): os._exit(0)\n"
            "        import time; open('/tmp/copy', 'w').write(str(os.getpid())); time.sleep(1000)\n"
            "    os.waitpid(pid, 0)\n"
            "    while not (name := os.path.exists('/tmp/copy') and open('/tmp/copy').read()): pass\n"
            "    send(frame(b'F', name.encode()))",
        )
        with pytest.raises(SpawnFailed, match="not ready"):
            await context.fork()
        copy = int((await sandbox.files.read("/tmp/copy")).decode())
        assert copy not in await executors(sandbox)
        assert (await context.run("'alive'")).text == "'alive'"


async def test_descriptors_of_a_fork_that_failed_are_closed() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await taken_over(
            sandbox, "executor['_channel'].descriptors.clear(); send(frame(b'N', b'error\\x0011'))"
        )
        with pytest.raises(SpawnFailed, match="temporarily unavailable"):
            await context.fork()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with pytest.raises(SpawnFailed):
                await context.fork(3)
        assert len(os.listdir("/proc/self/fd")) == before
