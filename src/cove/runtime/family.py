"""Families: an executor and its forked copies, which live below one launcher and are supervised one by one.

Theory of operation. A supervised process has a parent (`Parent`): it signals it, hands it pipes, and has it end the
process's tree. Usually that is a launcher of its own, a `Lease` from the pool. A process that forks copies of itself
shares its launcher with them: from then on each of them has a `Member` instead, which speaks for one branch of what is
below the launcher (executor/fork_launcher). The family is the launcher's tenant, and hands each member what is its.

The launcher is given back when the last member has been. If it has not said by then that nothing is left, it is ended
as a whole: what no branch could be blamed for ends with the last member.

What can go wrong, and why it does not:

- A branch does not end, because code inside forks faster than it can be killed: after ANSWER_SECONDS the launcher is
  ended with all its members, which init does and nothing escapes.
- The launcher is killed: every member hears it, and the first one has init end what is left, once for all.
- Two members are ended at the same time: neither is the last when it begins, so the one that is released last finds a
  launcher that may have left-overs, and ends it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from cove.agent.protocol import ProtocolError
from cove.errors import CoveError
from cove.runtime.launcher import Launcher, LauncherPool, Tenant
from cove.runtime.link import ANSWER_SECONDS
from cove.tasks import Once, Tasks

SPAWNED: Final = b""
# Labels are counted down: a limit that was lowered cannot be raised again (setrlimit(2)), and copies fork too.
_FIRST_LABEL: Final = 2_000_000_000
# What a member says of itself, in the launcher's words.
_SCOPES: Final = {b"main": b"copy", b"tree": b"branch"}


class Parent(ABC):
    """The parent of one supervised process: a launcher, its own or shared."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher

    @property
    def closed(self) -> bool:
        """Return whether it is gone."""
        return self.launcher.closed

    @property
    def host_pid(self) -> "asyncio.Future[int]":
        """The launcher's process as the machine sees it."""
        return self.launcher.host_pid

    def drain(self, descriptors: Sequence[int]) -> None:
        """Hand over pipes that only left-over processes write to, and close them here."""
        self.launcher.drain(descriptors)

    @property
    @abstractmethod
    def never_read_spawn(self) -> bool:
        """Return whether it ended before it read the last spawn request: nothing was started."""

    @abstractmethod
    def signal(self, number: int, scope: bytes = b"tree", label: bytes = b"", ticks: int = 0) -> "asyncio.Future[int]":
        """Signal what `scope` says: see `agent.protocol`. Gives their number; 0 when it is gone."""

    @abstractmethod
    def release(self) -> None:
        """Give it back: the tree is empty, or gone with it."""

    @abstractmethod
    async def wake(self) -> None:
        """Continue what code inside may have stopped before it could become the command."""

    @abstractmethod
    async def end(self) -> None:
        """Kill everything of the process; returns when nothing of it is left. It can start nothing more."""


class Lease(Parent):
    """A launcher that one process has for itself."""

    def __init__(self, launcher: Launcher, pool: LauncherPool) -> None:
        super().__init__(launcher)
        self.pool = pool

    @property
    def never_read_spawn(self) -> bool:
        return self.launcher.never_read_spawn

    def signal(self, number: int, scope: bytes = b"tree", label: bytes = b"", ticks: int = 0) -> "asyncio.Future[int]":
        return self.launcher.signal(number, scope, label, ticks)

    def release(self) -> None:
        self.pool.release(self.launcher)

    async def wake(self) -> None:
        await self.pool.wake(self.launcher)

    async def end(self) -> None:
        await self.pool.end(self.launcher)
        self.launcher.hear()  # what it said last, and whether it had read what to start
        self.launcher.close()


class Member(Parent):
    """One process of a family: its launcher is shared, its branch is not."""

    def __init__(self, family: "Family", label: bytes, tenant: Tenant) -> None:
        super().__init__(family.launcher)
        self.family = family
        self.label = label
        self.tenant = tenant

    @property
    def never_read_spawn(self) -> bool:
        return False  # it runs already

    def signal(self, number: int, scope: bytes = b"tree", label: bytes = b"", ticks: int = 0) -> "asyncio.Future[int]":
        if self.label or scope == b"tree":
            scope = _SCOPES[scope]
        return self.launcher.signal(number, scope, self.label, ticks)

    def release(self) -> None:
        self.family.release(self)

    async def wake(self) -> None:
        """Do nothing: a copy runs from its first moment."""

    async def end(self) -> None:
        await self.family.end(self)


class Family:
    """The members by their labels. Invariant: while there is one, the launcher is not the pool's."""

    def __init__(self, lease: Lease, background: Tasks) -> None:
        self.launcher = lease.launcher
        self._lease = lease
        self._clock = lease.pool.clock
        self._background = background
        self._members: dict[bytes, Member] = {}
        self._labels = _FIRST_LABEL
        self._is_empty = False
        self._ending: Once[None] = Once()
        self.launcher.tenant = self

    def take_label(self) -> int:
        """Take a label for a copy that is about to be forked."""
        self._labels -= 1
        return self._labels

    def add(self, label: bytes, tenant: Tenant) -> Member:
        """Make a place for one more."""
        member = self._members[label] = Member(self, label, tenant)
        return member

    def release(self, member: Member) -> None:
        """Forget a member of which nothing is left; with the last one, give the launcher back."""
        self._members.pop(member.label, None)
        if self._members:
            return
        if self._is_empty or self.launcher.closed:
            self._lease.release()
        else:
            self._background.start(self._end_leftovers(), on_end=self._lease.release)

    async def end(self, member: Member) -> None:
        """End one branch; the last one, and one that does not go, with the whole launcher."""
        if len(self._members) > 1 and not self.launcher.closed and await self.end_branch(member.label):
            return
        await self._ending.run(self._end_all)

    async def end_branch(self, label: bytes) -> bool:
        """Kill what has this label; returns whether nothing of it is left."""
        until = self._clock.time() + ANSWER_SECONDS
        while await self.launcher.end_branch(label):
            if self._clock.time() > until:
                return False
        return not self.launcher.closed

    async def _end_all(self) -> None:
        await self._lease.end()
        self.launcher_gone()

    async def _end_leftovers(self) -> None:
        try:
            await self._ending.run(self._end_all)
        except CoveError:
            self.launcher.close()  # the sandbox is ending, and everything in it

    def launcher_said(self, fields: list[bytes]) -> None:
        """Hand on a message to the member it is about."""
        match fields:
            case [b"copy", label, *said] if label != SPAWNED and self._is_label(label):
                self._tell(label, said)
            case [b"empty"]:
                self._on_empty()
            case [b"exit", *said, empty]:
                self._tell(SPAWNED, [b"exit", *said, b"0"])
                if empty == b"1":
                    self._on_empty()
            case _:
                self._tell(SPAWNED, fields)

    def launcher_gone(self) -> None:
        """Handle the death of the launcher: every member loses it."""
        for member in list(self._members.values()):
            member.tenant.launcher_gone()

    def _tell(self, label: bytes, said: list[bytes]) -> None:
        """A member that was given up may still be spoken of."""
        if label in self._members:
            self._members[label].tenant.launcher_said(said)

    def _is_label(self, label: bytes) -> bool:
        if not label.isdigit() or not self._labels <= int(label) < _FIRST_LABEL:
            raise ProtocolError("a label that nobody has")
        return True

    def _on_empty(self) -> None:
        self._is_empty = True
        for label in list(self._members):
            self._tell(label, [b"empty"])
