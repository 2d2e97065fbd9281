"""State that tools keep for one conversation: a shell, processes, code contexts, snapshots, outputs that were cut."""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from cove.api import AsyncSandbox, AsyncSnapshot, CodeContext, Files, Process, Session
from cove.core.model_text import cut_middle, make_readable
from cove.errors import ConnectionLost, NotFound, SandboxDestroyed, SandboxStopped, SessionNotFound, Unreachable
from cove.tools.result import ToolFailed

_MOST_OUTPUTS: Final = 16
_MOST_TEXT_CHARACTERS, _MOST_KEPT_CHARACTERS = 1 << 22, 1 << 24
_MOST_PROCESSES: Final = 100
_MOST_SNAPSHOTS: Final = 32
_GONE: Final = (NotFound, SandboxDestroyed, SandboxStopped, ConnectionLost, Unreachable)


def _bounded(text: str) -> str:
    """Leave out the middle of what is too much to be looked through at once, or to be kept."""
    cut = cut_middle(text, _MOST_TEXT_CHARACTERS)
    if cut.is_whole:
        return text
    return f"{cut.head}\n[{cut.end - cut.start} characters were not kept: ask for less at once]\n{cut.tail}"


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Budgets of one call: characters of text, images, seconds by default and at most, bytes kept of an output."""

    max_characters: int = 30_000
    max_images: int = 8
    timeout: float = 120.0
    max_timeout: float = 600.0
    max_output_bytes: int = 1 << 20


@dataclass(slots=True)
class StartedProcess:
    """A process of this conversation, and how far its output was read."""

    process: Process
    cursor: str | None = None
    has_ended: bool = False


@dataclass(slots=True)
class Conversation:
    """The state. Everything in it is made when it is first needed, and ended by `close`."""

    sandbox: AsyncSandbox
    limits: ToolLimits
    can_read_on: bool = True
    processes: dict[str, StartedProcess] = field(default_factory=dict)
    snapshots: dict[str, AsyncSnapshot] = field(default_factory=dict)
    edits: "OrderedDict[str, list[str | None]]" = field(default_factory=OrderedDict)
    _session: Session | None = None
    _contexts: dict[str, CodeContext] = field(default_factory=dict)
    _outputs: "OrderedDict[str, str]" = field(default_factory=OrderedDict)
    _count: int = 0
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    def seconds(self, asked: float | None) -> float:
        """Return the timeout for a call: what was asked for, within the limits."""
        return min(self.limits.timeout if asked is None else asked, self.limits.max_timeout)

    async def session(self) -> Session:
        """The shell of the conversation."""
        async with self._making:
            if self._session is None:
                self._session = await self.sandbox.create_session()
            return self._session

    async def files(self) -> Files:
        """The files, with relative paths from where the shell stands."""
        return (await self.session()).files

    def forget_session(self) -> None:
        """Make a new shell at the next call: this one has ended."""
        self._session = None

    async def restart_session(self) -> None:
        """End the shell and what it started, and make a new one at the next call."""
        session, self._session = self._session, None
        if session is not None:
            await session.delete()

    async def context(self, language: str) -> CodeContext:
        """The code context of that language."""
        async with self._making:
            if language not in self._contexts:
                self._contexts[language] = await self.sandbox.create_code_context(language)
            return self._contexts[language]

    async def drop_context(self, language: str) -> None:
        """Make a new context at the next call: the executor of this one has ended."""
        context = self._contexts.pop(language, None)
        if context is not None:
            with suppress(NotFound):
                await context.delete()

    def add_process(self, process: Process) -> str:
        """Keep a process; returns its name in this conversation."""
        for name, started in list(self.processes.items()):
            if len(self.processes) >= _MOST_PROCESSES and started.has_ended:
                del self.processes[name]
        name = self._new_name("process")
        self.processes[name] = StartedProcess(process)
        return name

    def check_process_room(self) -> None:
        """Refuse when too many processes run already."""
        if sum(not started.has_ended for started in self.processes.values()) >= _MOST_PROCESSES:
            raise ToolFailed(f"{_MOST_PROCESSES} processes were started already: end some with stop_process")

    def find_process(self, name: str) -> StartedProcess:
        """Return the process of that name; raises ToolFailed."""
        if name not in self.processes:
            known = ", ".join(list(self.processes)[-10:]) or "none yet: begin with start_process"
            raise ToolFailed(f"there is no process {name!r}; there are: {known}")
        return self.processes[name]

    def check_snapshot_room(self) -> None:
        """Refuse when too many snapshots were made."""
        if len(self.snapshots) >= _MOST_SNAPSHOTS:
            raise ToolFailed(f"there are {_MOST_SNAPSHOTS} snapshots already: go on without another")

    def fit(self, text: str, advice: str = "ask for less at once") -> str:
        """Cut a text to what a model should see; what is left out is kept for read_output, if it has that tool."""
        text = make_readable(_bounded(text))
        cut = cut_middle(text, self.limits.max_characters)
        if cut.is_whole:
            return text
        if not self.can_read_on:
            left_out = f"[{cut.end - cut.start} of {len(text)} characters left out here: {advice}]"
            return f"{cut.head}\n{left_out}\n{cut.tail}"
        name = self._new_name("output")
        self._outputs[name] = text
        while len(self._outputs) > 1 and (
            len(self._outputs) > _MOST_OUTPUTS or sum(map(len, self._outputs.values())) > _MOST_KEPT_CHARACTERS
        ):
            self._outputs.popitem(last=False)
        note = f"[{cut.end - cut.start} of {len(text)} characters left out here; to read them: read_output"
        return f'{cut.head}\n{note} with {{"id": "{name}", "offset": {cut.start}}}]\n{cut.tail}'

    def read_kept(self, name: str, offset: int) -> str | None:
        """Return a part of an output that was cut, and say where it goes on; None when there is no such output."""
        text = self._outputs.get(name)
        if text is None:
            return None
        part = text[offset : offset + self.limits.max_characters]
        end = offset + len(part)
        if end >= len(text):
            return part + "\n[the end]"
        return f'{part}\n[{len(text) - end} characters follow: {{"id": "{name}", "offset": {end}}}]'

    async def after_restore(self) -> None:
        """Forget what a restored sandbox no longer has; the shell comes back if it was there at the snapshot."""
        self.processes.clear()
        self._contexts.clear()
        if self._session is not None:
            try:
                self._session = await self.sandbox.get_session(self._session.id)
            except SessionNotFound:
                self._session = None

    async def close(self) -> None:
        """End the shell with all it started, the contexts, and remove the snapshots; the sandbox stays."""
        with suppress(*_GONE):
            await self.restart_session()
        for language in list(self._contexts):
            with suppress(*_GONE):
                await self.drop_context(language)
        while self.snapshots:
            _, snapshot = self.snapshots.popitem()
            with suppress(*_GONE):
                await snapshot.delete()
        self.processes.clear()

    def _new_name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"
