"""All terminals of one sandbox: get or create, once for each id however many ask at the same time (single flight)."""

import asyncio
import builtins
import os
from dataclasses import dataclass
from functools import partial

from cove.core.command import Invocation
from cove.core.identifier import check_id, new_identifier
from cove.errors import (
    CoveError,
    FileNotFound,
    LimitExceeded,
    PermissionDenied,
    SpawnFailed,
    TerminalNotFound,
)
from cove.linux.descriptors import Kind, is_kind
from cove.local.threads import close_all
from cove.model import JournalKind, TerminalInfo
from cove.runtime.exit_record import NOT_EXECUTABLE_EXIT_CODE
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import Supervised
from cove.runtime.terminal import Terminal, check_size, expect_utf8, set_size
from cove.tasks import Tasks, shared

# Ended terminals whose last words can still be read.
MOST_REMEMBERED = 32
# The machine has kernel.pty.max of them for all its users, 4096 as a rule.
MOST_RUNNING = 256


@dataclass(slots=True, eq=False)
class _Making:
    """A terminal on its way, and how many wait for it; `is_taken` when one of them has got it."""

    task: "asyncio.Task[Terminal]"
    waiting: int = 0
    is_taken: bool = False


class Terminals:
    """Owns the terminals by id. While one is being made, everybody who asks for its id waits for the same one."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._terminals: dict[str, Terminal] = {}
        self._making: dict[str, _Making] = {}
        self._tasks = Tasks()

    async def get_or_create(self, id: str | None, invocation: Invocation, cols: int, rows: int) -> Terminal:
        """The running terminal with that id, or a new one."""
        check_size(cols, rows)
        id = new_identifier() if id is None else check_id("terminal", id)
        existing = self._terminals.get(id)
        if existing is not None and existing.is_running:
            return existing
        if id not in self._making:
            self._check_room()
            self._start_making(id, invocation, (cols, rows))
        return await self._wait(id, self._making[id])

    def _check_room(self) -> None:
        running = sum(terminal.is_running for terminal in self._terminals.values())
        if running + len(self._making) >= MOST_RUNNING:
            raise LimitExceeded(f"this sandbox has {MOST_RUNNING} terminals already: destroy some")

    def get(self, id: str) -> Terminal:
        """The terminal with that id."""
        try:
            return self._terminals[check_id("terminal", id)]
        except KeyError:
            raise TerminalNotFound(f"there is no terminal {id} in this sandbox", id=id) from None

    def list(self) -> builtins.list[TerminalInfo]:
        """All of them, oldest first."""
        return [terminal.info() for terminal in self._terminals.values()]

    async def close(self) -> None:
        """Free all of them, after the sandbox has ended."""
        await self._tasks.aclose()
        for terminal in builtins.list(self._terminals.values()):
            terminal.close()
        self._terminals.clear()

    def _start_making(self, id: str, invocation: Invocation, size: tuple[int, int]) -> None:
        task = self._tasks.start(self._make(id, invocation, size))
        making = self._making[id] = _Making(task)
        task.add_done_callback(partial(self._made, id, making))

    async def _wait(self, id: str, making: _Making) -> Terminal:
        """Wait for a terminal that is being made; when nobody waits any more, nothing is made."""
        making.waiting += 1
        try:
            terminal = await shared(making.task)
            making.is_taken = True
            return terminal
        except asyncio.CancelledError:
            if making.task.cancelled():
                raise self._spawner.link.explain(True) from None
            raise
        finally:
            making.waiting -= 1
            if not making.waiting and not making.is_taken:
                self._abandon(id, making)

    def _abandon(self, id: str, making: _Making) -> None:
        if self._making.get(id) is making:
            del self._making[id]
        if not making.task.done():
            making.task.cancel()
        elif not making.task.cancelled() and making.task.exception() is None:
            self._spawner.background.start(making.task.result().destroy())

    def _made(self, id: str, making: _Making, task: "asyncio.Task[Terminal]") -> None:
        if self._making.get(id) is making:
            del self._making[id]
        if not task.cancelled() and task.exception() is None:
            self._terminals.pop(id, None)
            self._terminals[id] = task.result()
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        ended = [terminal for terminal in self._terminals.values() if not terminal.is_running]
        for terminal in ended[:-MOST_REMEMBERED]:
            self._forget(terminal)

    def _forget(self, terminal: Terminal) -> None:
        if self._terminals.get(terminal.id) is terminal:
            del self._terminals[terminal.id]

    async def _make(self, id: str, invocation: Invocation, size: tuple[int, int]) -> Terminal:
        user = invocation.user or self._spawner.user
        answer = await self._spawner.link.request(
            b"terminal", expect_fields=1, expect_descriptors=2, subject="a new terminal", user=user
        )
        process: Supervised | None = None
        master, slave = answer.descriptors
        try:
            if not (is_kind(master, Kind.TERMINAL_MASTER) and is_kind(slave, Kind.TERMINAL_SLAVE)):
                raise SpawnFailed("the sandbox gave something that is not a terminal")
            set_size(master, *size)
            expect_utf8(master)
            process = await self._spawner.spawn(invocation, _no_pipes, tty=answer.fields[0])
            await shared(process.started)
            if not process.pid:
                raise _refusal(process)
            journal = self._spawner.link.journal
            command = [os.fsdecode(word) for word in invocation.argv]
            with journal.call(JournalKind.TERMINAL_STARTED, command, subject=id, cols=size[0], rows=size[1]):
                pass
            return Terminal(id, process, (master, slave), size, self._forget, journal)
        except BaseException:
            close_all([master, slave])
            if process is not None:
                self._spawner.background.start(process.sweep())
            raise


def _refusal(process: Supervised) -> CoveError:
    if not process.refusal:
        return SpawnFailed("the terminal's process was killed before it ran. Nothing was started.")
    end = process.ended.result()
    return (PermissionDenied if end.exit_code == NOT_EXECUTABLE_EXIT_CODE else FileNotFound)(process.refusal)


def _no_pipes(stream: int, data: bytes) -> None:
    """Only what Cove itself has to say about a program that could not be started comes here."""
