"""Draw docs/figures/console-*.png: every page of the console of a server with a few sandboxes at work.

Run as `python -m scripts.make_screenshots [--phone] [--dark] [--to DIRECTORY]`.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from playwright.async_api import Locator, Page

from bench.chromium import address, chromium, logged_in
from bench.harness import Skipped
from bench.server import server
from cove import AsyncApiKey, AsyncSandbox, AsyncVolume, NetworkPolicy
from cove.local.state import default_home
from cove.model import JournalDetail, Limits, Quota

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
DESKTOP, PHONE = {"width": 1200, "height": 700}, {"width": 390, "height": 800}
_SAMPLES_SECONDS = 24.0

WORK = """
import math, time
kept, began = [], time.time()
while True:
    at = time.time() - began
    busy = (0.45 + 0.4 * math.sin(at / 3 + {phase})) * {share}
    until = time.perf_counter() + 0.1 * busy
    while time.perf_counter() < until:
        pass
    time.sleep(0.1 * (1 - busy))
    size = int((30 + 25 * math.sin(at / 5 + {phase})) * {share}) * 1024 * 1024
    kept = bytearray(size) if abs(len(kept) - size) > 2**22 else kept
"""
TRAIN_LOG = """
import time
for epoch in range(1, 1000):
    loss = 2.4 / (1 + epoch / 3) + 0.05 * (epoch % 3)
    speed = 1800 + 37 * (epoch % 7)
    print(f"epoch {epoch:3}  loss {loss:.4f}  accuracy {1 - loss / 2.6:.3f}  {speed} samples/s", flush=True)
    time.sleep(0.4)
"""
PARSER = '''"""Parse durations such as "1h 30m" into seconds."""

import re

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WORD = re.compile(r"(\\d+(?:\\.\\d+)?)\\s*([smhd])")


def parse(text: str) -> float:
    """Return the seconds; raise ValueError for anything else."""
    found = WORD.findall(text)
    if not found:
        raise ValueError(f"no duration: {text!r}")
    return sum(float(number) * UNITS[unit] for number, unit in found)
'''
FIXED = PARSER.replace(
    "    found = WORD.findall(text)\n    if not found:",
    '    found = WORD.findall(text)\n    if not found or WORD.sub("", text).strip():',
)
TESTS = """import pytest
from parser import parse


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1h 30m", 5400), ("2d", 172800)])
def test_durations(text, seconds):
    assert parse(text) == seconds


def test_rubbish_is_refused():
    with pytest.raises(ValueError):
        parse("1h and a bit")
