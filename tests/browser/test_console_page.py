"""The console as its users have it: in a real browser, on a real server, with real sandboxes."""

import json
import re
from collections.abc import Iterator
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
from support.servers import Server, serving

from cove import AsyncApiKey, AsyncSandbox, NetworkPolicy

pytestmark = [pytest.mark.anyio, pytest.mark.pure, needs_chromium, needs_console]
expect.set_options(timeout=WAIT_MILLISECONDS)

AXE = Path(__file__).parents[2] / "console/node_modules/axe-core/axe.min.js"
TABS = ("terminal", "processes", "sessions", "code", "files", "ports", "journal", "usage", "network")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as running:
        yield running


async def type_line(page: Page, text: str) -> None:
    """Type in the terminal that is shown, once it takes what is typed."""
    await expect(page.locator("[data-terminal][data-state=live]")).to_be_visible()
    await page.locator("[data-terminal] textarea").first.focus()
    await page.keyboard.type(text + "\n")


async def test_log_in_create_type_and_be_thrown_out(server: Server) -> None:
    made_key = await AsyncApiKey.create("visitor", url=server.url, api_key=server.key)
    hosts: set[str] = set()
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: hosts.add(re.sub(r"^(\w+://[^/]*).*", r"\1", request.url)))
        await page.goto(address(server))
        await page.locator("input[name=key]").fill("wrong-key")
        await page.locator("button[type=submit]").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.locator("input[name=key]").fill(made_key.key)
        await page.locator("button[type=submit]").click()
        await page.locator("[data-action=create]").click()
        await page.locator("input[name=id]").fill("from-browser")
        await page.get_by_role("button", name="Create", exact=True).click()
        await type_line(page, "echo $((6 * 7))-is-it")
        await expect(page.locator(".xterm-rows")).to_contain_text("42-is-it")
        await page.goto(f"{address(server)}/#/sandboxes")
        await expect(page.locator('[data-sandbox="from-browser"][data-status=running]')).to_be_visible()
        await AsyncApiKey.delete("visitor", url=server.url, api_key=server.key)
        await expect(page.locator("input[name=key]")).to_be_visible()
        assert hosts == {address(server)}
        await browser.close()
    await remove(server, "visitor", "from-browser")


async def remove(server: Server, tenant: str, id: str) -> None:
    key = await AsyncApiKey.create("again", url=server.url, api_key=server.key, tenant=tenant)
    await (await AsyncSandbox.connect(id, url=server.url, api_key=key.key)).destroy()
    await AsyncApiKey.delete("again", url=server.url, api_key=server.key)


@pytest.mark.browser
async def test_two_viewers_share_a_terminal_and_a_killed_server_loses_no_byte(other_home: Path) -> None:
    with serving(other_home) as first:
        port = first.url.rpartition(":")[2]
        await first.create("shared")
        async with (
            chromium() as browser,
            browsing(first, browser, "/sandboxes/shared/terminal") as one,
            browsing(first, browser, "/sandboxes/shared/terminal") as two,
        ):
            await type_line(one, "PS1='$ '; clear; echo begin; for i in $(seq 1 20); do echo line-$i-; sleep 0.4; done")
            for page in (one, two):
                await expect(page.locator(".xterm-rows")).to_contain_text("line-2-")
            first.kill_all()
            with serving(other_home, "--port", port) as second:
                for page in (one, two):
                    rows = page.locator(".xterm-rows")
                    await expect(rows).to_contain_text("line-20-")
                    text = await rows.inner_text()
                    assert re.findall(r"^line-(\d+)-", text, re.MULTILINE) == [str(n) for n in range(1, 21)]
                await (await second.connect("shared")).destroy()


@pytest.mark.browser
async def test_a_cell_shows_a_plot_a_table_and_html(server: Server) -> None:
    async with (
        made(server, "cells"),
        chromium() as browser,
        browsing(server, browser, "/sandboxes/cells/code") as page,
    ):
        await run_cell(page, "import matplotlib.pyplot as p; p.plot([1, 3, 2]); p.show()")
        await expect(page.locator("[data-cell='1'] img.figure")).to_be_visible()
        await run_cell(page, "from IPython.display import HTML; HTML('<b id=it>bold</b>')")
        frame = page.frame_locator("[data-cell='2'] iframe")
        await expect(frame.locator("#it")).to_have_text("bold")
        await run_cell(page, "1 / 0")
        await expect(page.locator("[data-cell='3'] .failure")).to_contain_text("ZeroDivisionError")


