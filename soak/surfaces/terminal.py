"""Terminals whose program shows what is typed, byte for byte."""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from cove.api import Terminal
from cove.errors import TerminalNotFound
from cove.model import Exit, Gap, Outcome, Output, Ready
from soak.hand import Hand, Step, Surface
from soak.model import TypedModel, check
from soak.possible import Violation

_PROGRAM = ["bash", "-c", "stty raw -echo; printf 'R'; exec cat"]
_MOST = 2
_MOST_CURSORS = 8


@dataclass
class _Known:
    """A terminal, what was typed, and the longest stream any viewer has seen."""

    terminal: Terminal
    typed: TypedModel
    shown: bytes = b""
    cursors: list[tuple[str | None, int]] = field(default_factory=lambda: [(None, 0)])

    def see(self, offset: int, data: bytes) -> None:
        """A viewer saw this from that offset on."""
        seen = self.shown[:offset] + data
        longer, shorter = (seen, self.shown) if len(seen) > len(self.shown) else (self.shown, seen)
        if not longer.startswith(shorter):
            raise Violation(f"two viewers of {self.terminal.id} saw different bytes: {seen!r}, {self.shown!r}")
        self.shown = longer
        if self.typed.is_complete(longer):
            self.typed.observe(longer)


class Terminals(Surface):
    """Typed into and looked at by viewers that come and go."""

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        self._known: list[_Known] = []

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        some = 1.0 if self._known else 0.0
        return {
            self._open: 1 if len(self._known) < _MOST else 0,
            self._type: 4 * some,
            self._look: 4 * some,
            self._resize: 0.5 * some,
            self._destroy: 0.3 * some,
        }

    def forget(self) -> None:
        """See Surface."""
        self._known.clear()

    async def _open(self) -> None:
        id = self.hand.new_id("terminal")
        opened = self.hand.sandbox.terminal(id=id, shell=_PROGRAM)
        answer = await self.hand.call(f"terminal {id}", opened)
        if not answer.is_done:
            return
        known = _Known(answer.get(), TypedModel(b"R"))
        if (await self._view(known, None, 0, is_steady=True)) is not None:
            self._known.append(known)

    async def _type(self) -> None:
        known = self.hand.random.choice(self._known)
        piece = f"<{self.hand.number()}{'x' * self.hand.random.choice((0, 5, 500))}>".encode()
        answer = await self.hand.call(f"type {known.terminal.id} {piece[:20]!r}", _type(known.terminal, piece))
        known.typed.type(piece, is_certain=answer.is_done)

    async def _look(self) -> None:
        known = self.hand.random.choice(self._known)
        since, offset = self.hand.random.choice(known.cursors)
        await self._view(known, since, offset)

    async def _view(self, known: _Known, since: str | None, offset: int, *, is_steady: bool = False) -> bytes | None:
        """Look until everything that must be shown is."""
        before = known.shown[:offset]
        label = f"view {known.terminal.id} from {offset}"
        answer = await self.hand.call(label, _view(known, since, before), is_steady=is_steady)
        if not answer.is_done:
            return None
        view = answer.get()
        data, cursor = view.data, view.cursor
        if view.outcome is not None:
            raise Violation(f"the program of {known.terminal.id} ended: {view.outcome}")
        known.see(offset, data)
        if cursor is not None:
            known.cursors.append((cursor, offset + len(data)))
            del known.cursors[1:-_MOST_CURSORS]
        return data

    async def _resize(self) -> None:
        known = self.hand.random.choice(self._known)
        size = self.hand.random.randrange(1, 1000), self.hand.random.randrange(1, 1000)
        await self.hand.call(f"resize {known.terminal.id} {size}", known.terminal.resize(*size))

    async def _destroy(self) -> None:
        known = self.hand.random.choice(self._known)
        self._known.remove(known)
        destroyed = known.terminal.destroy()
        await self.hand.call(f"destroy-terminal {known.terminal.id}", destroyed, TerminalNotFound, is_steady=True)

    async def verify(self) -> None:
        """See Surface."""
        for known in self._known:
            data = await self._view(known, None, 0, is_steady=True)
            check("what was typed is shown", data is None or known.typed.is_complete(data), data)

    async def empty(self) -> None:
        """See Surface."""
        self.forget()
        listed = await self.hand.call("list-terminals", self.hand.sandbox.list_terminals(), is_steady=True)
        for info in listed.value or ():
            found = await self.hand.call(
                f"get-terminal {info.id}", self.hand.sandbox.get_terminal(info.id), TerminalNotFound, is_steady=True
            )
            if found.is_done:
                await self.hand.call(f"destroy-terminal {info.id}", found.get().destroy(), is_steady=True)


async def _type(terminal: Terminal, piece: bytes) -> None:
    async with terminal.connect() as viewer:
        await viewer.write(piece)
        async with aclosing(viewer.events()) as events:
            async for event in events:
                if isinstance(event, Ready | Exit):
                    return


@dataclass(frozen=True)
class _View:
    """What a viewer saw; `outcome` is how the program ended, if it did."""

    data: bytes
    cursor: str | None
    outcome: Outcome | None = None


async def _view(known: _Known, since: str | None, before: bytes) -> _View:
    data, cursor = bytearray(), since
    async with known.terminal.connect(since=since) as viewer, aclosing(viewer.events()) as events:
        async for event in events:
            if isinstance(event, Gap):
                raise Violation(f"a gap of {event.bytes} bytes in {known.terminal.id}")
            cursor = event.cursor
            if isinstance(event, Exit):
                return _View(bytes(data), cursor, event.outcome)
            data += event.data if isinstance(event, Output) else b""
            if known.typed.is_complete(before + data):
                break
    return _View(bytes(data), cursor)
