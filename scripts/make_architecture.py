"""Draw docs/figures/architecture.svg from the boxes and arrows below; --check compares instead."""

import html
import sys
from dataclasses import dataclass
from pathlib import Path

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "architecture.svg"
WIDTH, HEIGHT = 970, 500
LINE = 17
# Light by itself; dark where the reader's browser asks for it. The background is the figure's own.
STYLE = """
svg{--page:#ffffff;--edge:#cbd5e1;--ink:#0f172a;--soft:#475569;--box:#f8fafc;--ours:#ccfbf1;--ours-edge:#0f766e;
--inside:#fef3c7;--inside-edge:#b45309;--wall:#be123c}
@media (prefers-color-scheme:dark){svg{--page:#0f172a;--edge:#475569;--ink:#f1f5f9;--soft:#cbd5e1;--box:#1e293b;
--ours:#134e4a;--ours-edge:#2dd4bf;--inside:#422006;--inside-edge:#f59e0b;--wall:#fb7185}}
text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:var(--soft)}
.name{font-size:15px;font-weight:650;fill:var(--ink)}
.page{fill:var(--page)}
.box{stroke-width:1.5}
.plain{fill:var(--box);stroke:var(--edge)}
.ours{fill:var(--ours);stroke:var(--ours-edge)}
.inside{fill:var(--inside);stroke:var(--inside-edge)}
.panel{fill:none;stroke:var(--inside-edge);stroke-width:1.5;stroke-dasharray:2 4}
.wall{stroke:var(--wall);stroke-width:2.5;stroke-dasharray:9 5}
.wallname{fill:var(--wall);font-weight:600}
.arrow{fill:none;stroke:var(--soft);stroke-width:1.8}
.head{fill:var(--soft)}
"""


@dataclass(frozen=True)
class Box:
    """A rectangle with a name, and lines that say what it does."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    name: str
    lines: tuple[str, ...] = ()

    def draw(self) -> str:
        middle = self.x + self.width // 2
        y = self.y + self.height // 2 - LINE * len(self.lines) // 2 + 5
        parts = [
            f'<rect class="box {self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" '
            'rx="9"/>',
            text(middle, y, self.name, "name"),
        ]
        parts += [text(middle, y + LINE * (number + 1), line) for number, line in enumerate(self.lines)]
        return "".join(parts)


@dataclass(frozen=True)
class Arrow:
    """A way through points, with a head at its end and a word beside it."""

    points: tuple[tuple[int, int], ...]
    word: str
    at: tuple[int, int]
    anchor: str = "start"

    def draw(self) -> str:
        path = "M" + "L".join(f"{x} {y}" for x, y in self.points)
        line = f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'
        return line + "".join(
            text(self.at[0], self.at[1] + LINE * number, line, anchor=self.anchor)
            for number, line in enumerate(self.word.split("\n"))
        )


BOXES = (
    Box(30, 30, 250, 72, "plain", "your program", ("cove.Sandbox, cove.AsyncSandbox",)),
    Box(340, 30, 180, 72, "plain", "clients", ("SDKs, curl, browsers,", "MCP hosts, E2B")),
    Box(690, 30, 180, 72, "ours", "cove serve", ("authenticates, routes,", "relays")),
    Box(30, 174, 600, 76, "ours", "runtime", ("owns processes, logs, sessions, terminals, code contexts, ports",)),
    Box(690, 174, 180, 76, "ours", "egress", ("resolves, judges, carries", "what the policy allows")),
    Box(
        60,
        370,
        250,
        80,
        "inside",
        "agent, PID 1",
        ("starts commands; opens files and", "ports with the sandbox's rights"),
    ),
    Box(440, 370, 400, 80, "inside", "bash, python3, node", ("and everything that they start",)),
)
ARROWS = (
    Arrow(((155, 102), (155, 170)), "calls, in the same process", (165, 142)),
    Arrow(((520, 66), (686, 66)), "HTTP, WebSocket", (603, 57), "middle"),
    Arrow(((715, 102), (715, 138), (560, 138), (560, 170)), "one process per sandbox", (550, 132), "end"),
    Arrow(((870, 212), (900, 212)), "allowed\nhosts", (908, 208)),
    Arrow(((185, 250), (185, 366)), "spawn, open,\nconnect", (195, 314)),
    Arrow(((540, 370), (540, 254)), "output, straight\nfrom the pipes", (530, 314), "end"),
    Arrow(((780, 370), (780, 254)), "connections", (770, 331), "end"),
    Arrow(((310, 410), (436, 410)), "starts", (373, 401), "middle"),
)


def text(x: int, y: int, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Words around, after or before a point."""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{html.escape(words)}</text>' if words else ""


def draw() -> str:
    """The whole figure."""
    wall = f'<line class="wall" x1="14" y1="284" x2="{WIDTH - 14}" y2="284"/>' + text(
        660, 308, "namespaces, seccomp, limits", "wallname"
    )
    panel = '<rect class="panel" x="30" y="346" width="840" height="128" rx="12"/>' + text(
        450, 467, "the sandbox: nothing in here can signal, trace or read what stands above"
    )
    head = (
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="head" d="M0 0L10 5L0 10z"/></marker></defs>'
    )
    parts = [head, f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="12"/>', wall, panel]
    parts += [box.draw() for box in BOXES] + [arrow.draw() for arrow in ARROWS]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        "<title>How Cove works</title>"
        "<desc>A program, or clients of a server, use a runtime that stands outside the sandbox. The runtime asks an "
        "agent inside to start commands; their output comes to it directly, and their connections pass a policy.</desc>"
        f"<style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


def main() -> int:
    if "--check" in sys.argv[1:]:
        is_same = FIGURE.exists() and FIGURE.read_text() == draw()
        print("" if is_same else "docs/figures/architecture.svg is out of date: run make picture", end="")
        return 0 if is_same else 1
    FIGURE.write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