async def run_cell(page: Page, code: str) -> None:
    editor = page.locator("[data-editor=cell] .cm-content")
    await editor.click()
    await page.keyboard.press("Control+a")
    await page.keyboard.insert_text(code)
    await page.locator("[data-action=run]").click()


@pytest.mark.browser
async def test_a_file_is_edited_and_a_log_is_followed(server: Server) -> None:
    async with (
        made(server, "work") as sandbox,
        chromium() as browser,
        browsing(server, browser, "/sandboxes/work/files") as page,
    ):
        await sandbox.files.write("notes.txt", "before")
        await page.reload()
        await page.get_by_text("notes.txt", exact=True).click()
        await page.locator("[data-editor] .cm-content").click()
        await page.keyboard.press("Control+a")
        await page.keyboard.insert_text("after")
        await page.locator("[data-action=save]").click()
        await expect(page.get_by_text("notes.txt is saved")).to_be_visible()
        assert await sandbox.files.read_text("notes.txt") == "after"
        await page.goto(f"{address(server)}/#/sandboxes/work/processes")
        await page.locator("input[name=command]").fill(
            "for i in 1 2 3; do echo step-$i; sleep 0.2; done; echo over-$((1+1))"
        )
        await page.locator("form.command button[type=submit]").click()
        await expect(page.locator("[data-log] .xterm-rows")).to_contain_text("over-2")


@pytest.mark.browser
async def test_a_preview_is_shown_and_a_refused_domain_is_allowed(server: Server) -> None:
    policy = NetworkPolicy(allow=("allowed.example",))
    async with (
        made(server, "net", network=policy) as sandbox,
        chromium() as browser,
        browsing(server, browser, "/sandboxes/net/ports") as page,
    ):
        await sandbox.files.write("index.html", "<h1>served inside</h1>")
        process = await sandbox.start_process("python3 -m http.server 8000")
        await process.wait_for_port(8000)
        await page.locator("input[name=port]").fill("8000")
        await page.get_by_role("button", name="Expose").click()
        await page.get_by_role("button", name="Preview").click()
        await expect(page.frame_locator("iframe.preview").locator("h1")).to_have_text("served inside")
        await sandbox.exec("python3 -c 'import socket; socket.create_connection((\"refused.example\", 443), 2)'")
        await page.goto(f"{address(server)}/#/sandboxes/net/network")
        await page.get_by_role("button", name="Allow refused.example").first.click()
        await expect(page.get_by_text("refused.example is allowed")).to_be_visible()
        found = (await sandbox.info()).spec.network
        assert isinstance(found, NetworkPolicy)
        assert "refused.example" in json.dumps([str(rule) for rule in found.allow])


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious_on_any_page(server: Server, scheme: str) -> None:
    async with (
        made(server, "seen", labels={"team": "red"}) as sandbox,
        chromium() as browser,
        browsing(server, browser) as page,
    ):
        await sandbox.exec("echo hello")
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of its literals
        await expect(page.locator("[data-sandbox=seen]")).to_be_visible()
        problems = {"list": await find_problems(page)}
        for tab in TABS:
            await page.goto(f"{address(server)}/#/sandboxes/seen/{tab}")
            await expect(page.locator(f"#tab-{tab}[aria-selected=true]")).to_be_visible()
            problems[tab] = await find_problems(page)
        await page.goto(f"{address(server)}/#/server")
        problems["server"] = await find_problems(page)
        await page.set_viewport_size({"width": 390, "height": 800})
        problems["phone"] = await find_problems(page)
        assert {name: found for name, found in problems.items() if found} == {}


async def find_problems(page: Page) -> list[str]:
    """What axe calls serious or critical; it is put in by the test, beside the page's policy."""
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{each['id']}: {node['html'][:120]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]
