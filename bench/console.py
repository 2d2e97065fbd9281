"""The web console in a real browser: its first page, a key and its echo on the screen, and the memory of a long log."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from string import ascii_lowercase

from playwright.async_api import Browser, BrowserContext, CDPSession, Page

from bench.chromium import address, chromium, logged_in
from bench.harness import Figure, Plan, Sample, Unit, at_most, interleave, single, value_at_most
from bench.proc import descendants, memory_of
from bench.server import server
from cove import AsyncSandbox
from cove.model import Output, Ready

_ECHO = ["python3", "-I", "-c", "import os, tty; tty.setraw(0)\nwhile 1: os.write(1, os.read(0, 1))"]
_LINE = "0123456789" * 9 + "\n"
_MOST_FIRST_SECONDS = 1.0
# When the list has come and takes clicks, on the clock that begins with the navigation.
_WATCH_FIRST = """new MutationObserver(() => {
  const isThere = document.querySelector("[data-action=create]") && document.querySelector("[data-sandbox]");
  if (isThere) window.interactiveAt ??= performance.now();
}).observe(document, {subtree: true, childList: true, attributes: true});"""
# From the key's own event until the screen shows its letter.
_WATCH_KEYS = """() => {
  const rows = document.querySelector(".xterm-rows");
  let pressed = null;
  addEventListener("keydown", event => pressed = {letter: event.key, at: event.timeStamp}, true);
  new MutationObserver(() => {
    if (pressed === null || rows.textContent.trimEnd().at(-1) !== pressed.letter) return;
    window.echoed = {letter: pressed.letter, took: performance.now() - pressed.at};
    pressed = null;
  }).observe(rows, {subtree: true, childList: true, characterData: true});
}"""


async def run(plan: Plan) -> list[Figure]:
    """Measure all three on one server."""
    with server() as (url, home, _):
        key = Path(home, "key").read_text().strip()
        async with (
            chromium() as browser,
            AsyncSandbox.create(id="measured", url=url, api_key=key) as sandbox,
        ):
            return [
                *await _first_page(browser, address(url), key, plan),
                await _keys(browser, address(url), key, sandbox, plan),
                *await _long_log(browser, address(url), key, sandbox, plan),
            ]


async def _first_page(browser: Browser, url: str, key: str, plan: Plan) -> list[Figure]:
    """Of a browser that was never here, and of one that was, beside an empty answer of the same server."""
    async with logged_in(browser, url, key) as kept:
        await kept.add_init_script(_WATCH_FIRST)

        async def first() -> float:
            async with logged_in(browser, url, key) as context:
                # The log-in has loaded the page: a browser that never did has nothing of it.
                await (await _cdp(context)).send("Network.clearBrowserCache")
                await context.add_init_script(_WATCH_FIRST)
                return await _interactive(context, url)

        async def again() -> float:
            return await _interactive(kept, url)

        async def empty() -> float:
            page = await kept.new_page()
            await page.goto(f"{url}/v1/health")
            seconds = await page.evaluate("() => performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000
            await page.close()
            return float(seconds)

        new, known, floor = await interleave([first, again, empty], repetitions=plan.times(15, 4))
    name = "an empty page"
    target = value_at_most(_MOST_FIRST_SECONDS)
    return [
        Figure(
            name="first page to interactive",
            unit=Unit.SECONDS,
            subject=new,
            floor=floor,
            floor_name=name,
            target=target,
        ),
        Figure(name="first page, known to the browser", unit=Unit.SECONDS, subject=known, floor=floor, floor_name=name),
    ]


async def _interactive(context: BrowserContext, url: str) -> float:
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_function("() => window.interactiveAt")
    seconds = await page.evaluate("() => window.interactiveAt") / 1000
    await page.close()
    return float(seconds)


async def _keys(browser: Browser, url: str, key: str, sandbox: AsyncSandbox, plan: Plan) -> Figure:
    """A key on the screen, beside the same key to a client without a screen: both go by the server."""
    await sandbox.terminal(id="seen", shell=_ECHO)
    async with (
        logged_in(browser, url, key) as context,
        _screen(context, f"{url}/#/sandboxes/{sandbox.id}/terminal") as page,
        _client(sandbox) as bare,
    ):
        await page.evaluate(_WATCH_KEYS)
        await page.locator("[data-terminal] textarea").focus()
        letters = cycle(ascii_lowercase)

        async def on_screen() -> float:
            letter = next(letters)
            await page.keyboard.press(letter)
            shown = await page.wait_for_function(
                "letter => window.echoed?.letter === letter && window.echoed", arg=letter
            )
            return float((await shown.json_value())["took"]) / 1000

        typed, floor = await interleave([on_screen, bare], repetitions=plan.times(200, 40), warm_up=10)
    return Figure(
        name="key and its echo on the screen",
        unit=Unit.SECONDS,
        subject=typed,
        floor=floor,
        floor_name="a client without a screen",
        # A screen is drawn sixty times in a second.
        target=value_at_most(0.05),
    )


@asynccontextmanager
async def _screen(context: BrowserContext, where: str) -> AsyncIterator[Page]:
    page = await context.new_page()
    await page.goto(where)
    await page.locator("[data-terminal][data-state=live]").wait_for()
    yield page
    await page.close()


@asynccontextmanager
async def _client(sandbox: AsyncSandbox) -> AsyncIterator[Sample]:
    terminal = await sandbox.terminal(id="bare", shell=_ECHO)
    async with terminal.connect() as connection:
        events = connection.events()
        assert isinstance(await anext(events), Ready)

        async def key() -> float:
            began = time.perf_counter()
            await connection.write(b"k")
            event = await anext(events)
            seconds = time.perf_counter() - began
            assert isinstance(event, Output), event
            return seconds

        yield key
        await events.aclose()
    await terminal.destroy()


async def _long_log(browser: Browser, url: str, key: str, sandbox: AsyncSandbox, plan: Plan) -> list[Figure]:
    """The tab's memory after it has followed a log, beside the same tab with a short one."""
    size = plan.times(100_000_000, 20_000_000)
    async with logged_in(browser, url, key) as context:
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        await page.goto(f"{url}/#/sandboxes/{sandbox.id}/processes")
        await _follow(page, "seq 100")
        before = await _memory(session)
        began = time.perf_counter()
        await _follow(page, f"yes {_LINE.strip()} | head -c {size}")
        seconds = time.perf_counter() - began
        after = await _memory(session)
    megabytes = size // 1_000_000
    return [
        Figure(
            name=f"{kind} of the tab after {megabytes} MB of log",
            unit=Unit.BYTES,
            subject=single(after[at]),
            floor=single(before[at]),
            floor_name="after a short log",
            target=at_most(2.0),
            facts={"seconds": round(seconds, 1)},
        )
        for at, kind in enumerate(("heap", "processes"))
    ]


async def _follow(page: Page, command: str) -> None:
    """Start a process and follow its log to its end."""
    shown = page.locator("[data-log]")
    before = await shown.get_attribute("data-log") if await shown.count() else None
    await page.fill("input[name=command]", command)
    await page.click("form.command button")
    await page.locator(f"[data-log]:not([data-log='{before}'])[data-state='exited 0']").wait_for(timeout=300_000)


async def _memory(session: CDPSession) -> tuple[int, int]:
    """The heap of the page after a collection, and what all processes of such pages have for themselves."""
    await session.send("HeapProfiler.collectGarbage")
    await asyncio.sleep(1)
    heap = await session.send("Runtime.getHeapUsage")
    return int(heap["usedSize"]), _renderers()


def _renderers() -> int:
    pids = [pid for pid in descendants(os.getpid()) if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    memory = memory_of(pids)
    return memory.rss if memory.uss is None else memory.uss


async def _cdp(context: BrowserContext) -> CDPSession:
    return await context.new_cdp_session(await context.new_page())
