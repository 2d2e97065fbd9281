"""Changes of one sandbox's life and state that are asked for at once, in any order and cancelled anywhere."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cancellation import cancel_after
from support.layers import layers_of_sandboxes
from support.programs import wait_until_gone
from support.servers import eventually
from support.stage import turns

from cove import AsyncSandbox, AsyncSnapshot
from cove.attach import SECONDS, Attached, Target
from cove.errors import CoveError, SandboxDestroyed, SandboxUnavailable, TransactionOpen, ValidationFailed
from cove.layers.changes import find_changes
from cove.linux.file_lock import waiting_lock
from cove.model import FileChangeKind, SandboxStatus
from cove.runtime import comparison
from cove.runtime.attachment import Attachment
from cove.runtime.sandbox import Sandbox

pytestmark = pytest.mark.anyio

Call = Callable[[], Awaitable[object]]


@dataclass
class Model:
    """A sandbox with one file, whose content is a number that was written at once, and what was made of it."""

    sandbox: Sandbox
    base: AsyncSnapshot
    made: list[AsyncSnapshot] = field(default_factory=list)
    numbers: "count[int]" = field(default_factory=lambda: count(2))
    written: set[int] = field(default_factory=lambda: {1})

    @property
    def calls(self) -> dict[str, Call]:
        sandbox = self.sandbox
        return {
            "write": self.write,
            "write in a session": self.write_in_a_session,
            "hold": self.hold,
            "snapshot": self.snapshot,
            "restore": lambda: sandbox.restore(self.base),
            "fork": self.fork,
            "transaction": self.transaction,
            "reset": self.reset,
            "stop": sandbox.stop,
            "start": sandbox.start,
            "restart": sandbox.restart,
            "pause": sandbox.pause,
            "resume": sandbox.resume,
        }

    def _next(self) -> str:
        number = next(self.numbers)
        self.written.add(number)
        return f"echo {number} > /tmp/new.{number} && mv /tmp/new.{number} /workspace/f"

    async def write(self) -> None:
        await self.sandbox.exec(self._next())

    async def write_in_a_session(self) -> None:
        session = await self.sandbox.create_session()
        await session.exec(f"cd /tmp; {self._next()}")

    async def hold(self) -> None:
        await self.sandbox.start_process("exec 3>> /workspace/held; sleep 1000")

    async def snapshot(self) -> None:
        self.made.append(await self.sandbox.snapshot())

    async def fork(self) -> None:
        for copy in await self.sandbox.fork(count=2):
            assert await self.number(copy) in {0, *self.written}
            await copy.destroy()

    async def transaction(self) -> None:
        async with self.sandbox.transaction() as change:
            await self.sandbox.exec(self._next())
            await change.commit()

    async def reset(self) -> None:
        await self.sandbox.reset()

    @staticmethod
    async def number(sandbox: AsyncSandbox) -> int:
        return int((await sandbox.exec("cat f 2>/dev/null || echo 0")).stdout)

    async def check(self) -> None:
        """The sandbox works, stands on what its record says, and nothing else is left at its place."""
        sandbox = self.sandbox
        await sandbox.start()
        assert sandbox.life.status is SandboxStatus.RUNNING
        assert await self.number(sandbox) in {0, *self.written}
        mark = f"/workspace/mark-{next(self.numbers)}"
        await sandbox.exec(["touch", mark])
        assert (sandbox.layers.place.directories[0] / os.path.basename(mark)).exists()
        stack = sandbox.layers.place.stack
        assert stack is not None
        uppers = sandbox.layers.place.upper_path(stack.upper).parent
        await eventually(lambda: os.listdir(uppers) == [stack.upper])
        assert stack.undo is None

    async def end(self, home: Path) -> None:
        await self.sandbox.destroy()
        for each in self.made:
            async with AsyncSandbox.create(snapshot=each) as copy:
                assert await self.number(copy) in {0, *self.written}
            await each.delete()
        await self.base.delete()
        assert [each.id for each in await AsyncSnapshot.list()] == []
        assert layers_of_sandboxes(home) == []


async def begin() -> Model:
    sandbox = await AsyncSandbox.create()
    assert isinstance(sandbox, Sandbox)
    await sandbox.exec("echo 1 > f")
    return Model(sandbox, await sandbox.snapshot())


async def attempt(call: Call) -> None:
    """What is refused is refused by an error of ours."""
    try:
        await call()
    except CoveError:
        return


async def run(model: Model, groups: list[list[str]]) -> None:
    for names in groups:
        async with asyncio.timeout(60):
            await asyncio.gather(*(attempt(model.calls[name]) for name in names))
            await model.check()


PAIRS = [
    ["snapshot", "snapshot"],
    ["snapshot", "restore"],
    ["restore", "write", "write in a session"],
    ["stop", "start", "write"],
    ["pause", "stop"],
    ["snapshot", "pause"],
    ["snapshot", "stop", "start"],
    ["hold", "snapshot", "restart"],
    ["transaction", "snapshot"],
    ["transaction", "stop"],
    ["transaction", "restore", "restart"],
    ["fork", "restart"],
    ["reset", "fork", "write"],
]


async def test_any_two_changes_at_once_leave_a_whole_sandbox(cove_home: Path) -> None:
    model = await begin()
    try:
        await run(model, PAIRS)
    finally:
        await model.end(cove_home)


NAMES = ["write", "write in a session", "hold", "snapshot", "restore", "fork", "transaction", "reset"]
LIFE = ["stop", "start", "restart", "pause", "resume"]
groups = st.lists(st.lists(st.sampled_from(NAMES + LIFE), min_size=2, max_size=4), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(groups=groups)
def test_any_changes_at_once_leave_a_whole_sandbox(cove_home: Path, groups: list[list[str]]) -> None:
    async def main() -> None:
        model = await begin()
        try:
            await run(model, groups)
        finally:
            await model.end(cove_home)

    asyncio.run(main())


# A call that waits for a thread takes as many turns of the loop as that takes.
TURNS = [*range(12), 16, 24, 40, 80, 160, 320, 640, 1280]
SOME_TURNS = [0, 1, 3, 6, 11, 24, 80, 320, 1280]
CANCELLED = [
    ("hold", "snapshot"),
    ("write", "restore"),
    ("write", "fork"),
    ("write", "transaction"),
    ("resume", "stop"),
    ("stop", "start"),
    ("resume", "pause"),
]
OTHERS = [("resume", "snapshot"), ("write", "reset"), ("resume", "restart"), ("pause", "resume")]


@pytest.mark.parametrize(("before", "call"), CANCELLED)
async def test_a_change_that_is_cancelled_is_whole_or_not_at_all(before: str, call: str, cove_home: Path) -> None:
    await cancel_at(SOME_TURNS, before, call, cove_home)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "call"), CANCELLED + OTHERS)
async def test_a_change_that_is_cancelled_anywhere_is_whole_or_not_at_all(
    before: str, call: str, cove_home: Path
) -> None:
    await cancel_at(TURNS, before, call, cove_home)


async def cancel_at(moments: list[int], before: str, call: str, cove_home: Path) -> None:
    model = await begin()
    try:
        session = await model.sandbox.create_session(id="s")
        for turns in moments:
            await model.calls[before]()
            work = attempt(model.calls[call])
            was_running = await cancel_after(turns, work, times=2)
            await model.check()
            if call in LIFE:
                assert (await session.exec("echo up")).stdout == "up\n"
            if not was_running:
                break
    finally:
        await model.end(cove_home)


async def test_a_transaction_is_over_when_its_sandbox_was_stopped() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("echo old > f")
        id = await sandbox.begin_transaction()
        await sandbox.exec("echo new > f")
        await sandbox.stop()
        await sandbox.start()
        with pytest.raises(ValidationFailed, match="over"):
            await sandbox.commit_transaction(id)
        await sandbox.rollback_transaction(id)
        assert (await sandbox.exec("cat f")).stdout == "old\n"
        async with sandbox.transaction() as change:
            await change.commit()


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_transaction_whose_end_is_cancelled_is_over_or_still_open(keeps: bool) -> None:
    async with AsyncSandbox.create() as sandbox:
        for turns in SOME_TURNS:
            await sandbox.exec("echo old > f")
            id = await sandbox.begin_transaction()
            await sandbox.exec("echo new > f")
            end = sandbox.commit_transaction if keeps else sandbox.rollback_transaction
            was_running = await cancel_after(turns, end(id), times=2)
            await sandbox.rollback_transaction(id)
            assert (await sandbox.exec("cat f")).stdout in (("old\n", "new\n") if keeps else ("old\n",))
            async with sandbox.transaction() as change:
                await change.commit()
            if not was_running:
                break


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_change_whose_helper_dies_leaves_the_old_files(
    is_done: bool, monkeypatch: pytest.MonkeyPatch, cove_home: Path
) -> None:
    perform = Attachment.perform
    layers = cove_home / "layers"
    before = set(await asyncio.to_thread(lambda: list(layers.glob("*"))))

    def dies(attachment: Attachment, target: Target, seconds: float = SECONDS) -> Attached:
        if is_done:
            perform(attachment, target, seconds).close()
        raise SandboxUnavailable("the helper that attaches to the sandbox has ended: try again")

    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("echo old > f")
        kept = await sandbox.snapshot()
        for change in (sandbox.snapshot, lambda: sandbox.restore(kept), sandbox.begin_transaction):
            await sandbox.exec("echo new > f")
            with monkeypatch.context() as patch:
                patch.setattr(Attachment, "perform", dies)
                with pytest.raises(SandboxUnavailable):
                    await change()
            if is_done:  # nobody knows how far it came: another jail shows what the record says
                await sandbox.restart()
            assert (await sandbox.exec("cat f; echo newer > f; cat f")).stdout == "new\nnewer\n"
            await (await sandbox.snapshot()).delete()
        await kept.delete()
    assert set(await asyncio.to_thread(lambda: list(layers.iterdir()))) <= before


async def test_what_a_transaction_refuses_ends_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        snapshot = await sandbox.snapshot()
        session = await sandbox.create_session()
        process = await sandbox.start_process("sleep 1000", cwd="/")
        async with sandbox.transaction() as change:
            for refused in (sandbox.snapshot(), sandbox.restore(snapshot), sandbox.reset(), sandbox.fork()):
                with pytest.raises(TransactionOpen):
                    await refused
            assert (await session.exec("echo up")).stdout == "up\n"
            assert process.outcome is None
            await change.commit()
        await snapshot.delete()


CUT_OFF: dict[str, tuple[Callable[[AsyncSandbox], Awaitable[object]], str]] = {
    "snapshot": (lambda sandbox: sandbox.snapshot(), "no snapshot was made"),
    "fork": (lambda sandbox: sandbox.fork(2), "there are no copies"),
    "transaction": (lambda sandbox: sandbox.begin_transaction(), "no transaction"),
}


@pytest.mark.parametrize("change", CUT_OFF)
async def test_a_change_that_a_destruction_cuts_off_says_so(change: str, cove_home: Path) -> None:
    call, consequence = CUT_OFF[change]
    sandbox = await AsyncSandbox.create()
    assert isinstance(sandbox, Sandbox)
    with waiting_lock(cove_home / "layers.lock"):  # nothing is sealed meanwhile
        changing = asyncio.ensure_future(call(sandbox))
        await turns()
        destroying = asyncio.ensure_future(sandbox.destroy())
        assert await asyncio.to_thread(wait_until_gone, [sandbox._jail.agent_pid]) == []
    with pytest.raises(SandboxDestroyed, match=rf"{sandbox.id} was destroyed meanwhile: {consequence}"):
        await changing
    await destroying


@pytest.mark.parametrize("change", ["rollback", "restore"])
async def test_what_a_cancelled_call_had_asked_for_does_not_come_after_a_change(change: str) -> None:
    """Its caller is told that it is over before the agent, which is slow here, has done it."""
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        before = await sandbox.snapshot()
        if change == "rollback":
            change_back = partial(sandbox.rollback_transaction, await sandbox.begin_transaction())
        else:
            change_back = partial(sandbox.restore, before)
        agent = sandbox._jail.agent_pid
        os.kill(agent, signal.SIGSTOP)
        try:
            writing = asyncio.ensure_future(sandbox.files.write("late", b""))
            await asyncio.sleep(0.2)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            asyncio.get_running_loop().call_later(0.5, os.kill, agent, signal.SIGCONT)
            await change_back()
            await asyncio.sleep(0.7)
            assert not await sandbox.files.exists("late")
        finally:
            with suppress(ProcessLookupError):
                os.kill(agent, signal.SIGCONT)
        await before.delete()


@pytest.mark.parametrize("times", [1, 1000])
async def test_changes_are_those_of_one_moment_though_snapshots_are_made(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that is sealed and taken to the store while it is compared would look like deleted files."""
    async with AsyncSandbox.create() as sandbox:
        await sandbox.files.write("file", b"one")
        first = await sandbox.snapshot()
        await sandbox.files.write("file", b"other")
        made: list[AsyncSnapshot] = []
        loop, find = asyncio.get_running_loop(), find_changes

        def find_slowly(lower: list[Path], upper: list[Path], check: Callable[[], None], *, is_whole: bool) -> object:
            if len(made) < times:
                made.append(asyncio.run_coroutine_threadsafe(sandbox.snapshot(), loop).result(30))
                asyncio.run_coroutine_threadsafe(eventually(lambda: not upper[-1].exists(), 30), loop).result(40)
            return find(lower, upper, check, is_whole=is_whole)

        monkeypatch.setattr(comparison, "find_changes", find_slowly)
        if times == 1:
            assert [(each.path, each.kind) for each in await sandbox.changes(first)] == [
                ("/workspace/file", FileChangeKind.MODIFIED)
            ]
        else:
            with pytest.raises(SandboxUnavailable, match="faster than the files can be compared"):
                await sandbox.changes(first)
        for snapshot in (*made, first):
            await snapshot.delete()


async def test_when_a_cancelled_call_returns_it_has_happened_or_never_will() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        agent = sandbox._jail.agent_pid
        os.kill(agent, signal.SIGSTOP)
        writing = asyncio.ensure_future(sandbox.files.write("late", b""))
        await asyncio.sleep(0.2)
        writing.cancel()
        asyncio.get_running_loop().call_later(0.3, os.kill, agent, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert [each.path for each in await sandbox.changes()] == ["/workspace/late"]
