import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from support.upstream import Serve, running_upstream

from cove import AsyncSandbox, NetworkPolicy, NetworkRule
from cove.runtime import package_hosts
from cove.runtime.package_hosts import expand_presets, package_rules

pytestmark = pytest.mark.anyio


def test_hosts_are_those_of_the_configuration_and_what_their_pages_lead_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_upstream(tmp_path) as world:
        page = b'<a href="http://files.invalid:8081/pip.whl#sha256=1">pip</a> <a href="../relative">x</a>'
        port = world.serve_http("unused.example", body=page, headers={"Content-Type": "text/html"})
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///opt/wheels")
        monkeypatch.setattr(package_hosts, "_npm_urls", lambda: iter(["https://npm.invalid/"]))
        monkeypatch.setattr(package_hosts, "_apt_urls", lambda: iter(()))
        rules = package_rules(tmp_path)
        assert {rule.host: rule.private for rule in rules} == {
            f"127.0.0.1:{port}": True,
            "files.invalid:8081": False,
            "npm.invalid": False,
        }
        assert b"GET /simple/pip/" in b"".join(world.requests)
    assert package_rules(tmp_path) == rules  # kept: nothing answers any more


def test_what_a_page_only_links_or_redirects_to_gets_no_private_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_upstream(tmp_path) as world:
        page = b'<a href="http://127.0.0.1:9/admin">x</a> <a href="http://localhost/">y</a> <a href="http://[x/">z</a>'
        linked = world.serve_http("unused.example", body=page, headers={"Content-Type": "text/html"})
        moved = world.serve(redirect_to(f"http://127.0.0.1:{linked}/"), "unused.example")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{moved}/simple")
        monkeypatch.setattr(package_hosts, "_npm_urls", lambda: iter(["http://[x/", "http://127.0.0.2/"]))
        monkeypatch.setattr(package_hosts, "_apt_urls", lambda: iter(()))
        rules = package_rules(tmp_path)
    assert {rule.host: rule.private for rule in rules} == {f"127.0.0.1:{moved}": True, "127.0.0.2": True}


def redirect_to(url: str) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    return serve


def test_the_preset_is_replaced_by_its_rules() -> None:
    rule = NetworkRule("files.example")
    assert expand_presets(NetworkPolicy(allow=["a.example"]), [rule]) == NetworkPolicy(allow=["a.example"])
    expanded = expand_presets(NetworkPolicy(allow=["packages", "a.example"], deny=["b.example"]), [rule])
    assert expanded == NetworkPolicy(allow=["a.example", rule], deny=["b.example"])


async def test_pip_installs_from_the_registry_of_this_machine(tmp_path: Path) -> None:
    outside = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-cache-dir",
        "--dest",
        str(tmp_path),
        "six",
    ]
    if await asyncio.to_thread(lambda: subprocess.run(outside, capture_output=True, timeout=60).returncode):
        pytest.skip("the pip of this machine reaches no index")
    async with AsyncSandbox.create(network=NetworkPolicy(allow=["packages"])) as sandbox:
        result = await sandbox.exec("pip download --no-deps --no-cache-dir --no-binary :none: six", timeout=100)
        assert result.exit_code == 0, (result.stderr, result.denied)
