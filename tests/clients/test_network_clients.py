"""Real clients behind a network policy, unchanged: passed through, and with their requests judged."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import websockets
from support.git_server import PASSWORD, USER, git_server, make_repository, run_git
from support.package_sites import Site, apt_repository, npm_registry, pip_index
from support.upstream import Upstream, running_upstream
from websockets.asyncio.server import Server, ServerConnection

from cove import AsyncSandbox, ExecResult, Mount, NetworkPolicy, NetworkRule, Secret
from cove.core.trust import TRUST_VARIABLES

pytestmark = pytest.mark.anyio

CA = "/workspace/ca.pem"
PACKAGES = "/opt/packages"
METHODS = ("GET", "HEAD", "POST", "PUT")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    with running_upstream(tmp_path) as upstream:
        monkeypatch.setenv("COVE_RESOLVER", upstream.resolver)
        monkeypatch.setenv("SSL_CERT_FILE", str(upstream.ca))
        yield upstream


@dataclass
class Way:
    """How a policy lets clients out. What they trust without interception is for their own configuration to say."""

    is_intercepted: bool

    def rule(self, host: str, port: int, **fields: object) -> NetworkRule:
        methods = METHODS if self.is_intercepted else ()
        return NetworkRule(f"{host}:{port}", private=True, methods=methods, **fields)  # type: ignore[arg-type]

    @asynccontextmanager
    async def sandbox(
        self, world: Upstream, *rules: NetworkRule, mounts: tuple[Mount, ...] = ()
    ) -> AsyncIterator[AsyncSandbox]:
        env = {} if self.is_intercepted else dict.fromkeys(TRUST_VARIABLES, CA)
        policy = NetworkPolicy(allow=rules)
        async with AsyncSandbox.create(network=policy, env=env, mounts=mounts) as sandbox:
            await sandbox.files.write(CA, world.ca.read_bytes())
            yield sandbox
            kinds = {event.kind for event in [event async for event in sandbox.network_log()] if event.allowed}
            assert ("request" in kinds) == self.is_intercepted


@pytest.fixture(params=[False, True], ids=["passed through", "intercepted"])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


async def run(sandbox: AsyncSandbox, *words: str) -> str:
    result = await sandbox.exec(list(words), timeout=60)
    assert result.ok, describe(result)
    return result.stdout.strip()


def describe(result: ExecResult) -> str:
    return f"{result.stdout}{result.stderr}{result.denied}"


async def test_pip_installs_from_an_index(world: Upstream, way: Way) -> None:
    port = world.serve_site(pip_index(), "pypi.example", tls=True)
    async with way.sandbox(world, way.rule("pypi.example", port)) as sandbox:
        options = ["--index-url", f"https://pypi.example:{port}/simple", "--target", "lib", "--no-cache-dir"]
        await run(sandbox, "python3", "-m", "pip", "--isolated", "install", "-q", *options, "tiny")
        assert await run(sandbox, "env", "PYTHONPATH=lib", "python3", "-m", "tiny") == "hello from tiny"


async def test_npm_installs_from_a_registry(world: Upstream, way: Way) -> None:
    if shutil.which("npm", path="/usr/bin:/bin") is None:
        pytest.skip("there is no npm that a sandbox sees")
    site: Site = {}
    port = world.serve_site(site, "npm.example", tls=True)
    site |= npm_registry(f"https://npm.example:{port}")
    async with way.sandbox(world, way.rule("npm.example", port)) as sandbox:
        options = ["--registry", f"https://npm.example:{port}/", "--no-audit", "--no-fund", "--no-update-notifier"]
        await run(sandbox, "npm", "install", *options, "tiny")
        assert await run(sandbox, "node", "-p", "require('tiny')") == "hello from tiny"


async def test_git_clones(world: Upstream, way: Way, tmp_path: Path) -> None:
    commit = make_repository(tmp_path)
    with git_server(tmp_path, context=world.context("git.example")) as (address, _):
        port = urlsplit(address).port or 0
        world.addresses["git.example"] = ["127.0.0.1"]
        async with way.sandbox(world, way.rule("git.example", port)) as sandbox:
            await run(sandbox, "git", "clone", "-q", f"https://git.example:{port}/project.git", "work")
            assert await run(sandbox, "git", "-C", "work", "rev-parse", "HEAD") == commit


async def test_git_clones_and_pushes_with_a_credential_that_it_never_sees(
    world: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repository(tmp_path)
    run_git("config", "http.receivepack", "true", cwd=tmp_path / "project.git")
    monkeypatch.setenv("GIT_PASSWORD", PASSWORD)
    way = Way(is_intercepted=True)
    with git_server(tmp_path, PASSWORD, world.context("git.example")) as (address, asked):
        port = urlsplit(address).port or 0
        world.addresses["git.example"] = ["127.0.0.1"]
        rule = way.rule("git.example", port, basic_auth=Secret("GIT_PASSWORD", format=f"{USER}:{{}}"))
        async with way.sandbox(world, rule) as sandbox:
            script = f"""
            git clone -q https://git.example:{port}/project.git work && cd work
            head -c 3000000 /dev/urandom > large && git add large
            git -c user.name=me -c user.email=me@example.com commit -qm 'Add much'
            git push -q origin HEAD:refs/heads/pushed && git rev-parse HEAD
            """
            pushed = await run(sandbox, "bash", "-ec", script)
            everything = await run(sandbox, "bash", "-c", "env; cat work/.git/config; cat /proc/*/environ || true")
            assert PASSWORD not in everything
        assert run_git("rev-parse", "pushed", cwd=tmp_path / "project.git").strip() == pushed
        assert all(asked), "the credential came with every request"


async def test_curl_gets_and_uploads_much_and_falls_back_from_http2(world: Upstream, way: Way) -> None:
    port = world.serve_site({"/page": b"hello", "/put": b"taken"}, "files.example", tls=True)
    async with way.sandbox(world, way.rule("files.example", port)) as sandbox:
        url = f"https://files.example:{port}"
        assert await run(sandbox, "curl", "-sSf", f"{url}/page") == "hello"
        shown = await run(sandbox, "curl", "-sSf", "--http2", "-w", " %{http_version}", f"{url}/page")
        assert shown == "hello 1.1"
        await run(sandbox, "truncate", "-s", "30M", "large")
        assert await run(sandbox, "curl", "-sSf", "-H", "Expect:", "-T", "large", f"{url}/put") == "taken"
    assert max(world.bodies) == 30 << 20


async def test_node_fetches(world: Upstream, way: Way) -> None:
    if shutil.which("node", path="/usr/bin:/bin") is None:
        pytest.skip("there is no node that a sandbox sees")
    port = world.serve_site({"/page": b"hello"}, "files.example", tls=True)
    async with way.sandbox(world, way.rule("files.example", port)) as sandbox:
        script = f"fetch('https://files.example:{port}/page').then(r => r.text()).then(console.log)"
        assert await run(sandbox, "node", "-e", script) == "hello"


# Looks the name up by itself, as a Go program does: no NSS, no library of the system's.
STATIC = r"""
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words) {
    char line[256], server[64] = "";
    FILE *names = fopen("/etc/resolv.conf", "r");
    while (names && fgets(line, sizeof line, names)) sscanf(line, "nameserver %63s", server);
    unsigned char packet[512] = {0x12, 0x34, 1, 0, 0, 1};
    int at = 12;
    for (char *label = strtok(strdup(words[1]), "."); label; label = strtok(NULL, ".")) {
        packet[at] = strlen(label);
        memcpy(packet + at + 1, label, packet[at]);
        at += packet[at] + 1;
    }
    packet[at + 2] = packet[at + 4] = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(53)};
    inet_pton(AF_INET, server, &address.sin_addr);
    int sock = socket(AF_INET, SOCK_DGRAM, 0);
    if (connect(sock, (struct sockaddr *)&address, sizeof address) || send(sock, packet, at + 5, 0) < 0) return 1;
    int size = recv(sock, packet, sizeof packet, 0);
    if (size < 4 || packet[3] & 15) return 2;
    memcpy(&address.sin_addr, packet + size - 4, 4);
    address.sin_port = htons(atoi(words[2]));
    sock = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(sock, (struct sockaddr *)&address, sizeof address)) return 3;
    dprintf(sock, "GET /page HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n\r\n", words[1], words[2]);
    while ((size = read(sock, packet, sizeof packet)) > 0) fwrite(packet, 1, size, stdout);
    return 0;
}
"""


async def test_a_static_program_resolves_and_connects(world: Upstream, way: Way, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no compiler")
    (tmp_path / "static.c").write_text(STATIC)
    built = subprocess.run(["gcc", "-static", "-w", "-o", tmp_path / "static", tmp_path / "static.c"])
    if built.returncode:
        pytest.skip("there is no static C library")
    port = world.serve_site({"/page": b"hello"}, "files.example")
    async with way.sandbox(world, way.rule("files.example", port)) as sandbox:
        await sandbox.files.write("static", (tmp_path / "static").read_bytes(), mode=0o755)
        assert (await run(sandbox, "./static", "files.example", str(port))).endswith("hello")
        refused = await sandbox.exec(["./static", "other.example", str(port)])
        assert refused.exit_code == 2
        assert [denial.host for denial in refused.denied] == ["other.example"]


async def test_apt_updates_and_downloads_over_plain_http(world: Upstream, way: Way, tmp_path: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("there is no apt on this machine")
    port = world.serve_site(apt_repository(tmp_path), "apt.example")
    async with way.sandbox(world, way.rule("apt.example", port)) as sandbox:
        await sandbox.files.write("sources.list", f"deb [trusted=yes] http://apt.example:{port} ./\n")
        script = """
        mkdir -p state/lists/partial cache/archives/partial && touch status
        options='-qq -o Dir::Etc::SourceList=/workspace/sources.list -o Dir::Etc::SourceParts=/dev/null
            -o Dir::State=/workspace/state -o Dir::State::Status=/workspace/status -o Dir::Cache=/workspace/cache
            -o APT::Update::Error-Mode=any'
        apt-get $options update && apt-get $options download tiny && dpkg-deb --extract tiny_*.deb out
        cat out/usr/share/tiny/greeting
        """
        assert await run(sandbox, "bash", "-ec", script) == "hello from tiny"


PYTHON_CLIENTS = {
    "requests": "import requests, sys; print(requests.get(sys.argv[1], timeout=30).text)",
    "httpx": "import httpx, sys; print(httpx.get(sys.argv[1], timeout=30).text)",
    "aiohttp": """
