"""Restore the shell of a session whose sandbox was stopped: it sleeps, and wakes when it is next used."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import msgspec

from cove.core.jail import WORKSPACE
from cove.errors import FileNotFound
from cove.local.threads import start_in_thread
from cove.runtime.kept_sessions import Kept, KeptSession, SleepingSession, encode_command
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell_command import ShellEnded
from cove.runtime.shell_snapshot import ShellSnapshot, StateTooLarge
from cove.tasks import Once, settled

# A shell at its loop, by directory, variables, the state it is made from or None, and its user.
OpenShell = Callable[[str, Mapping[str, str], ShellSnapshot | None, bytes], Awaitable[SessionShell]]


class RestorableShell:
    """The shell of a session, or what it is restored from. Invariant: `live` is in use unless it sleeps."""

    live: SessionShell

    def __init__(self, shell: SessionShell | None, sleeping: SleepingSession | None) -> None:
        if shell is not None:
            self.live = shell
        self._sleeping = sleeping
        self._waking: Once[None] = Once()

    @property
    def is_sleeping(self) -> bool:
        """Return whether it has to be restored before it is used."""
        return self._sleeping is not None

    @property
    def is_alive(self) -> bool:
        """The shell lives, is being replaced, or sleeps."""
        return self._sleeping is not None or self.live.current.is_alive or self.live.is_recovering

    @property
    def is_recovering(self) -> bool:
        """Return whether it is being interrupted or replaced."""
        return self._sleeping is None and self.live.is_recovering

    @property
    def cwd(self) -> str:
        """The directory it is in, or will be."""
        return self.live.cwd if self._sleeping is None else os.fsdecode(self._sleeping.kept.cwd)

    @property
    def pid(self) -> int | None:
        """The pid inside; None while it sleeps, and of one that slept to its end."""
        if self._sleeping is not None or not hasattr(self, "live"):
            return None
        return self.live.current.process.pid

    async def keep(self, session: KeptSession, seconds: float | None) -> Kept:
        """Return what brings the session back: the state as it is now, if said within `seconds`, or as it was last."""
        if self._sleeping is not None:
            return await _keep_again(self._sleeping.share())
        shell = self.live
        if seconds is not None and shell.is_stale and shell.is_quiet:
            await _refresh(shell, seconds)
        kept = msgspec.structs.replace(
            session,
            cwd=os.fsencode(shell.cwd),
            command=encode_command(shell.state_command),
            is_behind=shell.is_stale or shell.current.is_busy,
        )
        return kept, shell.share_state()

    async def wake(self, open_shell: OpenShell, user: bytes) -> None:
        """Have a shell. Whoever has the session's turn calls it; a cancelled caller does not end it."""
        if self._sleeping is not None:
            if self._waking.is_done:  # that of an earlier sleep: its last caller may have been cancelled
                self._waking = Once()
            await self._waking.run(partial(self._start, self._sleeping, open_shell, user))

    async def _start(self, sleeping: SleepingSession, open_shell: OpenShell, user: bytes) -> None:
        self.live = await _restore_or_open(sleeping, open_shell, user)
        sleeping.close()
        self._sleeping = None

    def sleep(self, sleeping: SleepingSession) -> None:
        """Sleep: the shell has ended with its sandbox, and was closed."""
        self._sleeping = sleeping

    async def end(self) -> None:
        """End the shell with all that its commands have started, also one that is being restored."""
        await self._waking.ended()
        if self._sleeping is None:
            await self.live.end()

    def close(self) -> None:
        """Free what the shell held, after it has ended. Idempotent."""
        if self._sleeping is not None:
            self._sleeping.close()
            self._sleeping = None
        elif hasattr(self, "live"):
            self.live.current.close()
            self.live.close_snapshot()


async def _restore_or_open(sleeping: SleepingSession, open_shell: OpenShell, user: bytes) -> SessionShell:
    """The shell as it was kept, or a fresh one where that cannot be had. The caller closes what was kept."""
    kept = sleeping.kept
    shell = await _restore(sleeping, open_shell, user)
    is_fresh = shell is None
    if shell is None:
        shell = await _open_fresh(os.fsdecode(kept.directory), kept.variables(), open_shell, user)
    command = None if is_fresh or kept.command is None else kept.command.decode("utf-8", "surrogatepass")
    shell.last_command = shell.restored_command = shell.state_command = command
    shell.is_replaced = is_fresh or kept.is_behind
    return shell


async def _restore(sleeping: SleepingSession, open_shell: OpenShell, user: bytes) -> SessionShell | None:
    """The shell as it was; None where nothing was kept, or what was kept makes no shell."""
    kept, state = sleeping.kept, None
    with suppress(OSError, StateTooLarge):
        state = await _load(sleeping)
    if state is None:
        return None
    shell = None
    try:
        shell = await open_shell(os.fsdecode(kept.cwd), kept.variables(), state, user)
        await shell.calm(state)
        return shell
    except (ShellEnded, FileNotFound):
        state.close()
        if shell is not None:
            await shell.end()
        return None
    except BaseException:
        state.close()
        raise


async def _open_fresh(directory: str, env: Mapping[str, str], open_shell: OpenShell, user: bytes) -> SessionShell:
    try:
        return await open_shell(directory, env, None, user)
    except FileNotFound:
        return await open_shell(WORKSPACE, env, None, user)


async def _refresh(shell: SessionShell, seconds: float) -> None:
    """Have the state as it is now, if the shell says it in time. What it still says later is waited for."""
    try:
        async with asyncio.timeout(seconds):
            await shell.snapshot()
    except (ShellEnded, StateTooLarge):
        return  # the last good one stays
    except TimeoutError:
        shell.start_settling(0)
    except asyncio.CancelledError:
        shell.start_settling(0)
        raise


async def _keep_again(sleeping: SleepingSession) -> Kept:
    """Return what was kept of a session that has not been used since; closes that."""
    try:
        return sleeping.kept, await _load(sleeping)
    except (OSError, StateTooLarge):
        return sleeping.kept, None
    finally:
        sleeping.close()


async def _load(sleeping: SleepingSession) -> ShellSnapshot | None:
    """Read its state, which the caller closes; a cancelled caller leaves nothing open."""
    return await settled(start_in_thread(sleeping.load), discard=_close)


def _close(state: ShellSnapshot | None) -> None:
    if state is not None:
        state.close()
