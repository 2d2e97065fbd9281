"""Run one call in the shell of a session: directory and variables of its own, its timeout, its result."""

import asyncio

import msgspec

from cove.core.command import encode_text
from cove.core.session_script import CWD_STATUS, READONLY_STATUS, RESTORE_SCRIPT, apply_script
from cove.errors import ValidationFailed
from cove.model import ExecResult, Outcome
from cove.runtime.exit_record import CWD_EXIT_CODE, KILLED_EXIT_CODE, TIMEOUT_EXIT_CODE
from cove.runtime.session_call import SessionCall
from cove.runtime.session_end import SessionEnd
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell_command import ShellEnded
from cove.runtime.spawner import Spawner


class SessionExec:
    """A call and the shell that runs it. Whoever has the session's turn runs it."""

    __slots__ = ("_call", "_clock", "_end", "_id", "_shell", "_spawner")

    def __init__(
        self, session_id: str, call: SessionCall, shell: SessionShell, end: SessionEnd, spawner: Spawner
    ) -> None:
        self._id = session_id
        self._call = call
        self._shell = shell
        self._end = end
        self._spawner = spawner
        self._clock = spawner.clock

    async def run(self) -> ExecResult:
        """Run it, and take back what it changed for itself. What a cancelled call runs is interrupted."""
        try:
            if self._call.timeout is not None:
                await self._shell.snapshot_if_old()
            result = await (self._run_changed() if self._call.changes_shell else self._run())
            return self._tell_of_replacement(result) if self._shell.is_replaced else result
        except asyncio.CancelledError:
            self._shell.start_settling(self._call.ticks)
            raise
        except ShellEnded as error:
            if error.end.outcome in (Outcome.LOST, Outcome.STOPPED):
                return self._call.result(self._id, error.end.outcome, error.end.exit_code)
            raise self._end.by_shell(error, self._spawner, self._call.output) from None

    async def _run_changed(self) -> ExecResult:
        """Run with a directory and variables of its own, which are taken back afterwards."""
        shell, before = self._shell.current, self._shell.cwd
        refusal = await self._apply()
        if refusal is not None:
            return refusal
        result = await self._run()
        if shell is self._shell.current and shell.is_alive:
            report = await shell.run_internal(RESTORE_SCRIPT)
            self._shell.note(report)
            if report.status == CWD_STATUS:
                complaint = f"cove: cannot go back to directory {before}: the session is now in {report.cwd}\n"
                self._call.captures[1].append(encode_text(complaint, "cwd"))
                result = msgspec.structs.replace(
                    result, stderr_bytes=result.stderr_bytes + encode_text(complaint, "cwd")
                )
        return result

    async def _apply(self) -> ExecResult | None:
        """Set directory and variables for one call; a result means that it does not run."""
        call = self._call
        cwd = call.cwd if call.cwd is None or call.cwd.startswith("/") else f"{self._shell.cwd}/{call.cwd}"
        report = await self._shell.current.run_internal(apply_script(cwd, call.env))
        if report.status == READONLY_STATUS:
            raise ValidationFailed(f"one of {', '.join(call.env)} is read-only in session {self._id}")
        if report.status != CWD_STATUS:
            return None
        call.captures[1].append(f"cove: cannot enter directory {cwd}\n".encode())
        return call.result(self._id, Outcome.EXITED, CWD_EXIT_CODE)

    async def _run(self) -> ExecResult:
        call, shell = self._call, self._shell
        shell.is_stale = True
        running = shell.current.start(call.text, call.captures, call.stdin)
        if not await running.wait(None if call.timeout is None else max(0.0, call.deadline - self._clock.time())):
            await shell.interrupt(call.ticks)
            return call.result(self._id, Outcome.TIMED_OUT, TIMEOUT_EXIT_CODE)
        report = running.report()
        if not call.changes_shell:
            shell.note(report)
        shell.last_command = call.label
        return call.result(self._id, await self._outcome(report.status), report.status)

    async def _outcome(self, status: int) -> Outcome:
        """A shell says 137 of a program that was killed; why, only the kernel knows."""
        if status == KILLED_EXIT_CODE and await self._spawner.was_out_of_memory():
            return Outcome.OUT_OF_MEMORY
        return Outcome.EXITED

    def _tell_of_replacement(self, result: ExecResult) -> ExecResult:
        """With the first result after it: whoever the shell was replaced for may have been cancelled."""
        self._shell.is_replaced = False
        return msgspec.structs.replace(result, session_restarted=True, restored_command=self._shell.restored_command)
