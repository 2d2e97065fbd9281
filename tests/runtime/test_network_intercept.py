import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.upstream import Upstream, running_upstream

from cove import AsyncSandbox, NetworkLimits, NetworkPolicy, NetworkRule, Secret, ValidationFailed, define_secret
from cove.runtime import network as network_module

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t-t0ken-that-never-goes-in"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    with running_upstream(tmp_path) as upstream:
        monkeypatch.setenv("COVE_RESOLVER", upstream.resolver)
        monkeypatch.setenv("SSL_CERT_FILE", str(upstream.ca))
        monkeypatch.setenv("API_TOKEN", SECRET)
        yield upstream


def rule(host: str, port: int, **fields: object) -> NetworkRule:
    return NetworkRule(f"{host}:{port}", private=True, **fields)  # type: ignore[arg-type]


async def run(sandbox: AsyncSandbox, *words: str) -> str:
    result = await sandbox.exec(list(words), timeout=60)
    return (result.stdout + result.stderr).strip()


async def test_requests_are_judged_by_method_and_path(world: Upstream) -> None:
    port = world.serve_http("api.example", tls=True)
    allowed = rule("api.example", port, methods=["GET"], paths=["/v1/*"])
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[allowed])) as sandbox:
        url = f"https://api.example:{port}"
        assert await run(sandbox, "curl", "-sS", f"{url}/v1/things") == "hello"
        assert "POST api.example is not allowed" in await run(sandbox, "curl", "-sS", "-d", "x", f"{url}/v1/things")
        assert "/v2/things is not allowed" in await run(sandbox, "curl", "-sS", f"{url}/v2/things")
        for trick in ("/v1/../v2/x", "/v1//x", "/v1/%2e%2e/v2", "/v1/%2Fx"):
            answer = await run(sandbox, "curl", "-sS", "--path-as-is", url + trick)
            assert "two ways" in answer, trick
        result = await sandbox.exec(["curl", "-sS", f"{url}/v2/things"])
        assert "/v2/things" in result.denied[0].reason
        kinds = [(event.kind, event.method, event.path, event.status) async for event in sandbox.network_log()]
        assert ("request", "GET", "/v1/things", 200) in kinds
        assert ("request", "POST", "/v1/things", 403) in kinds
    assert len(world.requests) == 1


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override: DELETE", "x_original_url: /admin"])
async def test_a_header_that_stands_for_another_request_is_refused(world: Upstream, header: str) -> None:
    port = world.serve_http("api.example", tls=True)
    allowed = rule("api.example", port, methods=["GET"], paths=["/v1/*"])
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[allowed])) as sandbox:
        result = await sandbox.exec(["curl", "-sS", "-H", header, f"https://api.example:{port}/v1/things"])
        assert f"the header {header.partition(':')[0].lower()}" in result.stdout
        assert "the header" in result.denied[0].reason
    assert world.requests == []


async def test_a_request_for_another_host_is_refused(world: Upstream) -> None:
    port = world.serve_http("api.example", tls=True)
    async with AsyncSandbox.create(
        network=NetworkPolicy(allow=[rule("api.example", port, methods=["GET"])])
    ) as sandbox:
        url = f"https://api.example:{port}/"
        assert "the connection for api.example" in await run(sandbox, "curl", "-sS", "-H", "Host: evil.example", url)
        fronted = await run(
            sandbox, "curl", "-sS", "--connect-to", f"evil.example:443:api.example:{port}", "https://evil.example/"
        )
        assert "alert" in fronted or "SSL" in fronted
    assert world.requests == []


async def test_a_secret_is_sent_and_never_seen(world: Upstream) -> None:
    port = world.serve_http(
        "api.example", tls=True, body=f"you sent Bearer {SECRET}".encode(), headers={"X-Echo": SECRET}
    )
    inject = {"Authorization": Secret("API_TOKEN", format="Bearer {}")}
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[rule("api.example", port, inject=inject)])) as sandbox:
        answer = await run(
            sandbox, "curl", "-sSi", "-H", "Authorization: Bearer wrong", f"https://api.example:{port}/v1?q=1"
        )
        assert "you sent Bearer ****" in answer
        assert SECRET not in answer
        assert f"authorization: Bearer {SECRET}\r\n".encode() in world.requests[0]
        assert b"wrong" not in world.requests[0]
        assert "accept-encoding: identity" in world.requests[0].decode().lower()
        assert await run(sandbox, "sh", "-c", "echo $API_TOKEN") == "cove-secret-API_TOKEN"
        everything = await run(
            sandbox, "sh", "-c", "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'"
        )
        assert SECRET not in everything
        assert SECRET not in repr([event async for event in sandbox.network_log()])
        assert SECRET not in repr(await sandbox.info())


async def test_secrets_can_be_in_the_query_and_in_basic_authentication(world: Upstream, tmp_path: Path) -> None:
    port = world.serve_http("api.example", tls=True)
    (tmp_path / "password").write_text("pass word\n")
    define_secret("PASSWORD", file=str(tmp_path / "password"))
    allowed = rule("api.example", port, query={"key": Secret("API_TOKEN")}, basic_auth=Secret("PASSWORD", "me:{}"))
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[allowed])) as sandbox:
        assert await run(sandbox, "curl", "-sS", f"https://api.example:{port}/x?a=b") == "hello"
    (head,) = world.requests
    assert head.startswith(f"GET /x?a=b&key={SECRET} HTTP/1.1".encode())
    assert b"authorization: Basic bWU6cGFzcyB3b3Jk" in head


