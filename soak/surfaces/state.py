"""Snapshots and what is made of them: exact when they are made; after a fault, the old state or the new one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from cove import AsyncSandbox
from cove.api import Session
from cove.api.snapshot import AsyncSnapshot
from cove.errors import (
    SandboxStopped,
    SandboxUnavailable,
    SessionNotFound,
    SnapshotNotFound,
    TransactionOpen,
    ValidationFailed,
    VolumeNotFound,
)
from cove.model import FileChange, FileChangeKind, SandboxStatus
from soak.faults import Fault
from soak.hand import Hand, Step, Surface
from soak.model import ShellModel, check
from soak.surfaces.files import FileTree, read_all
from soak.surfaces.session import Sessions
from soak.trees import Found, Tree, copy_tree, observe

_MOST = 3
_LEASE = 1.0
_EXPIRY_SECONDS = 240.0  # a server that was killed comes back meanwhile
_PAUSE = 0.05


@dataclass
class _Saved:
    """A snapshot, and what the hand's own files and sessions were when it was made."""

    snapshot: AsyncSnapshot
    files: Tree
    sessions: Sessions.Saved


@dataclass
class _Seen:
    """What another sandbox has that was made of this one."""

    files: Found
    shell: str | None = None


class States(Surface):
    """Everything that copies the files of a sandbox, and goes back to them."""

    weight = 1.2

    def __init__(self, hand: Hand, files: FileTree, sessions: Sessions) -> None:
        super().__init__(hand)
        self._files = files
        self._sessions = sessions
        self._saved: list[_Saved] = []

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        some, subject = (1.0 if self._saved else 0.0), self.hand.subject
        sole = 1.0 if subject.is_sole else 0.0
        awake = sole if subject.idle_timeout is None else 0.0  # who falls asleep in the middle rolls back
        return {
            self._snapshot: 2 if len(self._saved) < _MOST else 0,
            self._create: 0.7 * some,
            self._fork: 0.7,
            self._changes: 1 * some,
            self._restore: 1.2 * some * sole,
            self._reset: 0.3 * sole,
            self._transaction: 1.5 * awake,
            self._vanish: 0.15 * awake,
            self._delete: 0.5 * some,
        }

    # Snapshots

    async def _snapshot(self) -> None:
        name, files, sessions = self.hand.new_id("snapshot"), self._files.remember(), self._sessions.remember()
        answer = await self.hand.call(f"snapshot {name}", self.hand.sandbox.snapshot(name, {"soak": self.hand.name}))
        if answer.is_done:
            check("a snapshot has its name", answer.get().name == name, answer.get().name)
            self._saved.append(_Saved(answer.get(), files, [] if self.hand.is_disturbed else sessions))
        else:
            self.hand.doubt()

    async def _create(self) -> None:
        """Another sandbox that stands on a snapshot has exactly what was there then."""
        saved, where = self._any(), self.hand.subject.where
        id = f"child-{self.hand.new_id('x')}"

        async def visit() -> _Seen:
            snapshot = saved.snapshot.id
            async with AsyncSandbox.create(id=id, snapshot=snapshot, url=where.url, api_key=where.key) as made:
                return await self._look(made, saved.sessions)

        answer = await self.hand.call(f"create-on {saved.snapshot.name}", visit())
        if answer.is_done:
            self._compare(answer.get(), saved, "what was made of a snapshot")
        else:
            self.hand.doubt()

    async def _fork(self) -> None:
        """Copies have what is here now; what is written to one is in no other."""
        count = self.hand.random.choice((1, 1, 2))
        saved = _Saved(None, self._files.remember(), self._sessions.remember())  # type: ignore[arg-type]  # only the rest is used
        gone = () if self.hand.subject.is_sole else (VolumeNotFound,)  # another user has just deleted it
        visit = self._visit_copies(count, saved.sessions)
        answer = await self.hand.call(f"fork {count}", visit, SessionNotFound, *gone)
        if not answer.is_done:
            is_told = answer.error is None or isinstance(answer.error, gone)
            check("copies have the sessions", is_told or self.hand.is_disturbed, answer.error)
            self.hand.doubt()
            return
        for seen in answer.get():
            self._compare(seen, saved, "a copy")

    async def _visit_copies(self, count: int, sessions: Sessions.Saved) -> list[_Seen]:
        copies = await self.hand.sandbox.fork(count)
        try:
            check("as many copies as were asked for", len(copies) == count, copies)
            seen = [await self._look(copy, sessions) for copy in copies]
            await copies[0].files.write(f"{self._files.directory}/of-a-copy", b"x")
            for other in (*copies[1:], self.hand.sandbox):
                there = await other.files.exists(f"{self._files.directory}/of-a-copy")
                check("copies share nothing", not there, other.id)
            return seen
        finally:
            for copy in copies:
                await copy.destroy()

    async def _look(self, made: AsyncSandbox, sessions: Sessions.Saved) -> _Seen:
        files = await read_all(made, self._files.directory)
        if not sessions:
            return _Seen(files)
        session: Session = await made.get_session(sessions[0][0].id)
        result = await session.exec('printf %s "$PWD|${v0-}"')
        if result.session_restarted:  # it says itself that it is not as it was
            self.hand.subject.where.history.counts["copied-sessions-behind"] += 1
            return _Seen(files)
        return _Seen(files, result.stdout)

    def _compare(self, seen: _Seen, saved: _Saved, what: str) -> None:
        observe(copy_tree(saved.files), seen.files, what)
        if seen.shell is not None:
            shell: ShellModel = saved.sessions[0][1]
            expected = f"{shell.cwd.certain}|{shell.variable('v0').certain or ''}"
            check(f"the session of {what} is as it was", seen.shell == expected or self.hand.is_disturbed, seen.shell)

    async def _changes(self) -> None:
        """A file that differs is listed, one that was never there is not."""
        saved, now = self._any(), self._files.remember()
        answer = await self.hand.call("changes", self.hand.sandbox.changes(since=saved.snapshot))
        if not answer.is_done:
            return
        listed: dict[str, FileChange] = {change.path: change for change in answer.get()}
        for name, file in now.items():
            before = saved.files[name]
            if not file.is_certain or not before.is_certain:
                continue
            change = listed.get(f"{self._files.directory}/{name}")
            expected = _kind(before.certain, file.certain)
            if expected is None:
                check(f"{name} is the same", change is None or file.certain is not None, change)
            else:
                check(f"{name} is {expected}", change is not None and change.kind is expected, change)

    async def _delete(self) -> None:
        saved = self._any()
        self._saved.remove(saved)
        await self._remove(saved)
        where = self.hand.subject.where
        found = AsyncSnapshot.get(saved.snapshot.id, url=where.url, api_key=where.key)
        gone = await self.hand.call("get-snapshot", found, SnapshotNotFound, is_steady=True)
        check("a deleted snapshot is gone", not gone.is_done, saved.snapshot.id)

    async def _remove(self, saved: _Saved) -> None:
        while True:
            answer = await self.hand.call("delete-snapshot", saved.snapshot.delete(), SnapshotNotFound, is_steady=True)
            if answer.is_certain:
                return
            await self.hand.subject.recover()

    def _any(self) -> _Saved:
        return self.hand.random.choice(self._saved)

    # Ways back

    async def _restore(self) -> None:
        saved = self._any()
        await self._go_back(
            f"restore {saved.snapshot.name}",
            lambda: self.hand.sandbox.restore(saved.snapshot),
            saved.files,
            saved.sessions,
        )

    async def _reset(self) -> None:
        nothing = {name: file.copy() for name, file in self._files.remember().items()}
        for file in nothing.values():
            file.become(None)

        async def reset() -> None:
            report = await self.hand.sandbox.reset()
            found = (report.files, report.processes, report.shared_memory)
            check("nothing is left after a reset", found == (0, 0, 0), report)

        subject = self.hand.subject
        if await self._go_back("reset", reset, nothing, []):
            subject.forget_settings()
        else:
            for setting in (subject.labels, subject.policy):
                setting.may_become("" if setting is subject.labels else subject.original_policy)
            for mounted in subject.mounted.values():
                mounted.may_become(False)

    async def _go_back(
        self, label: str, call: Callable[[], Awaitable[None]], files: Tree, sessions: Sessions.Saved
    ) -> bool:
        """Everything that runs is ended; files are those, or when the call was not answered, those or the present."""
        before, subject = self._files.remember(), self.hand.subject
        answer = await self.hand.call(label, _awaited(call))
        if answer.is_done:
            self._files.become(files)
            subject.ended(keeps_sessions=True)
            await self._sessions.go_back(sessions)
            return True
        await self._until_over()
        await self._files.settle(f"what {label} left", before, files)
        subject.ended()
        return False

    async def _until_over(self) -> None:
        """A call that nobody waited for may still go on: changes of a sandbox's life come one after the other."""
        began = self.hand.began
        await self.hand.subject.recover()
        await self._wake(began)
        await self.hand.call("pause", self.hand.sandbox.pause(), SandboxStopped, is_steady=True)
        await self._wake(began)

    async def _wake(self, began: float) -> None:
        """Use one that may sleep; a change since then that a fault has cut in half may have ended it."""
        subject, sandbox = self.hand.subject, self.hand.sandbox
        while True:
            has_met_faults = bool(subject.where.weather.during(subject.name, began))
            allowed = (SandboxUnavailable,) if has_met_faults else ()
            answer = await self.hand.call("exec true", sandbox.exec("true"), *allowed, is_steady=True)
            if answer.is_done:
                return
            info = await self.hand.insist("info", sandbox.info)
            if has_met_faults and info is not None and info.status is SandboxStatus.LOST:
                subject.lose(Fault.AGENT_KILLED)
            await subject.recover()

    # Transactions

    async def _transaction(self) -> None:
        """Everything that was written is kept, or nothing."""
        before, generation = self._files.remember(), self.hand.subject.generation
        begun = await self._begin(30.0)
        if begun is None:
            return
        for _ in range(self.hand.random.randrange(1, 4)):
            await self._files.change()
        if self.hand.random.random() < 0.2:
            await self._snapshot_refused()
        keeps = self.hand.random.random() < 0.5
        was_lost = self.hand.subject.is_lost
        sandbox = self.hand.sandbox
        call = sandbox.commit_transaction(begun) if keeps else sandbox.rollback_transaction(begun)
        answer = await self.hand.call("commit" if keeps else "rollback", call, ValidationFailed)
        after = self._files.remember()
        if answer.is_done and (keeps or not was_lost):
            self._files.become(after if keeps else before)
            if not keeps:
                self._rolled_back()
        elif was_lost or self.hand.subject.generation != generation:
            await self.hand.subject.recover()
            await self._files.settle("a transaction whose sandbox was lost", before)
        elif answer.is_certain and answer.error is not None and not self.hand.is_disturbed:
            check("an open transaction is not over", False, answer.error)
        else:
            await self._over(begun)
            await self._files.settle("an unanswered transaction", *((before, after) if keeps else (before,)))
            self._rolled_back()

    def _rolled_back(self) -> None:
        """What stands in the files that were taken back, or has some open, has ended."""
        self.hand.subject.ended(keeps_sessions=not self.hand.is_disturbed)

    async def _begin(self, lease: float) -> str | None:
        """Begin one. Of one that nobody knows the id of, the lease must end before anything else is known."""
        answer = await self.hand.call("begin", self.hand.sandbox.begin_transaction(lease=lease), is_steady=True)
        if answer.is_done:
            return answer.get()
        await self.hand.subject.recover()
        await self._until_none_is_open()
        return None

    async def _over(self, id: str) -> None:
        """It is over for certain, by whatever."""
        await self.hand.subject.recover()
        await self.hand.insist("rollback", lambda: self.hand.sandbox.rollback_transaction(id))

    async def _snapshot_refused(self) -> None:
        answer = await self.hand.call("snapshot within", self.hand.sandbox.snapshot(), TransactionOpen, is_steady=True)
        if answer.is_done:
            await answer.get().delete()
            check("no snapshot within a transaction", self.hand.is_disturbed, answer.value)
        elif not answer.is_certain:
            self.hand.doubt()

    async def _vanish(self) -> None:
        """Whoever began it is gone: it is rolled back when its lease ends."""
        before = self._files.remember()
        if await self._begin(_LEASE) is None:
            return
        await self._files.change()
        await self._until_none_is_open()
        await self._files.settle("a transaction whose lease has ended", before)
        self._rolled_back()

    async def _until_none_is_open(self) -> None:
        until = asyncio.get_running_loop().time() + _EXPIRY_SECONDS
        while True:
            answer = await self.hand.call(
                "begin again", self.hand.sandbox.begin_transaction(), TransactionOpen, is_steady=True
            )
            if answer.is_done:
                await self._over(answer.get())
                return
            await self.hand.subject.recover()
            check("a lease ends", asyncio.get_running_loop().time() < until, answer.error)
            await asyncio.sleep(_PAUSE)

    async def leave(self) -> None:
        """See Surface."""
        for saved in self._saved:
            await self._remove(saved)
        self._saved.clear()


def _kind(before: bytes | None, now: bytes | None) -> FileChangeKind | None:
    if before == now:
        return None
    if before is None:
        return FileChangeKind.ADDED
    return FileChangeKind.DELETED if now is None else FileChangeKind.MODIFIED


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()
