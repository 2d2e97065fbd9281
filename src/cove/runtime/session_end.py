"""The end of a session: its deletion, the exit of its shell, and what callers are told of either."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from cove.errors import CoveError, LimitExceeded, SandboxDestroyed, SessionNotFound, SessionTerminated
from cove.runtime.exit_record import KILLED_EXIT_CODE
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell_command import ShellEnded
from cove.runtime.shell_snapshot import MOST_STATE_BYTES, StateTooLarge
from cove.runtime.spawner import Spawner
from cove.tasks import Once

_T = TypeVar("_T")


class SessionEnd:
    """The end of one session, if it has come. `error` is what whoever uses the session is told from then on."""

    __slots__ = ("_id", "deletion", "error")

    def __init__(self, session_id: str) -> None:
        self._id = session_id
        self.deletion: Once[None] = Once()
        self.error: SessionTerminated | None = None

    @property
    def has_come(self) -> bool:
        """Return whether it has ended, or is being deleted."""
        return self.error is not None or self.deletion.is_started

    def expel(self, reason: str) -> None:
        """Let nothing more begin: everything that runs is ended."""
        self.error = SessionTerminated(f"session {self._id} has ended: {reason}", exit_code=KILLED_EXIT_CODE)

    def check(self) -> None:
        """Raise what whoever uses an ended session is told."""
        if self.deletion.is_started:
            raise SessionNotFound(f"session {self._id} was deleted", id=self._id)
        if self.error is not None:
            raise SessionTerminated(self.error.message, exit_code=self.error.exit_code, output=self.error.output)

    def by_shell(self, error: ShellEnded, spawner: Spawner, output: str = "", *, has_begun: bool = True) -> CoveError:
        """The error for a caller whose shell has ended. The session has, unless it comes back with its sandbox."""
        code = error.end.exit_code
        why = f"with exit code {code}"
        if spawner.closed:
            gone = spawner.link.explain(has_begun)
            if isinstance(gone, SandboxDestroyed):
                return gone
            why = f"because {gone.message}"
        if self.deletion.is_started:
            return SessionTerminated(f"session {self._id} was deleted", exit_code=code, output=output)
        end = SessionTerminated(
            f"the shell of session {self._id} has ended {why}: create the session again to go on",
            exit_code=code,
            output=output,
        )
        if not spawner.closed:
            self.error = end
        return end

    async def explained(self, work: Awaitable[_T], shell: SessionShell, spawner: Spawner) -> _T:
        """Do something of our own in the shell. What a cancelled caller leaves is undone before anybody else's turn."""
        try:
            return await work
        except asyncio.CancelledError:
            shell.start_settling(0)
            raise
        except ShellEnded as error:
            raise self.by_shell(error, spawner) from None
        except StateTooLarge:
            raise LimitExceeded(
                f"the state of session {self._id} is over {MOST_STATE_BYTES >> 20} MiB, too much for a process to "
                "start from: unset what is large, or use sandbox.start_process"
            ) from None
