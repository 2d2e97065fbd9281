"""What a client takes for the address and the key of a server."""

import asyncio
import socket
from pathlib import Path

import pytest
from support.servers import Server

from cove import AsyncSandbox
from cove.client import retry, servers
from cove.errors import SandboxUnavailable, Unauthorized, ValidationFailed

pytestmark = pytest.mark.anyio


async def test_a_key_as_a_file_holds_it_is_the_key(shared_server: Server) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=f"{shared_server.key}\n") as sandbox:
        assert (await sandbox.exec("echo in")).stdout == "in\n"


@pytest.mark.parametrize(
    ("url", "api_key", "part"),
    [
        ("http://127.0.0.1:1", "a key\r\nX-Header: forged", "characters that no key has"),
        ("http://127.0.0.1:1", "schlüssel", "characters that no key has"),
        ("http://127.0.0.1:1", b"bytes", "api_key must be a string, not bytes"),
        (5, None, "url must be a string, not int"),
    ],
)
async def test_what_is_no_key_or_no_address_is_refused(url: str, api_key: str, part: str) -> None:
    with pytest.raises(ValidationFailed, match=part):
        await AsyncSandbox.create(url=url, api_key=api_key)


@pytest.mark.parametrize(
    ("url", "reason"), [("http://127.0.0.1:1", "Connection refused"), ("unix:///no/such", "No such file or directory")]
)
async def test_where_no_server_is_the_reason_is_in_plain_words(
    url: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.1)
    with pytest.raises(SandboxUnavailable) as caught:
        await AsyncSandbox.create(url=url, api_key="some-key-or-other")
    assert str(caught.value) == f"no Cove server answers at {url}: {reason}. Is `cove serve` running?"


async def test_the_key_of_a_server_that_starts_for_the_first_time_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVE_HOME", str(tmp_path))
    monkeypatch.delenv("COVE_API_KEY", raising=False)
    refused = asyncio.Event()
    has_failed = servers.Server.has_failed

    def note(server: servers.Server) -> None:
        has_failed(server)
        refused.set()

    monkeypatch.setattr(servers.Server, "has_failed", note)
    heads = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        body = b'{"error": "no", "code": "UNAUTHORIZED", "details": {}}'
        writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listing = asyncio.ensure_future(AsyncSandbox.list(url=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        await refused.wait()
        await asyncio.to_thread((tmp_path / "key").write_text, "made-at-the-first-start\n")
        async with await asyncio.start_server(answer, sock=listener):
            with pytest.raises(Unauthorized):
                await listing
    assert b"authorization: Bearer made-at-the-first-start\r\n" in heads[0]
