"""The console with much to show: many sandboxes, a flood of output, a narrow screen."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from support.browsers import browsing, chromium, made, needs_chromium, needs_console, own_server
from support.servers import Server

from cove import AsyncSandbox

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.timeout(120),
    needs_chromium,
    needs_console,
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as running:
        yield running


@asynccontextmanager
async def at_tab(server: Server, tab: str) -> AsyncIterator[tuple[AsyncSandbox, Page]]:
    """A new sandbox, and the console at one of its tabs."""
    async with (
        made(server, f"at-{tab}") as sandbox,
        chromium() as browser,
        browsing(server, browser, f"/sandboxes/at-{tab}/{tab}") as page,
    ):
        yield sandbox, page


async def test_a_process_that_floods_its_log_does_not_freeze_the_page(server: Server) -> None:
    async with at_tab(server, "processes") as (_, page):
        await page.fill("input[name=command]", "yes 0123456789012345678901234567890123456789")
        await page.click("form.command button")
        await expect(page.locator(".xterm-rows")).to_contain_text("0123456789")
        assert await page.locator(".xterm-rows > div").count() < 200
        await page.click("#tab-files")
        await expect(page.locator("[data-directory]").first).to_be_visible()


async def test_a_file_is_uploaded(server: Server, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    (tmp_path / "sent.bin").write_bytes(content)
    async with at_tab(server, "files") as (sandbox, page):
        await page.set_input_files("input[type=file]", tmp_path / "sent.bin")
        await page.wait_for_selector("[data-file='/workspace/sent.bin']")
        assert await sandbox.files.read("sent.bin") == content


async def test_the_journal_shows_what_was_done(server: Server) -> None:
    async with at_tab(server, "journal") as (sandbox, page):
        await sandbox.exec("echo told; exit 3")
        line = page.locator(".line.bad[data-kind=exec]")
        await expect(line).to_contain_text("echo told")
        await expect(line).to_contain_text("exit 3")
        await page.fill("input[aria-label='Filter the journal']", "no such words")
        await expect(line).to_have_count(0)


async def test_of_five_hundred_sandboxes_only_those_in_view_are_in_the_page(server: Server) -> None:
    rows: list[dict[str, object]] = [
        {
            **dict.fromkeys(("owner", "image", "node", "ends_at", "memory_limit", "cpu_limit", "network_refused")),
            **dict.fromkeys(("memory_bytes", "cpus", "processes", "network_sent_bytes", "network_received_bytes"), 1),
            "id": f"box-{number:03}",
            "status": "running",
            "labels": {},
            "created_at": "2026-01-01T00:00:00Z",
        }
        for number in range(500)
    ]
    body = f"event: snapshot\ndata: {json.dumps({'interval': 2.0, 'at': 0, 'sandboxes': rows})}\n\n"
    async with chromium() as browser, browsing(server, browser) as page:
        await page.route(
            "**/v1/console/events", lambda route: route.fulfill(body=body, content_type="text/event-stream")
        )
        await page.reload()
        await expect(page.locator("[data-sandbox=box-000]")).to_be_visible()
        assert 0 < await page.locator("[data-sandbox]").count() < 60
        await page.fill("input[aria-label='Search sandboxes']", "box-499")
        await expect(page.locator("[data-sandbox=box-499]")).to_be_visible()
        await expect(page.locator("[data-sandbox]")).to_have_count(1)


async def test_the_list_is_used_by_keyboard_on_a_phone(server: Server) -> None:
    async with made(server, "small"), chromium() as browser, browsing(server, browser) as page:
        await page.set_viewport_size({"width": 360, "height": 740})
        await expect(page.locator("[data-sandbox=small]")).to_be_visible()
        await page.keyboard.press("/")
        await page.keyboard.type("small")
        await page.locator("[data-sandbox=small] a").focus()
        await page.keyboard.press("Enter")
        await page.locator("#tab-terminal").focus()
        await page.keyboard.press("ArrowRight")
        await expect(page.locator("#tab-processes")).to_have_attribute("aria-selected", "true")
        assert await page.evaluate("() => document.documentElement.scrollWidth") <= 360
