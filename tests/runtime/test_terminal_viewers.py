"""Who watches a terminal sees every byte once, whenever they come, go and return."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.viewers import PROMPT, PS1, Viewer, plain_shell, python, watch

from cove import AsyncSandbox
from cove.api import Terminal
from cove.errors import ValidationFailed
from cove.model import Exit, Gap, Output, Ready, TerminalEvent
from cove.runtime.terminal import SCROLLBACK_BYTES

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

# Twenty megabytes in which every place is different: nine bytes a line.
LINES = 2_222_222
WHOLE = b"".join(b"%07d\r\n" % number for number in range(1, LINES + 1))
COUNT = ["bash", "-c", f"seq -w 1 {LINES} | cat"]


@dataclass
class Follower:
    """A viewer that checks every byte against its place in the whole; it may leave and come back."""

    terminal: Terminal
    lossless: bool
    viewer: Viewer
    cursor: int | None
    missed: int = 0
    is_ready: bool = False
    end: Exit | None = None

    @classmethod
    async def start(cls, terminal: Terminal, since: int | None, lossless: bool) -> "Follower":
        connection = terminal.connect(since=None if since is None else str(since), lossless=lossless)
        await connection.open()
        return cls(terminal, lossless, Viewer(connection), since)

    async def read(self, events: int) -> None:
        while events and self.end is None:
            self.check(await self.viewer.next())
            events -= 1

    async def read_what_is_there(self, events: int) -> None:
        """Without waiting: the program may be waiting for us."""
        while events and self.end is None and (self.cursor or 0) < self.terminal.scrollback.end:  # type: ignore[attr-defined]  # the runtime's
            await self.read(1)
            events -= 1

    def check(self, event: TerminalEvent) -> None:
        at = int(event.cursor)
        match event:
            case Output():
                begin = at - len(event.data)
                self.check_begin(begin)
                assert event.data == WHOLE[begin:at]
            case Gap():
                assert event.bytes > 0
                self.check_begin(at - event.bytes)
                assert not (self.lossless and self.is_ready)
                self.missed += event.bytes
            case Ready():
                assert not self.is_ready
                assert self.cursor in (None, at)
                self.is_ready = True
            case Exit():
                assert at == self.cursor == len(WHOLE)
                assert event.exit_code == 0
                self.end = event
        self.cursor = at

    def check_begin(self, begin: int) -> None:
        """Where an event begins: where the last one ended, or at a line of what was kept when the viewer came."""
        if self.cursor is None:
            assert begin == 0 or WHOLE[begin - 1 : begin] == b"\n"
        else:
            assert begin == self.cursor

    async def leave_and_return(self) -> None:
        if self.end is None:
            await self.viewer.close()
            since = None if self.cursor is None else str(self.cursor)
            connection = self.terminal.connect(since=since, lossless=self.lossless)
            await connection.open()
            self.viewer, self.is_ready = Viewer(connection), False


async def flow(seed: int, patience: int) -> None:
    """One who misses nothing sets the pace; others come, read a little, leave and come back."""
    chance = random.Random(seed)
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=COUNT)
        pacer = await Follower.start(terminal, None, lossless=True)
        followers: list[Follower] = []
        while pacer.end is None:
            for follower in followers:
                if follower.lossless:
                    await follower.read_what_is_there(1 << 30)
            await pacer.read(1)
            await pacer.read_what_is_there(chance.randint(0, patience))
            if len(followers) < 12 and chance.random() < 0.2:
                since = chance.choice([None, 0, chance.randint(0, pacer.cursor or 0)])
                followers.append(await Follower.start(terminal, since, lossless=chance.random() < 0.2))
            for follower in followers:
                if chance.random() < 0.1:
                    await follower.read_what_is_there(chance.randint(1, 3))
                if chance.random() < 0.02:
                    await follower.leave_and_return()
        for follower in followers:
            await follower.read(1 << 30)
            assert follower.is_ready
        assert pacer.missed == 0


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30), patience=st.integers(1, 30))
def test_viewers_that_come_and_go_while_megabytes_flow_see_every_byte_once(seed: int, patience: int) -> None:
    asyncio.run(flow(seed, patience))


async def test_several_viewers_see_the_same() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "read; seq 1 20000; exit 3"])
        async with watch(terminal) as one, watch(terminal) as two, watch(terminal) as three:
            await two.write("go\n")
            ends = [await viewer.until_exit() for viewer in (one, two, three)]
        assert ends[0] == ends[1] == ends[2]
        assert ends[0][0] == b"go\r\n" + b"".join(b"%d\r\n" % number for number in range(1, 20001))


async def test_ready_marks_exactly_where_what_was_kept_ends() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=plain_shell(), env=PS1)
        async with watch(terminal) as first:
            await first.wait_for(PROMPT)
            await first.write("echo one\n")
            await first.wait_for("one\r\none\r\n" + PROMPT.decode())
            async with watch(terminal) as second:
                await first.write("echo two\n")
                await first.wait_for("two\r\ntwo\r\n")
                assert await second.until_ready() == b"in> echo one\r\none\r\nin> "
                assert await second.wait_for("two\r\ntwo\r\n") == b"echo two\r\ntwo\r\n"
            border = next(event for event in second.seen if isinstance(event, Ready))
            async with watch(terminal, since=border.cursor) as third:
                assert (await third.until_ready()).startswith(b"echo two\r\ntwo\r\n")


async def test_a_viewer_that_does_not_read_its_scroll_back_in_time_is_told_and_ready_stays_exact() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "echo before; read; seq -w 1 2222222 | cat"])
        async with watch(terminal) as pacer:
            await pacer.wait_for("before\r\n")
            async with watch(terminal) as slow:
                await pacer.write("\n")
                _, end = await pacer.until_exit()
                await slow.until_exit()
        gap, ready, second_gap, first_bytes = slow.seen[:4]
        assert isinstance(gap, Gap)
        assert isinstance(ready, Ready)
        assert isinstance(second_gap, Gap)
        assert isinstance(first_bytes, Output)
        assert (gap.bytes, gap.cursor, ready.cursor) == (8, "8", "8")
        kept = sum(len(event.data) for event in slow.seen if isinstance(event, Output))
        assert gap.bytes + second_gap.bytes + kept == int(end.cursor)
        assert SCROLLBACK_BYTES - 9 <= kept <= 2 * SCROLLBACK_BYTES
        assert first_bytes.data[7:9] == b"\r\n"


async def test_a_lossless_viewer_holds_the_program_back_until_it_reads_or_leaves() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=COUNT)
        async with watch(terminal) as other:
            async with watch(terminal, lossless=True) as slow:
                shown = await everything_now(other)
                assert shown < SCROLLBACK_BYTES
                for _ in range(20):
                    await slow.next()
                more = shown + await everything_now(other)
                assert shown < more < 3 * SCROLLBACK_BYTES
            _, end = await other.until_exit()
            assert int(end.cursor) == len(WHOLE)


async def everything_now(viewer: Viewer) -> int:
    """How much a viewer sees before nothing more comes."""
    total = 0
    while True:
        reading = asyncio.ensure_future(viewer.next())
        done, _ = await asyncio.wait([reading], timeout=0.5)
        if not done:
            reading.cancel()
            await asyncio.wait([reading])
            viewer.reconnect()
            return total
        event = reading.result()
        assert not isinstance(event, Gap | Exit)
        total += len(event.data) if isinstance(event, Output) else 0


async def test_a_lossless_viewer_that_comes_late_gets_everything_that_was_kept() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=COUNT)
        follower = await Follower.start(terminal, None, lossless=True)
        await follower.read(40)
        late = await Follower.start(terminal, follower.cursor, lossless=True)
        await asyncio.gather(follower.read(1 << 30), late.read(1 << 30))
        assert (follower.missed, late.missed) == (0, 0)


async def test_a_fresh_viewer_never_begins_inside_a_character_or_an_escape_sequence() -> None:
    text = """
