"""Ports under a policy: every one where the kernel has nf_tables, as it must where these tests run, and without it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.upstream import Upstream, running_upstream

from cove import AsyncSandbox, NetworkDenial, NetworkPolicy, NetworkRule, PortInUse
from cove.attach import actions

pytestmark = pytest.mark.anyio

SERVE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"inside")
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    with running_upstream(tmp_path) as upstream:
        monkeypatch.setenv("COVE_RESOLVER", upstream.resolver)
        yield upstream


@pytest.fixture
def without_nf_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses this transaction as one without nf_tables refuses each."""
    monkeypatch.setattr(actions, "transaction", lambda _: bytes(20))


def policy(*ports: int) -> NetworkPolicy:
    return NetworkPolicy(allow=[NetworkRule("files.example", ports=ports, private=True)])


async def fetch(sandbox: AsyncSandbox, url: str) -> str:
    return (await sandbox.exec(["curl", "-sS", "--max-time", "30", url])).stdout


async def refusal(sandbox: AsyncSandbox, url: str) -> NetworkDenial:
    result = await sandbox.exec(["curl", "-sS", "--max-time", "30", url])
    assert result.exit_code != 0
    (denial,) = result.denied
    return denial


async def serve(sandbox: AsyncSandbox, port: int) -> None:
    process = await sandbox.start_process(["python3", "-c", SERVE, str(port)])
    await process.wait_for_port(port, timeout=30)


async def has_warning(sandbox: AsyncSandbox) -> bool:
    return any("nf_tables" in warning for warning in (await sandbox.info()).warnings)


async def test_a_server_inside_can_have_a_port_of_the_policy(world: Upstream) -> None:
    port = world.serve_http("files.example", body=b"outside")
    async with AsyncSandbox.create(network=policy(port)) as sandbox:
        await serve(sandbox, port)
        assert await fetch(sandbox, f"http://files.example:{port}/") == "outside"
        assert await fetch(sandbox, f"http://127.0.0.1:{port}/") == "inside"
        assert await fetch(sandbox, f"http://localhost:{port}/") == "inside"
        assert not await has_warning(sandbox)


async def test_a_new_rule_can_have_the_port_of_a_server_inside(world: Upstream) -> None:
    port = world.serve_http("files.example", body=b"outside")
    async with AsyncSandbox.create() as sandbox:
        await serve(sandbox, port)
        await sandbox.set_network(policy(port))
        assert await fetch(sandbox, f"http://files.example:{port}/") == "outside"
        assert await fetch(sandbox, f"http://127.0.0.1:{port}/") == "inside"
        await sandbox.set_network("none")
        await sandbox.set_network(policy(port))
        assert await fetch(sandbox, f"http://files.example:{port}/") == "outside"


async def test_a_port_that_no_rule_has_is_refused_with_the_rule_that_would_allow_it(world: Upstream) -> None:
    port = world.serve_http("files.example")
    async with AsyncSandbox.create(network=policy(443)) as sandbox:
        denial = await refusal(sandbox, f"http://files.example:{port}/")
        assert (denial.host, denial.port, denial.rule) == ("files.example", port, f"files.example:{port}")
    assert world.requests == []


async def test_the_internet_is_every_port_but_that_of_mail(world: Upstream) -> None:
    world.addresses["public.example"] = ["2a00::1"]
    async with AsyncSandbox.create(network="internet") as sandbox:
        assert (
            "port 25 of public.example is not allowed" in (await refusal(sandbox, "http://public.example:25/")).reason
        )
        assert "not allowed" not in (await refusal(sandbox, "http://public.example:8443/")).reason


async def test_only_the_sandboxs_own_addresses_lead_out(world: Upstream) -> None:
    port = world.serve_http("files.example", body=b"outside")
    async with AsyncSandbox.create(network=policy(port)) as sandbox:
        await serve(sandbox, port)
        for address in ("127.0.0.1", "127.8.8.8", "198.18.0.1"):
            assert await fetch(sandbox, f"http://{address}:{port}/") == "inside"
        straight = await refusal(sandbox, "http://127.0.0.53:54/")
        assert "127.0.0.53 has no name" in straight.reason
        result = await sandbox.exec(["curl", "-sS", f"http://10.0.0.1:{port}/"])
        assert "unreachable" in result.stderr or "Couldn't connect" in result.stderr


@pytest.mark.parametrize("port", [80, 443])
async def test_a_server_inside_cannot_have_a_port_below_1024_with_or_without_a_policy(port: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        assert "Permission denied" in (await sandbox.exec(["python3", "-c", SERVE, str(port)])).stderr
        await sandbox.set_network(NetworkPolicy(allow=["files.example"]))
        assert "Permission denied" in (await sandbox.exec(["python3", "-c", SERVE, str(port)])).stderr


@pytest.mark.usefixtures("without_nf_tables")
async def test_without_nf_tables_a_policy_has_its_ports_and_says_so(world: Upstream) -> None:
    port = world.serve_http("files.example", body=b"outside")
    async with AsyncSandbox.create(network=policy(port)) as sandbox:
        assert await has_warning(sandbox)
        assert await fetch(sandbox, f"http://files.example:{port}/") == "outside"
        taken = await sandbox.exec(["python3", "-c", SERVE, str(port)])
        assert "Address already in use" in taken.stderr
        refused = await sandbox.exec(["curl", "-sS", f"http://files.example:{port + 1}/"])
        assert "Couldn't connect" in refused.stderr or "refused" in refused.stderr
        await sandbox.restart()
        assert await fetch(sandbox, f"http://files.example:{port}/") == "outside"


@pytest.mark.usefixtures("without_nf_tables")
async def test_without_nf_tables_a_port_that_is_taken_inside_is_an_error_and_the_old_policy_stays(
    world: Upstream,
) -> None:
    port, taken = world.serve_http("files.example"), world.serve_http("late.example")
    async with AsyncSandbox.create(network=policy(port)) as sandbox:
        await serve(sandbox, taken)
        with pytest.raises(PortInUse, match=str(taken)):
            await sandbox.set_network(policy(taken))
        assert await fetch(sandbox, f"http://files.example:{port}/") == "hello"


@pytest.mark.usefixtures("without_nf_tables")
async def test_without_nf_tables_the_internet_is_three_ports(world: Upstream) -> None:
    world.addresses["public.example"] = ["2a00::1"]
    async with AsyncSandbox.create(network="internet") as sandbox:
        assert await has_warning(sandbox)
        result = await sandbox.exec(["curl", "-sS", "--max-time", "30", "http://public.example:8443/"])
        assert "Couldn't connect" in result.stderr or "refused" in result.stderr