import aiohttp, asyncio, sys
async def main():
    async with aiohttp.ClientSession() as session, session.get(sys.argv[1]) as answer:
        print(await answer.text())
asyncio.run(main())
""",
}


def python_packages(module: str) -> Mount:
    """The packages that these tests have, for the same Python inside, or skip."""
    found = pytest.importorskip(module).__file__
    assert found is not None
    asked = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True
    )
    if asked.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip("the Python inside is another version than that of the tests")
    return Mount(source=str(Path(found).parents[1]), target=PACKAGES)


@pytest.mark.parametrize("module", PYTHON_CLIENTS)
async def test_a_python_client_gets_a_page(world: Upstream, way: Way, module: str) -> None:
    mounts = (python_packages(module),)
    port = world.serve_site({"/page": b"hello"}, "files.example", tls=True)
    async with way.sandbox(world, way.rule("files.example", port), mounts=mounts) as sandbox:
        command = ["python3", "-c", PYTHON_CLIENTS[module], f"https://files.example:{port}/page"]
        assert await run(sandbox, "env", f"PYTHONPATH={PACKAGES}", *command) == "hello"


@asynccontextmanager
async def echo_server(world: Upstream, name: str) -> AsyncIterator[int]:
    """A WebSocket server in the world's own loop."""

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async def start() -> Server:
        return await websockets.serve(echo, "127.0.0.1", 0, ssl=world.context(name))

    async def stop() -> None:
        server.close()
        await server.wait_closed()

    server = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), world.loop))
    world.addresses[name] = ["127.0.0.1"]
    try:
        yield next(iter(server.sockets)).getsockname()[1]
    finally:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(stop(), world.loop))


