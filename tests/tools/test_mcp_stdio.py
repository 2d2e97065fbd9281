"""`cove mcp` with the official client: a sandbox of one's own for each connection, and nothing left of it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import BlobResourceContents, CallToolResult, ImageContent, TextContent, TextResourceContents
from support.commands import COVE
from support.leaks import processes_below
from support.programs import places, wait_until_gone
from support.servers import Server, left_behind

pytestmark = pytest.mark.anyio


def parameters(*options: str) -> StdioServerParameters:
    return StdioServerParameters(command=str(COVE), args=["mcp", *options], env=dict(os.environ))


@asynccontextmanager
async def connected(*options: str, mode: str = "auto") -> AsyncIterator[Client]:
    async with Client(parameters(*options), mode=mode) as client:
        yield client


def text_of(result: CallToolResult) -> str:
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text


async def run(client: Client, command: str) -> str:
    return text_of(await client.call_tool("run_command", {"command": command}))


async def test_a_client_uses_the_tools_of_its_sandbox() -> None:
    async with connected() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert len(tools) == 13
        assert tools["read_file"].annotations is not None
        assert tools["read_file"].annotations.read_only_hint
        assert tools["run_command"].input_schema["required"] == ["command"]
        await run(client, "cd /tmp; x=1")
        assert await run(client, "pwd; echo $x") == "/tmp\n1"
        code = (
            "from IPython.display import Image, display; display(Image(data=b'\\x89PNG\\r\\n\\x1a\\n0', format='png'))"
        )
        _, image = (await client.call_tool("run_code", {"code": code})).content
        assert isinstance(image, ImageContent)
        assert image.mime_type == "image/png"


async def test_files_are_resources_and_mistakes_are_answered() -> None:
    async with connected() as client:
        await client.call_tool("write_file", {"path": "a b.txt", "content": "hello"})
        await run(client, "printf '\\200' > binary")
        resources = {resource.name: resource for resource in (await client.list_resources()).resources}
        assert set(resources) == {"a b.txt", "binary"}
        assert resources["a b.txt"].uri == "sandbox:///workspace/a%20b.txt"
        (text,) = (await client.read_resource(resources["a b.txt"].uri)).contents
        assert isinstance(text, TextResourceContents)
        assert (text.text, text.mime_type) == ("hello", "text/plain")
        (blob,) = (await client.read_resource("sandbox:///workspace/binary")).contents
        assert isinstance(blob, BlobResourceContents)
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "sandbox:///{+path}"
        await run(client, "mkfifo pipe; ln -s /proc/1/root/etc/shadow link")
        for wrong in (
            "sandbox:///workspace/missing",
            "file:///etc/passwd",
            "sandbox:///workspace",
            "sandbox:///workspace/pipe",
            "sandbox:///workspace/link",
            "sandbox:///dev/zero",
            "sandbox:///..%00/x",
            "sandbox://etc/passwd",
        ):
            with pytest.raises(MCPError):
                await client.read_resource(wrong)
        mistakes: list[tuple[str, dict[str, object]]] = [
            ("run_command", {}),
            ("no_such_tool", {"a": 1}),
            ("read_file", {"path": "missing"}),
        ]
        for tool, arguments in mistakes:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert "Error: " in text_of(result)
        assert await run(client, "echo still here") == "still here"


async def test_progress_is_reported_while_a_command_runs() -> None:
    seen: list[float] = []
    enough = asyncio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)
        if len(seen) == 2:
            enough.set()

    async with connected() as client:

        async def call() -> None:
            wait = "until [ -e /workspace/go ]; do sleep 0.05; done"
            await client.call_tool("run_command", {"command": wait}, progress_callback=progress)

        running = asyncio.ensure_future(call())
        await enough.wait()
        await client.call_tool("write_file", {"path": "/workspace/go", "content": ""})
        await running
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_cancelled_call_ends_its_command(mode: str) -> None:
    async with connected(mode=mode) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                command = "touch /workspace/began; sleep 1000"
                group.start_soon(client.call_tool, "run_command", {"command": command})
                while (await client.call_tool("read_file", {"path": "/workspace/began"})).is_error:
                    pass
                scope.cancel()
        assert await run(client, "pgrep -x sleep || echo none") == "none"


async def test_two_clients_have_nothing_in_common() -> None:
    async with connected() as one, connected() as two:
        await run(one, "echo secret > file")
        assert "No such file" in await run(two, "cat file")
        assert await run(one, "cat file") == "secret"


@pytest.mark.parametrize("number", [signal.SIGTERM, None])
async def test_a_client_that_dies_leaves_nothing(other_home: Path, number: int | None) -> None:
    environment = {**os.environ, "COVE_HOME": str(other_home)}
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(COVE, "mcp", stdin=pipe, stdout=pipe, env=environment)
    assert server.stdin is not None
    assert server.stdout is not None
    initialize = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "run_command", "arguments": {"command": "sleep 1000"}}
    for message in (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        {"jsonrpc": "2.0", "id": 3, "method": "ping"},
    ):
        server.stdin.write(json.dumps(message).encode() + b"\n")
    assert json.loads(await server.stdout.readline())["result"]["serverInfo"]["name"] == "cove"
    assert json.loads(await server.stdout.readline())["id"] == 3
    if number is None:
        server.stdin.close()
    else:
        server.send_signal(number)
    assert await server.wait() == (0 if number is None else 128 + number)
    server._transport.close()  # type: ignore[attr-defined]  # its pipes
    assert places(other_home) == []


CLIENT = """
import anyio, os, sys
from mcp import Client, StdioServerParameters

