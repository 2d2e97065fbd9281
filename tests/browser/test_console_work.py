"""Work in one sandbox by the console: terminals, sessions, files, previews, and the server's own page."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from support.browsers import (
    WAIT_MILLISECONDS,
    address,
    browsing,
    chromium,
    made,
    needs_chromium,
    needs_console,
    own_server,
)
from support.servers import Server

from cove import AsyncApiKey, AsyncSandbox

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.timeout(180),
    needs_chromium,
    needs_console,
]
expect.set_options(timeout=WAIT_MILLISECONDS)

_DROP = """([name, text]) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name));
  const target = document.querySelector(".two");
  for (const kind of ["dragover", "drop"]) {
    target.dispatchEvent(new DragEvent(kind, {dataTransfer: files, bubbles: true, cancelable: true}));
  }
}"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as running:
        yield running


@asynccontextmanager
async def at_tab(server: Server, tab: str, **fields: object) -> AsyncIterator[tuple[AsyncSandbox, Page]]:
    """A new sandbox, and the console at one of its tabs."""
    async with (
        made(server, f"at-{tab}", **fields) as sandbox,
        chromium() as browser,
        browsing(server, browser, f"/sandboxes/at-{tab}/{tab}") as page,
    ):
        yield sandbox, page


async def type_line(page: Page, text: str) -> None:
    await expect(page.locator("[data-terminal][data-state=live]")).to_be_visible()
    await page.locator("[data-terminal] textarea").focus()
    await page.keyboard.type(text + "\n")


async def test_terminals_have_tabs_search_links_fit_and_a_way_out_for_the_keyboard(server: Server) -> None:
    async with at_tab(server, "terminal") as (sandbox, page):
        rows = page.locator(".xterm-rows")
        await type_line(page, f"PS1='$ '; clear; echo in-$((1 + 1))-first; stty size; echo {address(server)}")
        await expect(rows).to_contain_text("in-2-first")
        size = await page.evaluate("() => [...document.querySelectorAll('.xterm-rows > div')].length")
        await expect(rows).to_contain_text(f"{size} ")
        async with page.context.expect_page() as opened:
            box = await rows.get_by_text(address(server)).last.bounding_box()
            assert box is not None
            await page.mouse.move(box["x"] + 20, box["y"] + box["height"] / 2)
            await expect(page.locator(".xterm-cursor-pointer")).to_be_attached()
            await page.mouse.click(box["x"] + 20, box["y"] + box["height"] / 2)
        await expect(await opened.value).to_have_title("Cove")
        await (await opened.value).close()
        await page.get_by_label("Search in terminal main").fill("-first")
        await page.keyboard.press("Enter")
        await expect(page.locator(".xterm-selection div").first).to_be_attached()
        await page.locator("[data-action=new-terminal]").click()
        await expect(page.get_by_role("group", name="Terminals").locator(".subtab")).to_have_count(2)
        await type_line(page, "echo in-$((1 + 2))-second")
        await expect(rows).to_contain_text("in-3-second")
        await expect(rows).not_to_contain_text("in-2-first")
        await page.get_by_role("button", name="main", exact=True).click()
        await expect(rows).to_contain_text("in-2-first")
        await page.locator("[data-terminal] textarea").focus()
        await page.keyboard.press("Shift+Escape")
        await expect(page.locator("#tab-terminal")).to_be_focused()
        assert len(await sandbox.list_terminals()) == 2


async def test_a_session_shows_what_ran_before_whoever_ran_it_and_its_state(server: Server) -> None:
    async with at_tab(server, "sessions") as (sandbox, page):
        session = await sandbox.create_session(id="agent")
        await session.exec("cd /tmp && export STAGE=before")
        await page.reload()
        await expect(page.locator("[data-command='cd /tmp && export STAGE=before']")).to_contain_text("exit 0")
        await expect(page.locator("[data-cwd]")).to_have_text("/tmp")
        await page.get_by_label("Command for the session").fill("echo $STAGE-the-page; false")
        await page.keyboard.press("Enter")
        own = page.locator("[data-command='echo $STAGE-the-page; false']")
        await expect(own).to_contain_text("before-the-page")
        await expect(own).to_contain_text("exit 1")
        await session.exec("export LATER=yes")
        await expect(page.locator("[data-command='export LATER=yes']")).to_be_visible()
        await page.locator("details.variables summary").click()
        await expect(page.locator("[data-variable=STAGE]")).to_contain_text("before")
        await expect(page.locator("[data-variable=LATER]")).to_contain_text("yes")


