"""The system's Chromium, driven by Playwright, on the console of a server."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, BrowserContext, async_playwright

import cove.server.console
from bench.harness import Skipped

_OPTIONS = (
    "--no-sandbox",  # as root it has none, and nothing hostile is shown
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP *.localhost 127.0.0.1",
)
_STATIC = Path(cove.server.console.__file__).parent / "static"
_LOG_IN = """async key => (await fetch("/console/login", {method: "POST", body: JSON.stringify({key})})).status"""
_WAIT_MILLISECONDS = 60_000.0


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser that is gone at the end; Skipped where there is none, or no console."""
    program = shutil.which("chromium")
    if program is None:
        raise Skipped("there is no chromium: apt install chromium")
    if not (_STATIC / "index.html").exists():
        raise Skipped("the console is not built: make console")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=_OPTIONS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def logged_in(browser: Browser, url: str, key: str, **options: object) -> AsyncIterator[BrowserContext]:
    """A new profile that is logged in at a server."""
    context = await browser.new_context(**options)  # type: ignore[arg-type]  # by the names of its parameters
    context.set_default_timeout(_WAIT_MILLISECONDS)
    try:
        page = await context.new_page()
        await page.goto(url)
        status = await page.evaluate(_LOG_IN, key)
        assert status == 204, status
        await page.close()
        yield context
    finally:
        await context.close()


def address(url: str) -> str:
    """The console as people name it, so that previews are of another host."""
    return url.replace("127.0.0.1", "localhost")
