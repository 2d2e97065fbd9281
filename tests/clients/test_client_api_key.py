"""What a client takes for the address and the key of a server."""

import pytest
from support.servers import Server

from cove import AsyncSandbox
from cove.client import retry
from cove.errors import SandboxUnavailable, ValidationFailed

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