"""
SITE = """<!doctype html><meta charset="utf-8"><title>Report</title>
<style>body{font:16px system-ui;margin:32px;color:#1c2630}
td,th{padding:6px 18px 6px 0;border-bottom:1px solid #d5dde5;text-align:left}</style>
<h1>Nightly report</h1><p>Served from inside the sandbox.</p>
<table><tr><th>Suite<th>Passed<th>Failed<tr><td>parser<td>142<td>0<tr><td>network<td>87<td>1<tr><td>storage<td>310<td>0</table>"""
TERMINAL = "clear; PS1='\\[\\e[32m\\]agent\\[\\e[0m\\]:\\[\\e[34m\\]\\w\\[\\e[0m\\]$ '; clear"
PLOT = """import matplotlib.pyplot as plt, math
figure = plt.figure(figsize=(6, 2.3))
xs = [x / 10 for x in range(120)]
plt.plot(xs, [math.exp(-x / 5) * math.cos(2 * x) for x in xs])
plt.title("damped oscillation"); plt.show()"""
TABLE = """from IPython.display import HTML
HTML("<table style='font:14px system-ui;border-spacing:18px 4px'><tr><th>model<th>solved<th>seconds"
     "<tr><td>small<td>61 %<td>12.4<tr><td>large<td>78 %<td>31.0</table>")"""


async def main() -> int:
    options = _parse()
    os.environ.setdefault("COVE_PYTHON", str(default_home() / "python"))  # as `cove setup` has made it
    try:
        await draw(options)
    except Skipped as reason:
        print(f"Screenshots are left as they are: {reason}", file=sys.stderr)
    return 0


async def draw(options: argparse.Namespace) -> None:
    """Make a server with something to see, and take all pictures of it."""
    with server("--warm", "3") as (url, home, _):
        key = read_key(home)
        look = {"color_scheme": "dark" if options.dark else "light", "viewport": PHONE if options.phone else DESKTOP}
        async with chromium() as browser, AsyncExitStack() as made:
            guest = await (await browser.new_context(**look)).new_page()
            await guest.goto(address(url))
            await guest.locator("input[name=key]").wait_for()
            save(options.to, "login", await guest.screenshot())
            await furnish(url, key, made)
            async with logged_in(browser, address(url), key, **look) as context:
                page = await context.new_page()
                await page.goto(f"{address(url)}/#/sandboxes")
                for name, where, prepare in PAGES:
                    if options.only and name not in options.only:
                        continue
                    await page.goto(f"{address(url)}/#/{where}")
                    await prepare(page)
                    await page.wait_for_timeout(400)
                    save(options.to, name, await page.screenshot())
                    print(name, file=sys.stderr)


def read_key(home: str) -> str:
    return Path(home, "key").read_text().strip()


async def furnish(url: str, key: str, made: AsyncExitStack) -> None:
    """Sandboxes as agents have them."""
    web = await AsyncApiKey.create("web-team", url=url, api_key=key, quota=Quota(max_sandboxes=20, max_memory=8 << 30))
    await AsyncApiKey.create("nightly", url=url, api_key=key, quota=Quota(max_sandboxes=50, rate=100))
    await AsyncVolume.create("datasets", size=2 << 30, url=url, api_key=key)

    async def make(id: str, owner: str = key, **fields: object) -> AsyncSandbox:
        made_one = AsyncSandbox.create(id=id, url=url, api_key=owner, **fields)  # type: ignore[call-overload]  # by names
        sandbox: AsyncSandbox = await made.enter_async_context(made_one)
        return sandbox

    small = Limits(memory=1 << 30, cpus=1.0)
    stopped = await make("nightly-tests", labels={"team": "core"})
    scrape = await make("scrape-docs", web.key, labels={"task": "docs"})
    review = await make("review-pr-412", web.key, labels={"task": "review"})
    train = await make("train-small", labels={"team": "research", "run": "7"}, limits=small)
    policy = NetworkPolicy(allow=("pypi.org", "files.pythonhosted.org"))
    quiet = {"PYTHONDONTWRITEBYTECODE": "1"}
    fix = await make(
        "fix-parser", labels={"agent": "coder"}, limits=small, network=policy, env=quiet, journal=JournalDetail.OUTPUT
    )
    for phase, share, sandbox in ((0, 0.5, scrape), (2, 0.3, review), (4, 0.9, train), (1, 0.35, fix)):
        await sandbox.start_process(["python3", "-c", WORK.format(phase=phase, share=share)], id="worker")
    await train.start_process(["python3", "-c", TRAIN_LOG], id="training")
    await stopped.stop()
    await work_on(fix)


async def work_on(fix: AsyncSandbox) -> None:
    """What an agent does: it writes, snapshots, tests, changes, serves, and asks for what it may not have."""
    for path, content in (("parser.py", PARSER), ("test_parser.py", TESTS), ("README.md", "# parser\n")):
        await fix.files.write(path, content)
    await fix.files.write("site/index.html", SITE)
    await fix.snapshot("before-the-fix")
    session = await fix.create_session(id="agent")
    await session.exec("export STAGE=fix")
    await session.exec("python3 -c 'from parser import parse; print(parse(\"1h and a bit\"))'")
    await fix.files.write("parser.py", FIXED)
    await session.exec("python3 -c 'from parser import parse; print(parse(\"1h and a bit\"))'")
    await session.exec("cd site && ls -l && wc -c index.html")
    serving = await fix.start_process("python3 -m http.server 8000 --directory site", id="site")
    await serving.wait_for_port(8000)
    await fix.ports.expose(8000, name="report")
    for host in ("telemetry.example", "api.example", "telemetry.example"):
        await fix.exec(f"python3 -c 'import socket; socket.create_connection((\"{host}\", 443), 2)'")
    terminal = await fix.terminal(id="main")
    async with terminal.connect() as viewer:
        for line in (
            TERMINAL,
            "ls --color=always -l",
            "python3 -q -c 'import parser; print(parser.parse(\"1h 30m\"))'",
        ):
            await viewer.write(line.encode() + b"\n")
            await asyncio.sleep(0.7)


Prepare = Callable[[Page], Awaitable[object]]


async def terminal(page: Page) -> None:
    await page.locator("[data-terminal][data-state=live]").wait_for()
    await page.wait_for_timeout(500)


async def processes(page: Page) -> None:
    await page.locator("[data-process=training] .grow").click()
    await page.locator("[data-log] .xterm-rows").get_by_text("epoch").first.wait_for()
    await page.wait_for_timeout(3000)


async def sessions(page: Page) -> None:
    await page.locator("[data-session=agent] li").nth(3).wait_for()


async def code(page: Page) -> None:
    for number, text in enumerate((PLOT, TABLE), 1):
        await page.locator("[data-editor=cell] .cm-content").click()
        await page.keyboard.press("Control+a")
        await page.keyboard.insert_text(text)
        await page.locator("[data-action=run]").click()
        await page.locator(f"[data-cell='{number}'][data-running=false]").wait_for()


async def files(page: Page) -> None:
    await page.locator("[data-file$='/parser.py']").click()
    await page.locator("[data-editor] .cm-content").wait_for()


async def changes(page: Page) -> None:
    await page.get_by_role("button", name="Changes").click()
    options: Locator = page.locator("label:has-text('Against') option")
    await options.nth(1).wait_for(state="attached")
    await page.locator("label:has-text('Against') select").select_option(index=1)
    await page.get_by_role("button", name="modified").first.click()
    await page.locator(".diff").wait_for()


async def ports(page: Page) -> None:
    await page.get_by_role("button", name="Preview").click()
    await page.frame_locator("iframe.preview").locator("h1").wait_for()


async def journal(page: Page) -> None:
    await page.locator(".line").nth(8).wait_for()


async def usage(page: Page) -> None:
    await page.locator(".chart").first.wait_for()
    await page.wait_for_timeout(_SAMPLES_SECONDS * 1000)


async def network(page: Page) -> None:
    await page.locator("[data-host='telemetry.example']").first.wait_for()


async def whole_server(page: Page) -> None:
    await page.locator("[data-meter='Warm pool']").wait_for()
    await page.locator("[data-key=nightly]").wait_for()


async def sandboxes(page: Page) -> None:
    await page.locator("[data-sandbox=fix-parser]").wait_for()
    await page.wait_for_timeout(5000)


async def create(page: Page) -> None:
    await page.locator("[data-action=create]").click()
    await page.locator("input[name=id]").fill("fix-parser-2")
    await page.locator("select[name=network]").select_option("policy")
    await page.locator("input[name=domains]").fill("pypi.org files.pythonhosted.org")


_FIX = "sandboxes/fix-parser"
# The list comes last: its small charts have grown by then.
PAGES: tuple[tuple[str, str, Prepare], ...] = (
    ("terminal", f"{_FIX}/terminal", terminal),
    ("processes", "sandboxes/train-small/processes", processes),
    ("sessions", f"{_FIX}/sessions", sessions),
    ("files", f"{_FIX}/files", files),
    ("changes", f"{_FIX}/files", changes),
    ("ports", f"{_FIX}/ports", ports),
    ("journal", f"{_FIX}/journal", journal),
    ("usage", f"{_FIX}/usage", usage),
    ("network", f"{_FIX}/network", network),
    ("code", f"{_FIX}/code", code),
    ("server", "server", whole_server),
    ("sandboxes", "sandboxes", sandboxes),
    ("create", "sandboxes", create),
)


def save(to: Path, name: str, png: bytes) -> None:
    (to / f"console-{name}.png").write_bytes(png)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw the pages of the console.")
    parser.add_argument("--phone", action="store_true", help="as wide as a phone")
    parser.add_argument("--dark", action="store_true", help="with the dark theme")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="some of the pages")
    parser.add_argument("--to", type=Path, default=FIGURES, metavar="DIRECTORY")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
