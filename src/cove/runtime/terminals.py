"""All terminals of one sandbox."""

import asyncio
import builtins
import os
from functools import partial

from cove.core.command import Invocation
from cove.core.identifier import check_id, new_identifier
from cove.errors import FileNotFound, TerminalNotFound
from cove.linux.descriptors import Kind, is_kind
from cove.linux.packets import close_all
from cove.model import TerminalInfo
from cove.runtime.spawner import Spawner
from cove.runtime.terminal import Terminal, check_size, set_size


class Terminals:
    """Owns the terminals by id. While one is being made, everybody who asks for its id waits for the same one."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._terminals: dict[str, Terminal] = {}
        self._making: dict[str, asyncio.Task[Terminal]] = {}

    async def get_or_create(self, id: str | None, invocation: Invocation, cols: int, rows: int) -> Terminal:
        """The running terminal with that id, or a new one."""
        check_size(cols, rows)
        id = new_identifier() if id is None else check_id("terminal", id)
        existing = self._terminals.get(id)
        if existing is not None and existing.is_running:
            return existing
        if id not in self._making:
            self._making[id] = asyncio.get_running_loop().create_task(self._make(id, invocation, cols, rows))
            self._making[id].add_done_callback(partial(self._made, id))
        return await asyncio.shield(self._making[id])

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
        if self._making:
            await asyncio.wait(builtins.list(self._making.values()))
        for terminal in builtins.list(self._terminals.values()):
            terminal.close()
        self._terminals.clear()

    def _made(self, id: str, task: "asyncio.Task[Terminal]") -> None:
        del self._making[id]
        if not task.cancelled() and task.exception() is None:
            self._terminals.pop(id, None)
            self._terminals[id] = task.result()

    def _forget(self, id: str, terminal: Terminal) -> None:
        if self._terminals.get(id) is terminal:
            del self._terminals[id]

    async def _make(self, id: str, invocation: Invocation, cols: int, rows: int) -> Terminal:
        answer = await self._spawner.link.request(
            b"terminal", expect_fields=1, expect_descriptors=2, subject="a new terminal"
        )
        master, slave = answer.descriptors
        try:
            if not (is_kind(master, Kind.TERMINAL_MASTER) and is_kind(slave, Kind.TERMINAL_SLAVE)):
                raise FileNotFound("the sandbox gave something that is not a terminal")
            set_size(master, cols, rows)
            process = await self._spawner.spawn(invocation, _no_pipes, tty=answer.fields[0])
            # Our copy of the slave keeps the pty from looking closed until the process has opened its own.
            await asyncio.shield(process.started)
            if not process.pid:
                raise FileNotFound(process.refusal)
        except BaseException:
            os.close(master)
            raise
        finally:
            close_all([slave])
        terminal = Terminal(id, process, master, cols, rows, lambda: self._forget(id, terminal))
        return terminal


def _no_pipes(stream: int, data: bytes) -> None:
    """Only what Cove itself has to say about a program that could not be started comes here."""