WEBSOCKET = """
import sys
from websockets.sync.client import connect
with connect(sys.argv[1]) as socket:
    for message in ("hello", "x" * 1_000_000):
        socket.send(message)
        assert socket.recv() == message
print("echoed")
"""


async def test_a_websocket_passes(world: Upstream, way: Way) -> None:
    mounts = (python_packages("websockets"),)
    async with echo_server(world, "live.example") as port:
        rule = way.rule("live.example", port, websocket=way.is_intercepted)
        async with way.sandbox(world, rule, mounts=mounts) as sandbox:
            command = ["python3", "-c", WEBSOCKET, f"wss://live.example:{port}/"]
            assert await run(sandbox, "env", f"PYTHONPATH={PACKAGES}", *command) == "echoed"


async def test_a_websocket_needs_a_rule_where_requests_are_judged(world: Upstream) -> None:
    way, mounts = Way(is_intercepted=True), (python_packages("websockets"),)
    async with echo_server(world, "live.example") as port:
        policy = NetworkPolicy(allow=[way.rule("live.example", port)])
        async with AsyncSandbox.create(network=policy, mounts=mounts) as sandbox:
            command = ["python3", "-c", WEBSOCKET, f"wss://live.example:{port}/"]
            result = await sandbox.exec(["env", f"PYTHONPATH={PACKAGES}", *command])
            assert "HTTP 403" in result.stderr, describe(result)
            assert result.denied[0].rule == f"live.example:{port}, websocket=True"
