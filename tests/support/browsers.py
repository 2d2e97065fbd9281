"""Chromium on the console of a server, as a user has it."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright

import cove.server.console
from cove import AsyncSandbox
from support.servers import Server, serving

CHROMIUM = shutil.which("chromium")
STATIC = Path(cove.server.console.__file__).parent / "static"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium")
needs_console = pytest.mark.skipif(
    not (STATIC / "index.html").exists(), reason="the console is not built: make console"
)

WAIT_MILLISECONDS = 30_000.0
_OPTIONS = [
    "--no-sandbox",  # as root it has none, and nothing here is hostile to this machine
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP *.localhost 127.0.0.1",
]
_LOG_IN = """async key => (await fetch("/console/login", {method: "POST", body: JSON.stringify({key})})).status"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser of its own, which is gone at the end."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=_OPTIONS)
        try:
            yield browser
        finally:
            await browser.close()


def address(server: Server) -> str:
    """The console as people name it: previews are then of another host, and of another port."""
    return server.url.replace("127.0.0.1", "localhost")


@asynccontextmanager
async def browsing(server: Server, browser: Browser, where: str = "") -> AsyncIterator[Page]:
    """A page of the console in a new profile, logged in by its API."""
    context = await browser.new_context()
    context.set_default_timeout(WAIT_MILLISECONDS)
    try:
        page = await context.new_page()
        await page.goto(address(server))
        assert await page.evaluate(_LOG_IN, server.key) == 204
        await page.goto(f"{address(server)}/#{where}")
        await page.reload()
        yield page
    finally:
        await context.close()


@asynccontextmanager
async def made(server: Server, id: str, **fields: object) -> AsyncIterator[AsyncSandbox]:
    """A sandbox that is destroyed at the end, also of a test that failed."""
    sandbox = await server.create(id, **fields)
    try:
        yield sandbox
    finally:
        await sandbox.destroy()


@contextmanager
def own_server(*options: str) -> Iterator[Server]:
    """A server on a state directory of its own."""
    home = Path(tempfile.mkdtemp(prefix="cove-browser-", dir="/tmp"))
    home.chmod(0o711)
    with serving(home, *options) as running:
        yield running
    shutil.rmtree(home)
