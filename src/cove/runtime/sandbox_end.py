"""The end of a sandbox, or of its jail: what callers are told who come too late, or whose call it cut off."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cove.errors import ConnectionLost, CoveError, SandboxDestroyed, SandboxUnavailable, ValidationFailed
from cove.model import SandboxStatus
from cove.runtime.life import WAS_STOPPED, Life, refusal
from cove.tasks import Once


class SandboxEnd:
    """The end of one sandbox: `closing` ends what runs, `destroying` its files too; `why` its last jail did."""

    def __init__(self, life: Life, id: Callable[[], str]) -> None:
        self.loop = asyncio.get_running_loop()
        self.closing: Once[None] = Once()
        self.destroying: Once[None] = Once()
        self.why = ""
        self._life = life
        self._id = id

    def explain(self, may_have_run: bool) -> CoveError:
        """Make the error of a call that belonged to a jail that has ended."""
        if self.destroying.is_started:
            return SandboxDestroyed(f"sandbox {self._id()} was destroyed")
        what = self.why or "has ended"
        if self._life.status is SandboxStatus.LOST:
            what = f"was lost ({self._life.lost_because})"
        elif self.closing.is_started:
            what = "has stopped"
        elif not may_have_run and what == WAS_STOPPED and not self._life.wakes:
            return refusal(self._id(), SandboxStatus.STOPPED)
        if may_have_run:
            return ConnectionLost(
                f"sandbox {self._id()} {what} before it had answered: the call may have had its effect"
            )
        return SandboxUnavailable(f"sandbox {self._id()} {what} before the call reached it: nothing was started")

    @contextmanager
    def telling(self, consequence: str) -> Iterator[None]:
        """Tell a caller so whose change of the files fails because the sandbox is destroyed meanwhile."""
        try:
            yield
        except CoveError as error:
            if not self.destroying.is_started:
                raise
            raise SandboxDestroyed(f"sandbox {self._id()} was destroyed meanwhile: {consequence}") from error

    def check_running(self, *, has_jail: bool) -> None:
        """Raise what a call is told that cannot be made."""
        if self.destroying.is_started:
            raise SandboxDestroyed(f"sandbox {self._id()} was destroyed")
        if self.closing.is_started and self._life.stays_stopped:
            raise refusal(self._id(), SandboxStatus.STOPPED)
        if self.closing.is_started:
            raise SandboxUnavailable(f"sandbox {self._id()} has stopped; its files are kept: try again")
        if self._life.status is SandboxStatus.LOST:
            raise SandboxUnavailable(
                f"sandbox {self._id()} was lost: {self._life.lost_because}. "
                "`sandbox.restart()` starts it again on its files."
            )
        if not has_jail:
            raise self.explain(False)
        if asyncio.get_running_loop() is not self.loop:
            raise ValidationFailed(
                f"sandbox {self._id()} belongs to the event loop it was created in: use it there, or take cove.Sandbox"
            )