import sys
line = "\\x1b[38;5;208mäöü€𝄞\\x1b[0m" * 3 + "\\n"
for _ in range(60000):
    sys.stdout.write(line)
"""
    line = ("\x1b[38;5;208mäöü€𝄞\x1b[0m" * 3 + "\r\n").encode()
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(text))
        starts = 0
        async with watch(terminal, lossless=True) as pacer:
            while not isinstance(event := await pacer.next(), Exit):
                async with watch(terminal) as fresh:
                    first = await fresh.next()
                    if isinstance(first, Output) and first.cursor != str(len(first.data)):
                        starts += 1
                        assert first.data.startswith(line[: len(first.data)])
            assert int(event.cursor) == 60000 * len(line)
        assert starts > 10


async def test_characters_that_arrive_in_pieces_are_whole_when_put_together() -> None:
    text = """
import os
for byte in "grüße €𝄞".encode() * 50:
    os.write(1, bytes([byte]))
print("€" * 100000)
"""
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(text))
        async with watch(terminal) as viewer:
            data, _ = await viewer.until_exit()
    assert data.decode() == "grüße €𝄞" * 50 + "€" * 100_000 + "\r\n"


async def test_leaving_and_watching_again_disturbs_nobody() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["cat"])
        async with watch(terminal) as steady:
            for number in range(50):
                async with watch(terminal) as passing:
                    await passing.write(f"{number}\n")
                    await passing.wait_for(f"{number}\r\n{number}\r\n")
                await steady.wait_for(f"{number}\r\n{number}\r\n")


async def test_a_viewer_that_is_closed_while_it_waits_stops_without_an_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["sleep", "1000"])
        async with terminal.connect() as connection:
            reading = asyncio.ensure_future(_collect(connection.events()))
            await asyncio.sleep(0)
            await connection.close()
            assert [type(event) for event in await reading] == [Ready]


async def _collect(events: AsyncIterator[TerminalEvent]) -> list[TerminalEvent]:
    return [event async for event in events]


@pytest.mark.parametrize("since", ["", "x", "-1", "1.0", "999999", "9" * 30, 5, b"0"])
async def test_a_cursor_that_no_event_carried_is_refused(since: object) -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["echo", "words"])
        async with watch(terminal) as viewer:
            await viewer.until_exit()
        with pytest.raises(ValidationFailed, match="not a cursor"):
            async with terminal.connect(since=since):  # type: ignore[arg-type]  # on purpose
                pass
