"""The clients of E2B, unchanged, against a server."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.bridge_client import bridge_server
from support.client_packages import e2b_node_client
from support.executors import needs_python
from support.servers import Server
from support.upstream import Serve, running_upstream

pytest.importorskip("e2b", reason="the environment is older than its requirements: install them again")

pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent
GUIDE = (HERE.parent.parent / "docs/e2b.md").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with bridge_server() as server:
        yield server


def run(
    server: Server,
    *command: str | Path,
    input: str = "",
    key: str | None = None,
    where: Mapping[str, str] | None = None,
) -> str:
    """Run a client that is told where the server is: by `where`, or by its URL."""
    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    told = where or {"E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        input=input,
        env={**os.environ, **proxies, **told, "E2B_API_KEY": key or server.key},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.directory.count() == 0, "the client kills what it made"
    return done.stdout


def test_the_synchronous_python_client_does_everything_it_can(server: Server) -> None:
    assert "all is well" in run(server, sys.executable, HERE / "e2b_sync.py")


def test_the_asynchronous_python_client_works_with_a_key_of_the_form_that_older_ones_want(server: Server) -> None:
    key = "e2b_" + server.key.encode().hex()
    assert "all is well" in run(server, sys.executable, HERE / "e2b_async.py", key=key)


@needs_python
def test_the_code_interpreter_for_python_does_everything_it_can(server: Server) -> None:
    assert "all is well" in run(server, sys.executable, HERE / "e2b_code.py")


@needs_python
def test_the_javascript_clients_do_everything_they_can(server: Server, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(e2b_node_client())
    script = shutil.copy(HERE / "e2b.mjs", tmp_path)
    assert "all is well" in run(server, "node", script)


@needs_python
def test_a_domain_behind_tls_takes_the_place_of_both_urls(tmp_path: Path) -> None:
    configuration, hosts = tmp_path / "server.toml", tmp_path / "hosts"
    configuration.write_text('names = ["api.cove.test"]\n')
    hosts.write_text("127.0.0.1 localhost api.cove.test\n")
    enter = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    with bridge_server("--config", str(configuration)) as server, running_upstream(tmp_path) as world:
        port = world.serve(tls_end(server.url), "cove.test", "*.cove.test", tls=True)
        where = {"E2B_DOMAIN": f"cove.test:{port}", "SSL_CERT_FILE": str(world.ca)}
        command: list[str | Path] = ["unshare", "--mount", *enter, "sh", "-c", script, "sh", hosts, sys.executable]
        assert "all is well" in run(server, *command, HERE / "e2b_domain.py", where=where)


def tls_end(url: str) -> Serve:
    """Pass connections on to a server, as a proxy does that ends TLS."""
    parts = urlsplit(url)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one of them has left
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(copy(reader, outer), copy(inner, writer))

    return serve


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@needs_python
@pytest.mark.pure
def test_the_examples_of_the_guide_for_python_work(server: Server) -> None:
    first, code = examples("py")
    assert run(server, sys.executable, "-", input=first) == "hello\n['notes.txt']\n"
    assert run(server, sys.executable, "-", input=code) == "3.0\n"


@pytest.mark.pure
def test_the_example_of_the_guide_for_javascript_works(server: Server, tmp_path: Path) -> None:
    (example,) = examples("js")
    (tmp_path / "node_modules").symlink_to(e2b_node_client())
    script = tmp_path / "guide.mjs"
    script.write_text(example)
    assert run(server, "node", script) == "hello\n"