async def test_a_secret_of_the_query_is_not_seen_in_the_url_that_comes_back(
    world: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLASHED", "ab/cd+ef gh==")
    sent = "ab%2Fcd%2Bef%20gh%3D%3D"
    port = world.serve_http(
        "api.example",
        tls=True,
        body=b'{"key": "ab\\/cd+ef gh=="} YWIvY2QrZWYgZ2g9PQ',
        headers={
            "Location": f"https://api.example/x?key={sent}",
            "X-Lower": sent.lower(),
            "X-Plus": sent.replace("%20", "+"),
        },
    )
    allowed = rule("api.example", port, query={"key": Secret("SLASHED")})
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[allowed])) as sandbox:
        answer = await run(sandbox, "curl", "-sSi", f"https://api.example:{port}/x")
    assert world.requests[0].startswith(f"GET /x?key={sent} HTTP/1.1".encode())
    assert "https://api.example/x?key=***" in answer
    for part in ("cd", "%2", "2f", "Y2Q", "ef"):
        assert part not in answer.partition("location:")[2].replace("referrer", ""), answer


async def test_a_secret_that_is_not_to_be_had_fails_the_request(world: Upstream) -> None:
    port = world.serve_http("api.example", tls=True)
    allowed = rule("api.example", port, inject={"X-Key": Secret("NO_SUCH_SECRET")})
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[allowed])) as sandbox:
        answer = await run(sandbox, "curl", "-sSi", f"https://api.example:{port}/")
        assert "503" in answer.splitlines()[0]
        assert "SECRET_UNAVAILABLE" in answer
    assert world.requests == []


async def test_a_connection_is_used_again_only_where_the_host_keeps_it(world: Upstream) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        world.requests.append(head)
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await reader.read()  # it is the client's turn to close
        writer.close()

    port = world.serve(serve, "old.example", tls=True)
    async with AsyncSandbox.create(
        network=NetworkPolicy(allow=[rule("old.example", port, methods=["POST"])])
    ) as sandbox:
        url = f"https://old.example:{port}/"
        assert await run(sandbox, "curl", "-sS", "-X", "POST", url, url, url) == "hellohellohello"
    assert connections == 3


async def test_a_secret_never_goes_over_plain_http(world: Upstream) -> None:
    port = world.serve_http("api.example")
    allowed = rule("api.example", port, inject={"X-Key": Secret("API_TOKEN")})
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[allowed])) as sandbox:
        assert "over TLS only" in await run(sandbox, "curl", "-sS", f"http://api.example:{port}/")
    assert world.requests == []


async def test_an_upstream_that_cannot_prove_its_name_gets_no_request(world: Upstream) -> None:
    port = world.serve_http("other.example", tls=True)
    world.addresses["api.example"] = ["127.0.0.1"]
    allowed = rule("api.example", port, inject={"X-Key": Secret("API_TOKEN")})
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[allowed])) as sandbox:
        assert "cannot be reached" in await run(sandbox, "curl", "-sS", f"https://api.example:{port}/")
    assert world.requests == []


@pytest.mark.parametrize(
    "command",
    [
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"URL\").read().decode())'",
        "node -e 'fetch(\"URL\").then(r => r.text()).then(console.log)'",
        "wget -qO- URL",
        "curl --http2 -sS URL",
    ],
)
async def test_programs_trust_the_authority_of_their_sandbox(world: Upstream, command: str) -> None:
    port = world.serve_http("api.example", tls=True)
    async with AsyncSandbox.create(
        network=NetworkPolicy(allow=[rule("api.example", port, methods=["GET"])])
    ) as sandbox:
        assert await run(sandbox, "bash", "-c", command.replace("URL", f"https://api.example:{port}/")) == "hello"


async def test_bundles_of_other_distributions_are_replaced_where_they_are(
    world: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "OTHER_BUNDLES", ("/etc/pki/missing.pem", "/etc/hosts"))
    port = world.serve_http("api.example", tls=True)
    async with AsyncSandbox.create(
        network=NetworkPolicy(allow=[rule("api.example", port, methods=["GET"])])
    ) as sandbox:
        assert await run(sandbox, "curl", "-sS", "--cacert", "/etc/hosts", f"https://api.example:{port}/") == "hello"


