"""Tokens for one sandbox, and URLs for one file, on a server."""

import asyncio
from urllib.parse import urlsplit

import pytest
from support.raw_http import connect
from support.servers import Server

from cove import AsyncApiKey, AsyncSandbox
from cove.api import Process
from cove.errors import PermissionDenied, SandboxNotFound, Unauthorized, ValidationFailed

pytestmark = pytest.mark.anyio


async def ask(url: str, method: str = "GET", body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    assert parts.port is not None
    async with connect(parts.port) as client:
        reply = await client.ask(f"{parts.path}?{parts.query}", method=method, body=body, **headers)
    return reply.status, reply.body


async def test_a_token_reaches_what_it_is_for_and_nothing_else(shared_server: Server) -> None:
    url = shared_server.url
    async with (
        AsyncSandbox.create(url=url, api_key=shared_server.key) as sandbox,
        AsyncSandbox.create(url=url, api_key=shared_server.key) as other,
    ):
        await sandbox.files.write("f", "kept")
        token = await sandbox.token(["terminal", "files.read", "get_sandbox"])
        limited = await AsyncSandbox.connect(sandbox.id, url=url, api_key=token)
        assert await limited.files.read_text("f") == "kept"
        assert await limited.files.glob("*") == ["f"]
        terminal = await limited.terminal()
        async with terminal.connect() as viewer:
            await viewer.write(b"exit\n")
            async for _ in viewer:
                pass
        for refused in (
            limited.files.write("f", "x"),
            limited.exec("true"),
            limited.snapshot(),
            limited.token(["files"]),
            limited.set_labels({}),
            limited.destroy(),
        ):
            with pytest.raises(PermissionDenied):
                await refused
        with pytest.raises(PermissionDenied):
            await AsyncSandbox.connect(other.id, url=url, api_key=token)
        with pytest.raises(PermissionDenied):
            await AsyncSandbox.list(url=url, api_key=token)
        assert (await sandbox.info()).spec.labels == {}
        with pytest.raises(ValidationFailed):
            await sandbox.token(["everything"])
        whole = await AsyncSandbox.connect(sandbox.id, url=url, api_key=await sandbox.token(["exec", "sandbox"]))
        assert (await whole.exec("cat f")).stdout == "kept"
    with pytest.raises((Unauthorized, SandboxNotFound)):
        await limited.files.read_text("f")


async def test_a_token_ends_with_its_time_and_its_sandbox(shared_server: Server) -> None:
    url, key = shared_server.url, shared_server.key
    sandbox = await AsyncSandbox.create(id="with-token", url=url, api_key=key)
    short = await sandbox.token(["get_sandbox", "process"], expires=1.0)
    long = await sandbox.token(["get_sandbox"])
    limited = await AsyncSandbox.connect("with-token", url=url, api_key=short)
    process = await limited.start_process("sleep 300")
    with pytest.raises(Unauthorized):
        await asyncio.wait_for(follow(process), 20)  # it is open when the time is over
    await sandbox.destroy()
    again = await AsyncSandbox.create(id="with-token", url=url, api_key=key)
    with pytest.raises(Unauthorized):
        await AsyncSandbox.connect("with-token", url=url, api_key=long)
    await again.destroy()


async def follow(process: Process) -> None:
    async for _ in process.logs(follow=True):
        pass


async def test_a_signed_url_is_for_one_file_one_way(shared_server: Server) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        await sandbox.files.write("/tmp/a b", "hello")
        await sandbox.files.write("/tmp/c", "secret")
        reading = await sandbox.signed_url("/tmp/a b")
        assert await ask(reading) == (200, b"hello")
        assert await ask(reading, sec_fetch_site="cross-site") == (200, b"hello")
        for changed in (
            reading.replace("a%20b", "c"),
            reading + "&path=%2Ftmp%2Fc",
            reading + "&user=root",
            reading.replace("/files/content", "/files/stat"),
        ):
            assert (await ask(changed))[0] == 403
        assert (await ask(reading, "PUT", b"x"))[0] == 403
        writing = await sandbox.signed_url("/tmp/new", write=True)
        assert (await ask(writing))[0] == 403
        assert (await ask(writing, "PUT", b"uploaded"))[0] == 200
        assert await sandbox.files.read_text("/tmp/new") == "uploaded"
        assert (await ask(writing[:-1] + ("a" if writing[-1] != "a" else "b"), "PUT", b"x"))[0] == 401


async def test_a_tenants_token_reaches_the_tenants_sandbox(shared_server: Server) -> None:
    url = shared_server.url
    made = await AsyncApiKey.create("of-token", url=url, api_key=shared_server.key)
    async with (
        AsyncSandbox.create(id="same", url=url, api_key=made.key) as own,
        AsyncSandbox.create(id="same", url=url, api_key=shared_server.key) as other,
    ):
        await own.files.write("f", "own")
        await other.files.write("f", "other")
        assert (await ask(await own.signed_url("f")))[1] == b"own"
        assert (await ask(await other.signed_url("f")))[1] == b"other"
    await AsyncApiKey.delete("of-token", url=url, api_key=shared_server.key)


async def test_a_sandbox_of_this_program_has_no_tokens() -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(PermissionDenied):
            await sandbox.token(["files"])
        with pytest.raises(PermissionDenied):
            await sandbox.signed_url("f")
