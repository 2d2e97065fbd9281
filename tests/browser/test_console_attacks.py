"""Hostile pages in a real browser, beside a console that is logged in: what they can reach of it is nothing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page
from support.browsers import address, browsing, chromium, made, needs_chromium, own_server
from support.servers import Server

pytestmark = [pytest.mark.anyio, pytest.mark.pure, needs_chromium]

HOSTILE = (Path(__file__).parent / "hostile.js").read_text()
# What a page gets of what it cannot read. That nothing was done by it is looked at on the server.
HARMLESS = ("refused", "opaque", False, 401, 403)
_SHOW = """async html => {
  const frame = Object.assign(document.createElement("iframe"), {src: "/console/frame"});
  const told = new Promise(resolve => addEventListener("message", event => {
    if (event.source !== frame.contentWindow) return;
    if (event.data.cove === "ready") frame.contentWindow.postMessage({cove: "html", html}, "*");
    if (event.data.found) resolve({found: event.data.found, origin: event.origin});
  }));
  document.body.append(frame);
  return await told;
}"""
_EMBED = """url => new Promise(resolve => {
  const frame = Object.assign(document.createElement("iframe"), {src: url, name: "preview"});
  frame.sandbox = "allow-scripts allow-forms allow-same-origin allow-popups allow-downloads allow-modals";
  frame.onload = () => resolve(true);
  document.body.append(frame);
})"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as running:
        yield running


async def is_untouched(server: Server, page: Page) -> bool:
    """Whether the console is still logged in, shows itself, and nothing was made."""
    status = await page.evaluate(
        """async () => (await fetch("/v1/sandboxes", {headers: {"cove-console": "1"}})).status"""
    )
    ids = [record.id for record in await asyncio.to_thread(server.directory.list)]
    return status == 200 and page.url.startswith(address(server)) and ids == ["victim"]


async def test_html_that_code_gave_reaches_neither_api_nor_cookie_nor_parent(server: Server) -> None:
    async with (
        made(server, "victim") as sandbox,
        chromium() as browser,
        browsing(server, browser) as page,
    ):
        await sandbox.terminal(id="main")
        api = address(server)
        html = f"<body><script>{HOSTILE}; attack('{api}').then(found => parent.postMessage({{found}}, '*'))</script>"
        shown = await page.evaluate(_SHOW, html)
        assert shown["origin"] == "null"
        assert {name: value for name, value in shown["found"].items() if value not in HARMLESS} == {}
        assert await is_untouched(server, page)


@pytest.mark.browser
@pytest.mark.parametrize("is_framed", [True, False])
@pytest.mark.parametrize("by_path", [True, False])
async def test_a_preview_reaches_neither_api_nor_cookie_nor_parent(
    server: Server, is_framed: bool, by_path: bool
) -> None:
    async with (
        made(server, "victim") as sandbox,
        chromium() as browser,
        browsing(server, browser) as page,
    ):
        await sandbox.terminal(id="main")
        await sandbox.files.write("index.html", f"<title>hostile</title><body><script>{HOSTILE}</script>")
        await sandbox.files.write("serve.py", _SERVE)
        process = await sandbox.start_process("python3 serve.py")
        await process.wait_for_port(8000)
        exposed = await sandbox.ports.expose(8000)
        found = await visit(page, exposed.path_url if by_path else exposed.url, server, is_framed=is_framed)
        assert {name: value for name, value in found.items() if value not in HARMLESS} == {}
        assert await is_untouched(server, page)
        seen = await sandbox.files.read_text("seen")
        assert "GET" in seen
        assert "cove_console" not in seen


async def visit(page: Page, url: str, server: Server, *, is_framed: bool) -> dict[str, object]:
    """What the attack at a URL finds, in a frame of the console or beside it."""
    if not is_framed:
        beside = await page.context.new_page()
        await beside.goto(url)
        frame = beside.main_frame
    else:
        await page.evaluate(_EMBED, url)
        embedded = page.frame("preview")
        assert embedded is not None
        frame = embedded
    found: dict[str, object] = await frame.evaluate("api => attack(api)", address(server))
    return found


_SERVE = """
import http.server

class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        with open("seen", "a") as file:
            file.write(f"GET {self.path} {self.headers}")
        super().do_GET()

    def end_headers(self):
        self.send_header("Set-Cookie", "cove_console=stolen; Path=/")
        super().end_headers()

http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
