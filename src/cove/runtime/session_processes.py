"""Processes started from the state of a session: they end with it when it is deleted."""

from collections.abc import Mapping, Sequence

from cove.core.session_script import process_invocation
from cove.runtime.process import Process
from cove.runtime.processes import Processes
from cove.runtime.shell_snapshot import ShellSnapshot


class SessionProcesses:
    """Starts the processes of one session in one jail, and knows which of them may be left."""

    __slots__ = ("_id", "_processes", "_started", "_user")

    def __init__(self, session_id: str, processes: Processes, user: bytes) -> None:
        self._id = session_id
        self._processes = processes
        self._user = user
        self._started: list[Process] = []

    async def start(
        self,
        command: str | Sequence[str],
        state: ShellSnapshot,
        *,
        cwd: str,
        env: Mapping[str, str | None],
        id: str | None,
        timeout: float | None,
        stdin: bool,
        keep: bool,
        lossless: bool,
    ) -> Process:
        """Start one with that state of the session's shell."""
        process = await self._processes.start(
            command,
            process_invocation(command, state.descriptor, cwd, env, self._user),
            id=id,
            timeout=timeout,
            stdin=stdin,
            keep=keep,
            lossless=lossless,
            session_id=self._id,
        )
        self._started = [other for other in self._started if other.supervised.launcher is not None] + [process]
        return process

    async def sweep(self) -> None:
        """Kill what is left of them."""
        for process in self._started:
            await process.supervised.sweep()
