"""Record `cove demo` on a terminal: docs/figures/demo.cast for asciinema, and demo.svg, which plays it.

`--from FILE` draws a recording that is there already.
"""

import html
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

from rich.color_triplet import ColorTriplet
from rich.terminal_theme import TerminalTheme
from rich.text import Text

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
COLUMNS, ROWS = 100, 30
PROMPT, COMMAND = "\x1b[1;32m$\x1b[0m ", "cove demo"
# Time to type a character, the longest wait that is shown, to read a line, and to look at the end; in seconds.
TYPE, MOST_WAIT, READ, LAST = 0.07, 1.0, 0.22, 5.0
# The line with which a scene of the demo ends.
END_OF_SCENE = re.compile(r"^\d+ ms$")

CHARACTER, LINE, EDGE, BAR = 8.4, 19, 14, 34
BACKGROUND, FOREGROUND, SOFT = "#16181d", "#d8dee9", "#8b94a5"
ANSI = ("16181d", "ff6b6b", "7bd88f", "ffd866", "6cb6ff", "c792ea", "5ad4e6", "d8dee9")
BRIGHT = ("7a8394", "ff8b8b", "a0e8af", "ffe08a", "94ccff", "dab6f5", "8be5f2", "ffffff")

Event = tuple[float, str]


def main() -> None:
    if "--from" in sys.argv:
        cast = Path(sys.argv[sys.argv.index("--from") + 1]).read_text()
    else:
        cast = write_cast(list(paced(record())))
        (FIGURES / "demo.cast").write_text(cast)
    (FIGURES / "demo.svg").write_text(draw(read_cast(cast)))