async def main(command):
    server = StdioServerParameters(command=command, args=["mcp"], env=dict(os.environ))
    async with Client(server) as client:
        await client.call_tool("start_process", {"command": "sleep 1000"})
        print(*open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split(), flush=True)
        await client.call_tool("run_command", {"command": "sleep 1000"})

anyio.run(main, sys.argv[1])
"""


@pytest.mark.parametrize("whom", ["client", "server"])
async def test_who_is_killed_leaves_no_process_and_no_sandbox(other_home: Path, whom: str) -> None:
    environment = {**os.environ, "COVE_HOME": str(other_home)}
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, COVE),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    assert client.stdout is not None
    (server,) = (await client.stdout.readline()).split()
    inside = processes_below(int(server))
    assert inside
    if whom == "client":
        client.kill()
    else:
        os.kill(int(server), signal.SIGKILL)
    await client.wait()
    client._transport.close()  # type: ignore[attr-defined]  # its pipes
    assert await asyncio.to_thread(wait_until_gone, [int(server), *inside], 30) == []
    if whom == "server":  # nobody was left to remove its directory: the next program does
        next_one = await asyncio.create_subprocess_exec(COVE, "exec", "true", env=environment)
        assert await next_one.wait() == 0
    assert places(other_home) == []


async def test_garbage_is_answered_and_an_endless_line_ends_the_connection() -> None:
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(COVE, "mcp", stdin=pipe, stdout=pipe)
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(b'garbage\n{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    assert b'"id":1' in await server.stdout.readline()
    try:
        for _ in range(34):
            server.stdin.write(b"x" * (1 << 20))
            await server.stdin.drain()
    except ConnectionError:
        pass
    assert await server.wait() == 0
    server._transport.close()  # type: ignore[attr-defined]  # its pipes


async def test_a_sandbox_on_a_server_ends_with_the_connection(shared_server: Server) -> None:
    options = ("--url", shared_server.url, "--api-key", shared_server.key)
    async with connected(*options) as client:
        assert await run(client, "echo hello") == "hello"
    assert left_behind(shared_server.home) == []


def test_without_the_package_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'mcp' else find(name, package)\n"
    )
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    end = subprocess.run(
        [sys.executable, COVE, "mcp"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert "pip install 'cove[mcp]'" in end.stderr
    assert end.returncode == 125
