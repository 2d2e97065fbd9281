"""`/mcp` of a server with the official client: a sandbox for each session, named ones, and what ends them."""

import asyncio
import dataclasses
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import httpx
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, TextContent
from support.servers import Server, left_behind, serving
from support.serving import address as address_of

from cove import AsyncApiKey, AsyncSandbox, AsyncSnapshot

pytestmark = pytest.mark.anyio

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@asynccontextmanager
async def connected(server: Server, path: str = "/mcp", *, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {server.key}"}
    async with create_mcp_http_client(headers=headers) as http:
        transport = streamable_http_client(f"{server.url}{path}", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def text_of(result: CallToolResult) -> str:
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text


async def run(client: Client, command: str) -> str:
    return text_of(await client.call_tool("run_command", {"command": command}))


async def until_nothing_is_left(server: Server) -> None:
    async with asyncio.timeout(15):
        while await AsyncSandbox.list(url=server.url, api_key=server.key) or left_behind(server.home):
            await asyncio.sleep(0.05)


async def test_two_clients_have_a_sandbox_each_which_ends_with_their_session(shared_server: Server) -> None:
    address = address_of(shared_server)
    before = len(await AsyncSnapshot.list(**address))
    async with connected(shared_server) as one, connected(shared_server) as two:
        assert len((await one.list_tools()).tools) == 13
        await run(one, "cd /tmp; echo secret > file")
        assert "No such file" in await run(two, "cat /tmp/file")
        assert await run(one, "pwd; cat file") == "/tmp\nsecret"
        await one.call_tool("snapshot", {})
        assert len(await AsyncSandbox.list(**address)) == 2
        assert "http" in text_of(await two.call_tool("expose_port", {"port": 8000}))
    await until_nothing_is_left(shared_server)
    assert len(await AsyncSnapshot.list(**address)) == before


async def test_a_tenants_session_is_its_own(shared_server: Server) -> None:
    made = [await AsyncApiKey.create(name, **address_of(shared_server)) for name in ("mcp-a", "mcp-b")]
    ours, theirs = (dataclasses.replace(shared_server, key=each.key) for each in made)
    async with connected(ours) as client:
        assert await run(client, "echo inside") == "inside"
        (info,) = await AsyncSandbox.list(**address_of(ours))
        assert info.owner == "mcp-a"
        assert await AsyncSandbox.list(**address_of(theirs)) == []
        for path, session in ((f"/mcp/{info.id}", None), ("/mcp", f"{info.id}.1")):
            headers = {"Authorization": f"Bearer {theirs.key}", "Accept": "application/json, text/event-stream"}
            async with httpx.AsyncClient(headers=headers) as http:
                named = {} if session is None else {"Mcp-Session-Id": session}
                assert (await http.post(f"{theirs.url}{path}", json=INITIALIZE, headers=named)).status_code == 404
    await until_nothing_is_left(shared_server)
    for name in ("mcp-a", "mcp-b"):
        await AsyncApiKey.delete(name, **address_of(shared_server))


async def test_progress_is_reported_and_a_cancelled_call_ends_its_command(shared_server: Server) -> None:
    reported = asyncio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        reported.set()

    async with connected(shared_server) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def call() -> None:
                    await client.call_tool("run_command", {"command": "sleep 1000"}, progress_callback=progress)

                group.start_soon(call)
                await reported.wait()
                scope.cancel()
        assert await run(client, "pgrep -x sleep || echo none") == "none"
    await until_nothing_is_left(shared_server)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_sandbox_that_is_named_stays(shared_server: Server, mode: str) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        async with connected(shared_server, f"/mcp/{sandbox.id}", mode=mode) as client:
            await run(client, "echo kept > /workspace/file; cd /tmp")
            assert await run(client, "pwd") == "/tmp"
            with pytest.raises(MCPError):
                await client.read_resource("sandbox:///missing")
        assert await sandbox.files.read_text("file") == "kept\n"


async def test_what_is_no_session_is_refused_and_leaves_nothing(shared_server: Server) -> None:
    key = {"Authorization": f"Bearer {shared_server.key}"}
    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=shared_server.url, headers=key | accept, timeout=60) as http:
        assert (await http.post("/mcp", json=INITIALIZE, headers={"Authorization": "Bearer wrong"})).status_code == 401
        assert (await http.post("/mcp", json=INITIALIZE, headers={"Origin": "http://evil.example"})).status_code == 403
        assert (await http.put("/mcp")).status_code == 405
        assert (await http.get("/mcp")).status_code == 400
        assert (await http.post("/mcp", content=b"garbage")).status_code == 400
        assert (await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).status_code == 400
        assert (await http.post("/mcp/none", json=INITIALIZE)).status_code == 404
        for session in ("none.none", "", "..", "%2e%2e/x"):
            refused = await http.post("/mcp", json=INITIALIZE, headers={"Mcp-Session-Id": session})
            assert refused.status_code == 404
            assert "begin with initialize" in refused.json()["error"]["message"]
        unsupported = await http.post("/mcp", json=INITIALIZE, headers={"Mcp-Protocol-Version": "2026-07-28"})
        assert unsupported.json()["error"]["data"]["supported"][-1] == "2025-11-25"
    await until_nothing_is_left(shared_server)


CLIENT = """
import anyio, sys
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

async def main(url, key, seconds):
    async with create_mcp_http_client(headers={"Authorization": f"Bearer {key}"}) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            await client.list_tools()
            print("begun", flush=True)
            await client.call_tool("run_command", {"command": f"sleep {seconds}"})

anyio.run(main, *sys.argv[1:])
"""


async def test_a_client_that_is_killed_leaves_nothing_when_its_time_is_up(other_home: Path) -> None:
    configuration = other_home / "server.toml"
    configuration.write_text("mcp_idle_timeout = 0.5\n")
    with serving(other_home, "--config", str(configuration)) as server:
        seconds = f"1000.{secrets.randbelow(10**9)}"
        arguments = (sys.executable, "-c", CLIENT, f"{server.url}/mcp", server.key, seconds)
        client = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        assert client.stdout is not None
        assert await client.stdout.readline() == b"begun\n"
        async with asyncio.timeout(30):
            while not runs_sleep(seconds):
                await asyncio.sleep(0.05)
        client.kill()
        await client.wait()
        client._transport.close()  # type: ignore[attr-defined]  # its pipes
        await until_nothing_is_left(server)
        assert not runs_sleep(seconds)


def runs_sleep(seconds: str) -> bool:
    wanted = f"sleep\0{seconds}\0".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if path.read_bytes() == wanted:
                return True
    return False


async def test_a_server_without_the_package_says_what_to_install(
    other_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'mcp' else find(name, package)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with serving(other_home) as server:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {server.key}"}) as http:
            refused = await http.post(f"{server.url}/mcp", json=INITIALIZE)
        assert refused.status_code == 501
        assert "retry-after" not in refused.headers
        assert "pip install 'cove[mcp]'" in refused.json()["error"]["message"]
        assert left_behind(other_home) == []


async def test_a_client_that_dies_leaves_nothing_when_its_time_is_up(other_home: Path) -> None:
    configuration = other_home / "server.toml"
    configuration.write_text("mcp_idle_timeout = 0.5\n[mcp_spec]\nenv = {NAME = 'configured'}\n")
    with serving(other_home, "--config", str(configuration)) as server:
        headers = {
            "Authorization": f"Bearer {server.key}",
            "Accept": "application/json, text/event-stream",
        }
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as http:
            opened = await http.post("/mcp", json=INITIALIZE)
            assert opened.status_code == 200
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
            call = {"name": "run_command", "arguments": {"command": "echo $NAME; sleep 1"}}
            message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
            answer = await http.post("/mcp", json=message, headers=session)
            data = next(line for line in answer.text.splitlines() if line.startswith("data: {"))
            assert json.loads(data.removeprefix("data: "))["result"]["content"][0]["text"] == "configured"
        await until_nothing_is_left(server)