def record() -> Iterator[Event]:
    """What the demo writes to a terminal, and when."""
    main_side, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (ROWS, COLUMNS))
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    # As users have it: compiled once, not each time.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(["cove", "exec", "true"], env=environment, check=True)
    began = time.monotonic()
    with subprocess.Popen(COMMAND.split(), stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as demo:
        os.close(terminal)
        rest = b""
        while data := _read(main_side):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield time.monotonic() - began, f"{line.decode()}\n"
    if demo.returncode != 0:
        raise SystemExit(f"the demo failed: {demo.returncode}")


def _read(descriptor: int) -> bytes:
    """Wait for output; nothing when the other side has ended, which pty(7) reports as an error."""
    select.select([descriptor], [], [])
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def paced(events: Iterator[Event]) -> Iterator[Event]:
    """Type the command, shorten waits, and leave time to read each scene."""
    now = 0.5
    yield now, PROMPT
    for character in COMMAND:
        now += TYPE
        yield now, character
    yield now, "\r\n"
    now += 0.4
    previous, unread = 0.0, 0
    for when, line in events:
        now += min(when - previous, MOST_WAIT)
        previous = when
        yield round(now, 3), line
        unread += 1
        if END_OF_SCENE.match(Text.from_ansi(line.rstrip("\r\n")).plain):
            now += READ * min(unread, 2 * ROWS)
            unread = 0


def write_cast(events: list[Event]) -> str:
    """The form of asciinema, version 2: a header, then an event on each line."""
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": COMMAND, "env": {"TERM": "xterm-256color"}}
    return "".join(f"{json.dumps(line)}\n" for line in (header, *([when, "o", text] for when, text in events)))


def read_cast(cast: str) -> list[Event]:
    return [(when, text) for when, kind, text in map(json.loads, cast.splitlines()[1:]) if kind == "o"]


@dataclass
class Row:
    """A line of the screen: when it appears, and for a typed one, when each character does."""

    when: float
    text: Text
    typed: list[float] = field(default_factory=list)


def rows_of(events: list[Event]) -> list[Row]:
    """Lines as a terminal of COLUMNS wraps them. Of the command, each character is an event of its own."""
    command = Text.from_ansi(PROMPT + COMMAND)
    typed = [when for when, _ in events[1 : 1 + len(COMMAND)]]
    rows = [Row(events[0][0], command, typed)]
    for when, line in events[2 + len(COMMAND) :]:
        text = Text.from_ansi(line.rstrip("\r\n"))
        cuts = range(COLUMNS, len(text), COLUMNS)
        rows += [Row(when, part) for part in text.divide(cuts)]
    return rows


def draw(events: list[Event]) -> str:
    """An animation in CSS that repeats; its last screen where the reader wants no motion."""
    rows = rows_of(events)
    clock = Clock(rows[-1].when + LAST)
    styles, shapes = [], []
    for number, (when, group) in enumerate(groupby(enumerate(rows), key=lambda place: place[1].when)):
        appears = clock.keyframes(f"r{number}", "opacity:0", [(when, "opacity:1")])
        styles.append(f"{appears}.r{number}{{animation-name:r{number}}}")
        shapes.append(f'<g class="a r{number}">{"".join(_line(at, row.text) for at, row in group)}</g>')
    styles += [
        clock.keyframes("s", "transform:none", _scrolling(rows)),
        clock.keyframes("c", "transform:none", _typing(rows[0].typed)),
        clock.style(max(0, len(rows) - ROWS) * LINE),
    ]
    return _window("".join(styles), "".join(shapes) + _cover())


@dataclass
class Clock:
    """The length of one repetition, in seconds, and what CSS calls its moments."""

    total: float

    def keyframes(self, name: str, first: str, steps: list[tuple[float, str]]) -> str:
        """Change in steps, each at its time."""
        parts = (f"{100 * when / self.total:.2f}%{{{what}}}" for when, what in steps)
        return f"@keyframes {name}{{0%{{{first}}}{''.join(parts)}}}"

    def style(self, end: int) -> str:
        """Repeat for ever, or stand still at the end."""
        still = f".a{{animation:none}}.s{{transform:translateY({-end}px)}}.c{{display:none}}"
        return (
            f".a{{animation:{self.total:.2f}s step-end infinite}}.s{{animation-name:s}}.c{{animation-name:c}}"
            f"@media (prefers-reduced-motion:reduce){{{still}}}"
        )


def _scrolling(rows: list[Row]) -> list[tuple[float, str]]:
    """Move up whenever a row appears below the last one."""
    below = {row.when: at + 1 - ROWS for at, row in enumerate(rows) if at >= ROWS}
    return [(when, f"transform:translateY({-over * LINE}px)") for when, over in below.items()]


def _typing(times: list[float]) -> list[tuple[float, str]]:
    """Move what covers the command by one character at a time."""
    return [(when, f"transform:translateX({(at + 1) * CHARACTER:.1f}px)") for at, when in enumerate(times)]


def _cover() -> str:
    x, width = EDGE + 2 * CHARACTER, (len(COMMAND) + 1) * CHARACTER
    return f'<rect class="a c" x="{x:.1f}" y="{BAR}" width="{width:.1f}" height="{LINE}" fill="{BACKGROUND}"/>'


def _window(style: str, shapes: str) -> str:
    """A terminal's window around what scrolls. Its background is its own, on light pages and on dark ones."""
    width, height, inside = round(2 * EDGE + COLUMNS * CHARACTER), BAR + ROWS * LINE + EDGE, ROWS * LINE
    font = "14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
    colours = enumerate(("#ff5f57", "#febc2e", "#28c840"))
    dots = "".join(f'<circle cx="{20 + 20 * at}" cy="17" r="6" fill="{colour}"/>' for at, colour in colours)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{COMMAND}: each surface of Cove in a real sandbox</title>"
        f"<style>text{{font:{font};fill:{FOREGROUND};white-space:pre}}.b{{font-weight:700}}{style}</style>"
        f'<rect width="{width}" height="{height}" rx="10" fill="{BACKGROUND}" stroke="{SOFT}"/>{dots}'
        f'<text x="{width // 2}" y="22" text-anchor="middle" style="fill:{SOFT}">cove</text>'
        f'<svg y="{BAR}" width="{width}" height="{inside}" viewBox="0 {BAR} {width} {inside}">'
        f'<g class="a s">{shapes}</g></svg></svg>\n'
    )


def _line(at: int, text: Text) -> str:
    """One row: a part for each colour, each as wide as its characters are."""
    y = BAR + at * LINE + 14
    marks = sorted({0, len(text), *(edge for span in text.spans for edge in (span.start, span.end))})
    return "".join(_part(text[start:end], EDGE + start * CHARACTER, y) for start, end in pairwise(marks))


def _part(text: Text, x: float, y: int) -> str:
    words = text.plain
    if not words.strip():
        return ""
    bare = words.lstrip()
    x += (len(words) - len(bare)) * CHARACTER
    bare = bare.rstrip()
    styles = [span.style for span in text.spans if not isinstance(span.style, str)]
    colour = next((style.color for style in reversed(styles) if style.color is not None), None)
    fill = f' style="fill:{colour.get_truecolor(THEME).hex}"' if colour and not colour.is_default else ""
    if any(style.dim for style in styles):
        fill = f' style="fill:{SOFT}"'
    bold = ' class="b"' if any(style.bold for style in styles) else ""
    length = f' textLength="{len(bare) * CHARACTER:.1f}"'
    return f'<text x="{x:.1f}" y="{y}"{length}{bold}{fill}>{html.escape(bare)}</text>'


def _triplet(colour: str) -> ColorTriplet:
    return ColorTriplet(*bytes.fromhex(colour.lstrip("#")))


THEME = TerminalTheme(_triplet(BACKGROUND), _triplet(FOREGROUND), [*map(_triplet, ANSI)], [*map(_triplet, BRIGHT)])


if __name__ == "__main__":
    main()
