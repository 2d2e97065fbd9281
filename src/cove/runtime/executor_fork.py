"""Fork living executors: the request, the copy's pipes and channel, its adoption, and its undoing where that fails.

The executor is told to fork between two cells, and answers on its channel; the copy says on a channel of its own that
it is ready. Neither can be believed: an answer out of turn, or none in time, ends the context that was to be forked and
nothing else; a copy that is never ready is ended itself.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

from cove.core.executor_protocol import Forked, Unforked, encode_fork
from cove.errors import ForkRefused, SpawnFailed
from cove.model import Outcome
from cove.runtime.executor import CHANNEL, Executor, ExecutorEnded, open_executor
from cove.runtime.family import Family
from cove.tasks import shared, together

# For a large process on a busy machine; user code can have handlers that run around a fork.
_ANSWER_SECONDS: Final = 30.0
_READY_SECONDS: Final = 60.0


async def fork_executors(
    parent: Executor, count: int, on_packages: Callable[[], None], *, force: bool
) -> list[Executor]:
    """Fork so many copies that are ready for code, or none. Raises ExecutorEnded where the parent has ended."""
    copies: list[Executor] = []
    try:
        while len(copies) < count:
            copies.append(await _fork(parent, on_packages, force=force))
        await _all_ready(copies)
    except BaseException:
        await end_executors(copies)
        raise
    return copies


async def end_executors(executors: list[Executor]) -> None:
    """End executors that nobody will use."""
    await together(executor.process.sweep() for executor in executors)
    for executor in executors:
        executor.close()


async def end_forked(forking: "asyncio.Task[list[Executor]]") -> None:
    """End the copies that a cancelled caller has asked for, when they are there."""
    await asyncio.wait([forking])
    if forking.exception() is None:
        await end_executors(forking.result())


async def _fork(parent: Executor, on_packages: Callable[[], None], *, force: bool) -> Executor:
    if not parent.is_alive:
        raise ExecutorEnded(parent.process.ended.result())
    spawner, family = parent.spawner, parent.process.join_family()
    number = family.take_label()
    label = b"%d" % number
    copy, given = open_executor(on_packages, can_be_stuck=False)
    copy.expect(spawner.make(copy.take), spawner)
    try:
        with ExitStack() as theirs:
            theirs.callback(os.close, given[CHANNEL])
            streams = copy.process.open_streams(theirs)
            answer = parent.fork(encode_fork(number, force=force), [*streams, given[CHANNEL]])
        pid = _pid_of(await _answer(parent, answer))
    except BaseException:
        await _undo(copy, family, label)
        raise
    # Whatever is asked of the launcher later, it does after this: nobody has to wait for the answer.
    adopted = family.launcher.adopt(label, pid)
    copy.process.begin_as_copy(family, label, pid)
    adopted.add_done_callback(partial(_on_adopted, copy))
    spawner.add(copy.process)
    copy.attach(copy.process)
    return copy


def _on_adopted(copy: Executor, adopted: "asyncio.Future[int]") -> None:
    """End what has the label of a copy that is none: it has ended already, or the executor has lied."""
    if not adopted.result():
        copy.process.end(Outcome.KILLED, 0)


async def _answer(parent: Executor, answer: "asyncio.Future[Forked | Unforked]") -> Forked | Unforked:
    try:
        async with parent.process.clock.timeout(_ANSWER_SECONDS):
            return await shared(answer)
    except TimeoutError:
        await parent.process.sweep()
        raise ExecutorEnded(parent.process.ended.result()) from None


def _pid_of(said: Forked | Unforked) -> int:
    if isinstance(said, Forked):
        return said.pid
    if said.threads:
        names = ", ".join(map(repr, said.threads))
        raise ForkRefused(
            f"the context has threads that a copy would not have: {names}. End them, or fork with force=True",
            threads=said.threads,
        )
    raise SpawnFailed(f"the context could not be forked: {os.strerror(said.errno)}. Nothing was started.")


async def _undo(copy: Executor, family: Family, label: bytes) -> None:
    """Free what was meant for a copy. One that exists in spite of that loses its channel, and is ended by its label."""
    copy.close()
    copy.process.discard()
    await family.end_branch(label)


async def _all_ready(copies: list[Executor]) -> None:
    try:
        async with copies[0].process.clock.timeout(_READY_SECONDS):
            for copy in copies:
                await shared(copy.ready)
    except ExecutorEnded as error:
        reason = f"{error.end.outcome}, exit code {error.end.exit_code}"
        raise SpawnFailed(f"a copy ended before it was ready ({reason}). None is left.") from None
    except TimeoutError:
        raise SpawnFailed(f"a copy was not ready within {_READY_SECONDS:g} s. None is left.") from None


def explain_refusal(language: str) -> str:
    """Say why a context of this language cannot be forked."""
    return (
        f"a {language} context cannot be forked: Node.js has threads of its own, which a copy would not have. "
        "Create another context and run its code again"
    )
