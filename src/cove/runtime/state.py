"""Snapshots of a living sandbox, and the way back: what stands still meanwhile, what ends, and what is told to move."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ParamSpec, TypeVar

import msgspec

from cove.core.identifier import new_identifier
from cove.errors import CoveError, SandboxPaused, SandboxUnavailable, TransactionOpen, ValidationFailed
from cove.layers.changes import find_changes
from cove.layers.digest import layer_digest
from cove.layers.record import Snapshot, Stack, System
from cove.local.threads import finished, in_thread, in_transfer, kept_or_undone, start_transfer
from cove.model import ResetReport
from cove.runtime.code_contexts import CodeContexts
from cove.runtime.comparison import Comparison
from cove.runtime.jail import Jail
from cove.runtime.kept_sessions import Kept, close_sessions, keep_sessions
from cove.runtime.layers import Moved, SandboxLayers
from cove.runtime.session import Session
from cove.runtime.sessions import Sessions
from cove.runtime.snapshot_transfer import admitted
from cove.runtime.squash import Squash
from cove.tasks import Tasks, Work, owned, settled

ID_LENGTH = 16
# What shells have to say their state, all at the same time.
_CAPTURE_SECONDS = 5.0
# When a transaction whose lease has ended is looked at again, where the sandbox is paused and may not be woken.
_AGAIN_SECONDS = 1.0

P = ParamSpec("P")
T = TypeVar("T")
# Ends everything that runs; what comes back does so when it is left.
Quiet = Callable[[], AbstractAsyncContextManager[None]]
# Ends the jail, makes a change, and starts another jail.
BeginAgain = Callable[[Callable[[], Work[None]]], Awaitable[None]]


@dataclass(slots=True)
class Living:
    """The parts of a running sandbox that a change of its files concerns."""

    jail: Jail
    sessions: Sessions
    contexts: CodeContexts
    background: Tasks


@dataclass(slots=True)
class _Idle:
    """Shells and executors of ours that wait; `moved` is set when another mount has taken the place of theirs.

    `dropped` is the upper that nobody needs any more.
    """

    sessions: Sequence[Session]
    pids: frozenset[int]
    moved: Moved = field(default_factory=Moved)
    dropped: str | None = None


class SandboxState:
    """Everything that changes what a sandbox stands on, one after the other.

    The `turn` is that of its life: what is being changed is neither stopped, started nor paused meanwhile, and was
    woken if it was paused. `living` raises when the sandbox does not run any more once it has its turn. Where layers
    cannot be shown, other files need another jail: `begin_again`.
    """

    def __init__(
        self,
        layers: SandboxLayers,
        squash: Squash,
        living: Callable[[], Living],
        turn: AbstractAsyncContextManager[None],
        begin_again: BeginAgain,
    ) -> None:
        self._layers = layers
        self._begin_again = begin_again
        self._living = living
        self._turn = turn
        self._squash = squash
        self.comparison = Comparison(layers)
        self._transaction: str | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None  # no task of the jail's, which may end by it

    async def snapshot(
        self,
        name: str | None,
        labels: Mapping[str, str],
        env: Mapping[str, str],
        workdir: str,
        holder: str | None = None,
    ) -> Snapshot:
        """Keep the files as they are now; with a `holder`, while that is copied. A cancelled call leaves nothing."""
        async with self._turn, nullcontext() if holder is not None else admitted(self._layers.store):
            self._check_transaction()
            parent = None if self._stack is None else self._stack.snapshot
            made = Snapshot(
                id=new_identifier(ID_LENGTH),
                created_at=datetime.now(UTC),
                layers=(),
                name=name,
                labels=dict(labels),
                parent=parent,
                env=dict(env),
                workdir=workdir,
                system=self._layers.place.system,
                holder=holder,
            )
            await self._squash.catch_up(self._living().background)
            async with self._idle() as (living, idle), _captured(living.sessions, idle.sessions) as sessions:
                sealing = _start(self._keep, living.jail, idle, made, sessions)
                kept = await kept_or_undone(sealing, lambda kept: self._layers.store.forget(kept.id))
            living.background.start(finished(self._settle, kept))
            self._squash.look(living.background)
            return kept

    def _keep(self, jail: Jail, idle: _Idle, made: Snapshot, sessions: Sequence[Kept]) -> Snapshot:
        """Seal, and write down what the layers are kept for. Blocks."""
        store = self._layers.store
        with store.holding():
            layers, idle.moved = self._layers.seal(jail, idle.pids, made.id if made.holder is None else None)
            kept = msgspec.structs.replace(made, layers=layers)
            if sessions:
                close_sessions(keep_sessions(store.sessions(kept.id), sessions))
            return store.keep(kept)

    def _settle(self, kept: Snapshot) -> None:
        """Do what nobody has to wait for. Blocks."""
        self._layers.store.sync(kept.id)
        self._layers.store.tidy(kept.layers[-1])

    async def restore(self, id: str, quiet: Quiet) -> None:
        """Let the sandbox stand on a snapshot, while it is `quiet`: nothing runs."""
        async with self._turn:
            self._check_transaction()
            self._living()
            await settled(self._stand_on(quiet, lambda: self._stack_of(id)))

    async def _stand_on(self, quiet: Quiet, plan: Callable[[], Stack]) -> None:
        """Go on with a new stack in a sandbox in which nothing runs. The caller shields it from cancel."""
        if self._layers.place.copies:
            await self._stand_in_another(quiet, plan, _nothing)
        else:
            async with quiet(), self._idle() as (living, idle):
                await _start(self._replace, living.jail, idle, plan)

    async def _stand_in_another(
        self, quiet: Quiet, plan: Callable[[], Stack], forget: Callable[[], Work[None]]
    ) -> None:
        """Go on with a new stack in another jail. The caller shields it from cancel."""
        new = await _start(self._prepare, plan)

        async def change() -> None:
            await in_thread(self._layers.place.commit, new)
            await forget()

        async with quiet():
            await self._begin_again(change)
        await in_thread(self._layers.store.collect)

    def _prepare(self, plan: Callable[[], Stack]) -> Stack:
        """Make the upper of a new stack beside those that there are, copied where layers cannot be shown. Blocks."""
        with self._layers.store.holding():
            self._layers.place.convert()
            new = plan()
            return self._layers.place.stand_on(new, new.layers)

    def _replace(self, jail: Jail, idle: _Idle, plan: Callable[[], Stack]) -> None:
        """Replace what the sandbox stands on; nobody has to wait until its upper, and layers, are removed. Blocks."""
        with self._layers.store.holding():
            before = self._layers.place.convert()
            idle.moved = self._layers.replace(jail, plan(), idle.pids)
            idle.dropped = before.upper

    async def begin(self, id: str) -> None:
        """Let a sandbox in which nothing has run stand on a snapshot from its beginning."""
        async with self._turn:
            await settled(self._stand_on(nullcontext, lambda: self._stack_of(id, is_base=True)))

    def _stack_of(self, id: str, *, is_base: bool = False) -> Stack:
        snapshot, stack = self._layers.store.find(id), self._stack
        base, merges = ((), ()) if stack is None else (stack.base, stack.merges)
        check_system(snapshot, self._layers.place.system)
        return Stack(
            upper="",
            layers=snapshot.layers,
            base=snapshot.layers if is_base else base,
            merges=merges,
            snapshot=id,
            system=snapshot.system,
        )

    async def begin_transaction(self, lease: float) -> str:
        """Seal what is there, and remember it as what to go back to."""
        async with self._turn:
            self._check_transaction()
            await self._squash.catch_up(self._living().background)
            async with self._idle() as (living, idle):
                beginning = _start(self._begin_transaction, living.jail, idle)
                sealed = await kept_or_undone(beginning, lambda _: self._forget_undo())
            living.background.start(finished(self._layers.store.tidy, sealed))
            self._transaction = new_identifier(ID_LENGTH)
            self._lease(lease)
            self._squash.look(living.background)
            return self._transaction

    def _begin_transaction(self, jail: Jail, idle: _Idle) -> str:
        with self._layers.store.holding():
            undo, idle.moved = self._layers.seal(jail, idle.pids)
            assert self._stack is not None
            self._layers.place.commit(msgspec.structs.replace(self._stack, undo=undo))
        return undo[-1]

    async def renew_transaction(self, id: str, lease: float) -> None:
        """Put off the end of its lease."""
        self._check_open(id)
        self._lease(lease)

    async def commit_transaction(self, id: str) -> None:
        """Go on with what was written."""
        async with self._turn:
            self._check_open(id)
            await settled(self._commit_open())

    async def _commit_open(self) -> None:
        """Keep what was written and end the transaction, in one: who is cancelled finds no half of it."""
        assert self._stack is not None
        await finished(self._layers.place.commit, msgspec.structs.replace(self._stack, undo=None))
        self.close()

    async def rollback_transaction(self, id: str) -> None:
        """Go back to what was there when it began, if it is still open."""
        async with self._turn:
            if id == self._transaction:
                self._living()
                await settled(self._roll_back_open())

    async def _roll_back_open(self) -> None:
        """Go back and end the transaction, in one."""
        await self._stand_on(nullcontext, self._stack_before)
        self.close()

    def _stack_before(self) -> Stack:
        """Return the stack that an open transaction goes back to."""
        stack = self._stack
        assert stack is not None
        assert stack.undo is not None
        return msgspec.structs.replace(stack, layers=stack.undo, undo=None)

    def _lease(self, seconds: float) -> None:
        if not 0 < seconds < float("inf"):
            raise ValidationFailed(f"lease must be a number of seconds, more than 0, not {seconds!r}")
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(seconds, self._on_expired, self._transaction)

    def _on_expired(self, id: str | None) -> None:
        """Nobody has renewed it: whoever began it is gone. A sandbox that is lost goes back when it is started."""
        if id is not None and id == self._transaction:
            self._expiring = owned(self._roll_back_expired(id))

    async def _roll_back_expired(self, id: str) -> None:
        try:
            await self.rollback_transaction(id)
        except SandboxPaused:
            self._lease(_AGAIN_SECONDS)
        except CoveError:
            pass  # it goes back when it is started

    def _forget_undo(self) -> None:
        """End one whose caller was cancelled while it began: nothing has changed."""
        assert self._stack is not None
        self._layers.place.commit(msgspec.structs.replace(self._stack, undo=None))

    def close(self) -> None:
        """End the transaction: it is over, or the sandbox has ended, which goes back when it is started."""
        self._transaction = None
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _check_open(self, id: str) -> None:
        if id != self._transaction:
            raise ValidationFailed(f"transaction {id} is over: its lease has ended, or it was committed or rolled back")

    async def reset(self, quiet: Quiet, forget: Callable[[], Work[None]]) -> ResetReport:
        """Let the sandbox stand on the layers of its creation, in another jail.

        The kernel ends everything with the old one: processes, /dev/shm, /run, what System V shares, message queues.
        `forget` is called between the two.
        """
        async with self._turn:
            self._check_transaction()
            self._living()
            await settled(self._stand_in_another(quiet, self._stack_of_creation, forget))
            return await in_transfer(self._report)

    def _stack_of_creation(self) -> Stack:
        base, merges = ((), ()) if self._stack is None else (self._stack.base, self._stack.merges)
        return Stack(upper="", layers=base, base=base, merges=merges, system=self._layers.place.system)

    def _report(self, check: Callable[[], None]) -> ResetReport:
        """Say what a sandbox that was reset stands on, and how many files lie on top of that. Blocks."""
        place, base = self._layers.place, self.comparison.layers_before(None)
        if base and not (self._stack and self._stack.layers):
            below, now = self.comparison.trees(None)
            different = find_changes(below, now, check, is_whole=True)
            return ResetReport(method="copy", layers=base, files=len(different), digest=layer_digest(now[-1], check))
        return ResetReport(method="layers" if base else "empty", layers=base, files=place.count_own_files())

    @property
    def _stack(self) -> Stack | None:
        return self._layers.place.stack

    def _check_transaction(self) -> None:
        if self._stack is not None and self._stack.undo is not None:
            raise TransactionOpen("a transaction is open in this sandbox: commit it or roll it back first")

    def _clear(self, upper: str) -> None:
        """Remove what was replaced; what cannot be is removed at the next start. Blocks."""
        with suppress(OSError):
            self._layers.place.drop(upper)
        self._layers.store.collect()

    @asynccontextmanager
    async def _idle(self) -> AsyncGenerator[tuple[Living, _Idle], None]:
        """Keep what waits from beginning anything; what was moved is told when it begins again."""
        living = self._living()
        await living.jail.link.finish_abandoned()
        sessions, contexts = await living.sessions.hold_idle(), await living.contexts.hold_idle()
        idle = _Idle(sessions, frozenset((*contexts, *(each.pid for each in sessions if each.pid is not None))))
        try:
            yield living, idle
        finally:
            for session in sessions:
                session.let_go(moved=session.pid in idle.moved.standing)
            for pid, context in contexts.items():
                context.let_go(idle.moved.standing.get(pid))
            if idle.dropped is not None:
                living.background.start(finished(self._clear, idle.dropped))


async def _nothing() -> None:
    """Do nothing."""


def _start(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> "asyncio.Future[T]":
    """Begin in a thread; what the disk refuses is told as an error of ours."""

    def change() -> T:
        try:
            return work(*args, **named)
        except OSError as error:
            raise SandboxUnavailable(f"the sandbox's files cannot be changed: {error.strerror or error}") from error

    return start_transfer(change)


@asynccontextmanager
async def _captured(sessions: Sessions, held: Sequence[Session]) -> AsyncGenerator[list[Kept], None]:
    """Have what brings all sessions back, of those that are held as they are now."""
    kept = [each for _, each in await sessions.capture(held, _CAPTURE_SECONDS)]
    try:
        yield kept
    finally:
        for _, state in kept:
            if state is not None:
                state.close()


def _without_sudo(system: System | None) -> System | None:
    return None if system is None else msgspec.structs.replace(system, sudo=False)


def check_system(snapshot: Snapshot, system: System | None) -> None:
    """Refuse the snapshot of another system than the sandbox has: its processes could not go on."""
    if _without_sudo(snapshot.system) != _without_sudo(system):
        made_on = "the host's system" if snapshot.system is None else f"the image {snapshot.system.image}"
        raise ValidationFailed(
            f"snapshot {snapshot.id} was made on {made_on}, this sandbox has another system: create one from it"
        )
