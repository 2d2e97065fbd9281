"""All processes of one sandbox, running and remembered."""

import asyncio
import builtins
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cove.core.command import Invocation, parse_signal
from cove.core.identifier import check_id, new_identifier
from cove.core.output_log import STREAMS
from cove.errors import ProcessAlreadyExists, ProcessNotFound, SpawnFailed
from cove.local.pipe import Stdin
from cove.model import JournalKind
from cove.runtime.log import Log
from cove.runtime.process import Process
from cove.runtime.process_output import Take
from cove.runtime.spawner import Spawner
from cove.tasks import settled, together

MOST_REMEMBERED = 1000
# Disk space for the logs of one sandbox; with a limit on its disk, one of so many shares of that.
LOG_BYTES = 1 << 30
LOG_SHARES = 4


class Processes:
    """Owns the processes by id. An id is taken before the first await."""

    def __init__(self, spawner: Spawner, logs: Path, most_log_bytes: int) -> None:
        self._spawner = spawner
        self._logs = logs
        self._most_log_bytes = most_log_bytes
        self._processes: dict[str, Process] = {}

    async def start(
        self,
        command: str | Sequence[str],
        invocation: Invocation,
        *,
        id: str | None,
        timeout: float | None,
        stdin: bool,
        keep: bool,
        lossless: bool = False,
        session_id: str | None = None,
    ) -> Process:
        """Start a process and wait until it exists."""
        id = new_identifier() if id is None else check_id("process", id)
        if id in self._processes:
            raise ProcessAlreadyExists(f"process {id} exists already: choose another id, or cleanup_processes()", id=id)
        deadline = None if timeout is None else self._spawner.clock.time() + timeout
        stdin_read, stdin_write = _make_pipe() if stdin else (None, None)
        writer = None if stdin_write is None else Stdin(stdin_write)
        process = Process(id, command, link=self._spawner.link, stdin=writer, session_id=session_id)
        self._processes[id] = process
        journal = self._spawner.link.journal
        try:
            with journal.call(JournalKind.PROCESS_STARTED, command, subject=id, session=session_id):
                await self._spawn(process, invocation, stdin_read, deadline, keep, lossless)
        except BaseException:
            self._processes.pop(id, None)
            if writer is not None:
                writer.close()
            raise
        finally:
            if stdin_read is not None:
                os.close(stdin_read)
        return process

    async def _spawn(
        self,
        process: Process,
        invocation: Invocation,
        stdin: int | None,
        deadline: float | None,
        keep: bool,
        lossless: bool,
    ) -> None:
        log = Log(
            self._logs,
            self._spawner.background,
            on_full=process.hold_output,
            on_room=process.release_output,
            on_grown=self._enforce_budget,
            on_read=partial(self._forget_if_done, process, keep),
            lossless=lossless,
        )
        process.log = log
        try:
            supervised = await self._spawner.spawn(
                invocation, self._sink(process), stdin=stdin, deadline=deadline, on_spawn=process.expect
            )
        except TimeoutError:
            raise SpawnFailed("the process could not be started within its timeout. Nothing was started.") from None
        supervised.started.result()
        process.attach()
        supervised.ended.add_done_callback(lambda _: self._on_end(process, keep))

    def _sink(self, process: Process) -> Take:
        """Return what takes the output of a process: its log, and the journal where that keeps output."""
        journal, append = self._spawner.link.journal, process.log.append
        if not journal.keeps_output:
            return append

        def take(stream: int, data: bytes) -> None:
            append(stream, data)
            journal.record_output(JournalKind.PROCESS_STARTED, process.id, STREAMS[stream], data)

        return take

    @property
    def log_bytes(self) -> int:
        """The bytes that all logs take on disk."""
        return sum(process.log.disk_bytes for process in self._processes.values() if process.is_attached)

    def get(self, id: str) -> Process:
        """Return the process with that id, once it runs."""
        process = self._processes.get(check_id("process", id))
        if process is None or not process.is_attached:
            raise ProcessNotFound(f"there is no process {id} in this sandbox", id=id)
        return process

    def list(self) -> builtins.list[Process]:
        """Return all of them, oldest first."""
        return [process for process in self._processes.values() if process.is_attached]

    async def kill_all(self, signal: int | str) -> int:
        """Signal every running one."""
        number = parse_signal(signal)
        running = [process for process in self.list() if process.ended_at is None]
        await together(process.kill(number) for process in running)
        return len(running)

    def cleanup(self) -> int:
        """Forget the ended ones."""
        ended = [process for process in self._processes.values() if process.ended_at is not None]
        for process in ended:
            self._forget(process)
        return len(ended)

    async def close(self) -> None:
        """Free the logs of all."""
        freed = [self._forget(process) for process in list(self._processes.values())]
        for each in freed:
            if each is not None:
                await settled(each)

    def _on_end(self, process: Process, keep: bool) -> None:
        self._record_end(process)
        self._forget_if_done(process, keep)
        ended = [other for other in self._processes.values() if other.ended_at is not None]
        for other in ended[:-MOST_REMEMBERED]:
            self._forget(other)

    def _record_end(self, process: Process) -> None:
        with self._spawner.link.journal.call(JournalKind.PROCESS_ENDED, subject=process.id) as entry:
            end = process.supervised.ended.result()
            entry.use(end)
            entry.fields["outcome"], entry.fields["exit_code"] = end.outcome, end.exit_code
            entry.fields["signal"], entry.fields["session"] = end.signal, process.session_id
            entry.fields["output_bytes"] = int(process.log.cursor)
            entry.began = process.began

    def _forget_if_done(self, process: Process, keep: bool) -> None:
        if not keep and process.ended_at is not None and not process.log.readers:
            self._forget(process)

    def _forget(self, process: Process) -> "asyncio.Future[None] | None":
        if self._processes.get(process.id) is not process:
            return None
        del self._processes[process.id]
        return process.log.discard() if process.is_attached else None

    def _enforce_budget(self) -> None:
        """Over the sandbox's share, the oldest output of ended processes goes first, then of the largest log."""
        logs = [process.log for process in self._processes.values() if process.is_attached and process.log.disk_bytes]
        while sum(log.disk_bytes for log in logs) > min(LOG_BYTES, self._most_log_bytes):
            ended = [log for log in logs if log.has_ended and log.disk_bytes]
            victim = ended[0] if ended else max(logs, key=lambda log: log.disk_bytes)
            victim.drop_oldest()


def _make_pipe() -> tuple[int, int]:
    """A pipe that the sandbox's user can open again as /dev/stdin: proc(5)."""
    try:
        read, write = os.pipe2(os.O_CLOEXEC)
    except OSError as error:
        raise SpawnFailed(f"no pipe for the standard input: {error}. Nothing was started.") from error
    os.fchmod(read, 0o666)
    return read, write