async def test_the_authority_is_good_for_the_intercepted_names_only(world: Upstream) -> None:
    port = world.serve_http("api.example", tls=True)
    async with AsyncSandbox.create(
        network=NetworkPolicy(allow=[rule("api.example", port, methods=["GET"])])
    ) as sandbox:
        code = f"""
import ssl, socket
raw = socket.create_connection(("api.example", {port}))
sock = ssl.create_default_context().wrap_socket(raw, server_hostname="api.example")
print(ssl.DER_cert_to_PEM_cert(sock.getpeercert(True)))
"""
        assert "BEGIN CERTIFICATE" in await run(sandbox, "python3", "-c", code)
        text = await run(
            sandbox,
            "sh",
            "-c",
            "tail -n 20 /etc/ssl/certs/ca-certificates.crt | sed -n '/BEGIN/,$p' | openssl x509 -noout -text",
        )
        assert "pathlen:0" in text
        assert "DNS:api.example" in text.split("Name Constraints")[1]
        listed = await run(sandbox, "sh", "-c", "find / -name '*.key' 2>/dev/null | head")
        assert "egress" not in listed


async def test_a_recorded_exchange_is_replayed_without_a_network(world: Upstream) -> None:
    port = world.serve_http("api.example", tls=True, body=b"\xff\xfe recorded")
    inject = {"X-Key": Secret("API_TOKEN")}
    allowed = rule("api.example", port, inject=inject)
    url = f"https://api.example:{port}/v1"
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[allowed], record="tape")) as sandbox:
        assert (await sandbox.exec(["curl", "-sS", "-d", "body", url])).stdout_bytes == b"\xff\xfe recorded"
    before = len(world.requests)
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[allowed], replay="tape")) as sandbox:
        assert (await sandbox.exec(["curl", "-sS", "-d", "body", url])).stdout_bytes == b"\xff\xfe recorded"
        assert "has no answer left" in await run(sandbox, "curl", "-sS", "-d", "body", url)
        assert "has no answer left" in await run(sandbox, "curl", "-sS", "-d", "other", url)
    assert len(world.requests) == before
    with pytest.raises(ValidationFailed, match="no cassette other"):
        await AsyncSandbox.create(network=NetworkPolicy(allow=[allowed], replay="other"))


async def test_a_policy_that_replays_asks_no_name_server_and_connects_nowhere(world: Upstream) -> None:
    port = world.serve_http("a.wild.example", tls=True)
    url = f"https://a.wild.example:{port}/"
    async with AsyncSandbox.create(
        network=NetworkPolicy(allow=[rule("a.wild.example", port)], record="wild")
    ) as sandbox:
        assert await run(sandbox, "curl", "-sS", url) == "hello"
        before = len(world.asked), len(world.requests)
        await sandbox.set_network(NetworkPolicy(allow=[f"*.wild.example:{port}"], replay="wild"))
        assert await run(sandbox, "curl", "-sS", url) == "hello"
        assert "has no answer left" in await run(sandbox, "curl", "-sS", f"https://secret.wild.example:{port}/")
        assert "400" in await run(
            sandbox, "bash", "-c", f"exec 3<>/dev/tcp/a.wild.example/{port}; echo SSH >&3; cat <&3"
        )
        assert (len(world.asked), len(world.requests)) == before


async def test_requests_per_minute_are_limited(world: Upstream) -> None:
    port = world.serve_http("api.example", tls=True)
    policy = NetworkPolicy(
        allow=[rule("api.example", port, methods=["GET"])], limits=NetworkLimits(requests_per_minute=2)
    )
    async with AsyncSandbox.create(network=policy) as sandbox:
        url = f"https://api.example:{port}/"
        answer = await run(sandbox, "curl", "-sS", "-w", "%{http_code} ", url, url, url)
        assert answer.count("200") == 2
        assert "429" in answer


async def test_large_bodies_pass_both_ways(world: Upstream) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while size > 0:
            data = await reader.read(65536)
            size -= len(data)
            writer.write(data)
            await writer.drain()
        writer.close()

    port = world.serve(echo, "api.example", tls=True)
    async with AsyncSandbox.create(
        network=NetworkPolicy(allow=[rule("api.example", port, methods=["POST"])])
    ) as sandbox:
        command = (
            "head -c 20000000 /dev/urandom > up; "
            f"curl -sS --data-binary @up https://api.example:{port}/ > down; cmp up down && echo same"
        )
        assert await run(sandbox, "bash", "-c", command) == "same"


async def test_an_upgrade_needs_a_rule(world: Upstream) -> None:
    async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        writer.write((await reader.readexactly(4)).upper())
        await writer.drain()
        writer.close()

    port = world.serve(upgrade, "api.example", tls=True)
    code = f"""
import ssl, socket
raw = socket.create_connection(("api.example", {port}))
sock = ssl.create_default_context().wrap_socket(raw, server_hostname="api.example")
sock.sendall(b"GET /ws HTTP/1.1\\r\\nHost: api.example:{port}\\r\\n")
sock.sendall(b"Connection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n")
data = sock.recv(1000)
sock.sendall(b"ping")
while more := sock.recv(1000):
    data += more
print(data)
"""
    async with AsyncSandbox.create(
        network=NetworkPolicy(allow=[rule("api.example", port, methods=["GET"])])
    ) as sandbox:
        assert "is not allowed" in await run(sandbox, "python3", "-c", code)
        await sandbox.set_network(NetworkPolicy(allow=[rule("api.example", port, methods=["GET"], websocket=True)]))
        answer = await run(sandbox, "python3", "-c", code)
        assert "101 Switching" in answer
        assert "PING" in answer