async def test_files_are_dropped_downloaded_and_compared_with_a_snapshot(server: Server, tmp_path: Path) -> None:
    async with at_tab(server, "files") as (sandbox, page):
        await sandbox.files.write("kept.txt", "before\n")
        await sandbox.snapshot("earlier")
        await sandbox.files.write("kept.txt", "after\n")
        await page.reload()
        await page.locator("[data-directory]").first.wait_for()
        await page.evaluate(_DROP, ["dropped.txt", "by hand"])
        await page.locator("[data-file='/workspace/dropped.txt']").click()
        assert await sandbox.files.read_text("dropped.txt") == "by hand"
        async with page.expect_download() as coming:
            await page.get_by_role("button", name="Download").click()
        download = await coming.value
        await download.save_as(tmp_path / download.suggested_filename)
        assert (tmp_path / "dropped.txt").read_text() == "by hand"
        await page.get_by_role("button", name="Changes").click()
        against = page.locator("label:has-text('Against') select")
        await expect(against.locator("option")).to_have_count(2)
        await against.select_option(index=1)
        await page.get_by_role("button", name="modified /workspace/kept.txt").click()
        await expect(page.locator(".diff .minus")).to_have_text("-before\n")
        await expect(page.locator(".diff .plus")).to_have_text("+after\n")


async def test_a_preview_opens_in_a_tab_of_its_own(server: Server) -> None:
    async with at_tab(server, "ports") as (sandbox, page):
        await sandbox.files.write("index.html", "<h1>served inside</h1>")
        process = await sandbox.start_process("python3 -m http.server 8000")
        await process.wait_for_port(8000)
        await page.locator("input[name=port]").fill("8000")
        await page.get_by_role("button", name="Expose").click()
        async with page.context.expect_page() as opened:
            await page.get_by_role("link", name="Open in a new tab").click()
        await expect((await opened.value).locator("h1")).to_have_text("served inside")


async def test_the_life_of_a_sandbox_and_what_it_uses(server: Server) -> None:
    async with at_tab(server, "usage") as (sandbox, page):
        await expect(page.get_by_role("img", name="Memory:")).to_be_visible()
        await expect(page.locator(".chart.cpus polyline")).to_have_attribute("points", re.compile(r"\d.*\s\d"))
        await page.get_by_role("button", name="Snapshot at-usage").click()
        await page.get_by_label("Name (optional)").fill("by-hand")
        await page.get_by_role("button", name="Take snapshot").click()
        await expect(page.get_by_text("Snapshot of at-usage taken")).to_be_visible()
        await page.get_by_role("button", name="Fork at-usage").click()
        await expect(page.get_by_text("Forked at-usage")).to_be_visible()
        await expect(page).not_to_have_url(re.compile("at-usage"))
        await page.get_by_role("button", name="Destroy").click()
        await page.get_by_role("dialog").get_by_role("button", name="Destroy").click()
        await expect(page).to_have_url(re.compile("#/sandboxes$"))
        await page.get_by_role("button", name="Stop at-usage").click()
        await expect(page.locator("[data-sandbox=at-usage][data-status=stopped]")).to_be_visible()
        await page.get_by_role("button", name="Start at-usage").click()
        await expect(page.locator("[data-sandbox=at-usage][data-status=running]")).to_be_visible()
        assert (await sandbox.exec("true")).exit_code == 0


@pytest.fixture
def warm_server() -> Iterator[Server]:
    with own_server("--warm", "1") as running:
        yield running


async def test_the_servers_page_is_for_admins_where_it_is_about_the_server(warm_server: Server) -> None:
    server = warm_server
    tenant = await AsyncApiKey.create("guest", url=server.url, api_key=server.key)
    async with chromium() as browser:
        async with browsing(server, browser, "/server") as page:
            await expect(page.locator("[data-meter='Warm pool']")).to_contain_text("1 of 1 wait")
            await expect(page.locator("[data-meter=Memory]")).to_be_visible()
            await expect(page.locator("[data-key=guest]")).to_be_visible()
        context = await browser.new_context()
        page = await context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(f"{address(server)}/#/server")
        await page.locator("input[name=key]").fill(tenant.key)
        await page.locator("button[type=submit]").click()
        await expect(page.get_by_role("region", name="Health")).to_be_visible()
        await expect(page.get_by_role("region", name="Volumes", exact=True)).to_be_visible()
        await expect(page.locator("[data-meter]")).to_have_count(0)
        await expect(page.locator("[data-action=new-key]")).to_have_count(0)
        assert [url for url in asked if url.endswith(("/v1/console/server", "/v1/keys"))] == []
        await context.close()
    await AsyncApiKey.delete("guest", url=server.url, api_key=server.key)
