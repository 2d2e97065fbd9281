"""Credentials stay out of journals, logs, records and metrics: those of the server, of its clients and of others."""

import asyncio
import base64
import http.server
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.canaries import canary, found_in
from support.registry import basic, reply, running_fake
from support.servers import Server, serving
from support.serving import address

from cove import AsyncApiKey, AsyncImage, AsyncSandbox, CoveError, GitNetworkError, NetworkPolicy, NetworkRule, Secret

pytestmark = pytest.mark.anyio

GIVEN = POLICY, REGISTRY, GIT, IN_URL, WRONG, QUERY, FORGED = [
    canary(name) for name in ("policy", "registry", "git", "in-url", "wrong", "query", "forged")
]
# A token of a sandbox, as far as anybody can see.
NO_TOKEN = f"cove_tok_{FORGED}"


def get(url: str, **headers: str) -> tuple[int, str]:
    """The status of an answer, and its body."""
    request = urllib.request.Request(url, headers={"Authorization": "Bearer none", **headers})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def use_keys(server: Server) -> list[str]:
    """Make a key, replace it, and show those that hold no more; returns all of them."""
    where = address(server)
    first = await AsyncApiKey.create("team", **where)
    second = await AsyncApiKey.rotate("team", **where)
    statuses = []
    for key in (first.key, second.key, WRONG, NO_TOKEN):
        statuses.append((await asyncio.to_thread(get, f"{server.url}/v1/sandboxes", Authorization=f"Bearer {key}"))[0])
        await asyncio.to_thread(get, f"{server.url}/v1/sandboxes", **{"X-Api-Key": key})
    assert statuses == [401, 200, 401, 401]
    assert (await asyncio.to_thread(get, f"{server.url}/docs?token={QUERY}"))[0] in (401, 404)
    await AsyncApiKey.delete("team", **where)
    return [key.rpartition("_")[2] for key in (first.key, second.key)]


async def use_tokens(sandbox: AsyncSandbox, server: Server) -> list[str]:
    """Read a file by a token and by a signed URL, in the ways that hold and in one that does not."""
    await sandbox.files.write("f", "content")
    token = await sandbox.token(["files.read", "sandbox.read"])
    signed = await sandbox.signed_url("f")
    async with AsyncSandbox.connect(sandbox.id, url=server.url, api_key=token) as other:
        assert await other.files.read_text("f") == "content"
    assert await asyncio.to_thread(get, signed) == (200, "content")
    assert (await asyncio.to_thread(get, signed.replace("path=f", "path=g")))[0] == 403
    shown = re.search(r"token=([^&]+)", signed)
    assert shown is not None
    return [token.rpartition(".")[2], shown[1].rpartition(".")[2]]


async def use_others(sandbox: AsyncSandbox, server: Server, registry: str) -> None:
    """Give what lets in elsewhere: to Git, to a registry, to a host that a policy names."""
    for url, token in (("https://host.invalid/x", GIT), (f"https://user:{IN_URL}@host.invalid/x", None)):
        with pytest.raises(GitNetworkError):
            await sandbox.git.clone(url, token=token)
    with pytest.raises(CoveError):
        await AsyncImage.pull(f"{registry}/team/made:1", **address(server))
    rule = NetworkRule("api.example", inject={"X-Api-Key": Secret("TOKEN")})
    await sandbox.set_network(NetworkPolicy(allow=[rule]))
    await sandbox.exec(["curl", "-sS", "--max-time", "5", "https://api.example/"])


def settle(home: Path, registry: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The server's configuration, and what it finds in its environment."""
    (path / "config.json").write_text(
        json.dumps({"auths": {registry: {"auth": base64.b64encode(f"user:{REGISTRY}".encode()).decode()}}})
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(path))
    monkeypatch.setenv("SERVERS_TOKEN", POLICY)
    settings = path / "cove.toml"
    settings.write_text(
        f'allow_registries = ["{registry}"]\n[network]\nprivate = ["{registry}"]\n'
        '[network.secrets.TOKEN]\nenv = "SERVERS_TOKEN"\nhosts = ["api.example"]\n'
    )
    return settings


async def test_credentials_are_found_nowhere(
    other_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def refuse(request: http.server.BaseHTTPRequestHandler) -> None:
        shown.append(request.headers.get("Authorization") or "")
        reply(request, 401, headers={"WWW-Authenticate": 'Basic realm="made"'})

    with running_fake(refuse) as registry:
        settings = await asyncio.to_thread(settle, other_home, registry, tmp_path, monkeypatch)
        with serving(other_home, "--on-stop", "destroy", "--config", str(settings)) as server:
            async with AsyncSandbox.create(**address(server)) as sandbox:
                secrets = [*GIVEN, *await use_keys(server), *await use_tokens(sandbox, server)]
                await use_others(sandbox, server, registry)
                assert basic("user", REGISTRY) in shown
                secrets.append(basic("user", REGISTRY).partition(" ")[2])
                journal = repr([event async for event in sandbox.journal()])
                assert "clone" in journal
                assert await asyncio.to_thread(found_in, other_home, secrets) == set()
            status, metrics = await asyncio.to_thread(
                get, f"{server.url}/metrics", Authorization=f"Bearer {server.key}"
            )
            assert status == 200
            assert await asyncio.to_thread(found_in, other_home, secrets) == set()
            server.process.terminate()
            assert server.process.stdout is not None
            printed = server.said + await asyncio.to_thread(server.process.stdout.read)
    printed += "".join(capfd.readouterr())
    assert "stopped" in printed
    secrets.append(server.key)
    for text in (journal, metrics, printed):
        assert [secret for secret in secrets if secret in text] == []
