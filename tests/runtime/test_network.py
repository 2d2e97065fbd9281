import asyncio
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from support.event_loops import turns
from support.upstream import Upstream, running_upstream

from cove import (
    AsyncSandbox,
    Network,
    NetworkEvent,
    NetworkLimits,
    NetworkPolicy,
    NetworkRule,
    Output,
    ValidationFailed,
)
from cove.egress import connection as connection_module
from cove.egress import resolver as resolver_module
from cove.egress.connection import Connection
from cove.egress.event_report import EventReport
from cove.egress.gate import Gate
from cove.egress.resolver import NameUnknown, Resolver
from cove.egress.trust import HostTrust

pytestmark = pytest.mark.anyio

CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as sock:
        sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        print(sock.recv(100))
except OSError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    with running_upstream(tmp_path) as upstream:
        monkeypatch.setenv("COVE_RESOLVER", upstream.resolver)
        monkeypatch.setenv("SSL_CERT_FILE", str(upstream.ca))
        yield upstream


def private(host: str, port: int) -> NetworkRule:
    return NetworkRule(f"{host}:{port}", private=True)


@asynccontextmanager
async def sandbox_with(*allow: str | NetworkRule, **fields: object) -> AsyncIterator[AsyncSandbox]:
    policy = NetworkPolicy(allow=allow, **fields)  # type: ignore[arg-type]
    async with AsyncSandbox.create(network=policy) as sandbox:
        yield sandbox


async def fetch(sandbox: AsyncSandbox, url: str, *options: str) -> str:
    result = await sandbox.exec(["curl", "-sS", "--max-time", "20", *options, url])
    return (result.stdout + result.stderr).strip()


async def first_event(sandbox: AsyncSandbox) -> NetworkEvent:
    """Of a connection, when it has ended outside too."""
    async with aclosing(sandbox.network_log(follow=True)) as events, asyncio.timeout(30):
        return await anext(events)


async def test_an_allowed_name_is_reached_and_logged(world: Upstream) -> None:
    port = world.serve_http("files.example", body=b"x" * 1000)
    async with sandbox_with(private("files.example", port)) as sandbox:
        assert await fetch(sandbox, f"http://files.example:{port}/") == "x" * 1000
        event = await first_event(sandbox)
        assert (event.kind, event.host, event.port, event.allowed) == ("connection", "files.example", port, True)
        assert event.rule == f"files.example:{port}"
        assert event.received_bytes > 1000
        assert event.sent_bytes > 10
        usage = await sandbox.usage()
        assert (usage.network_sent_bytes, usage.network_received_bytes) == (event.sent_bytes, event.received_bytes)


async def test_a_name_that_is_not_allowed_does_not_exist_and_the_result_says_so(world: Upstream) -> None:
    world.addresses["other.example"] = ["127.0.0.1"]
    async with sandbox_with("files.example") as sandbox:
        result = await sandbox.exec(["curl", "-sS", "https://other.example/"])
        assert "Could not resolve host" in result.stderr
        (denial,) = result.denied
        assert (denial.host, denial.rule) == ("other.example", "other.example")
        assert "not allowed" in denial.reason
        assert (await sandbox.exec("true")).denied == ()
    assert world.asked == []


async def test_nothing_is_denied_where_nothing_is_asked_for() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(["curl", "-sS", "http://a.example/"])
        assert result.denied == ()
        assert "Could not resolve host" in result.stderr


@pytest.mark.parametrize(
    "target", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "8.8.8.8", "198.18.77.7", "192.168.0.1"]
)
async def test_an_address_without_a_name_is_refused_at_once(world: Upstream, target: str) -> None:
    port = world.serve_http("files.example")
    async with sandbox_with(private("files.example", port), "web.example") as sandbox:
        for each in (port, 80, 9):
            result = await sandbox.exec(["python3", "-c", CONNECT, target, str(each)])
            assert re.match(
                "ConnectionRefusedError|OSError.*unreachable|ConnectionResetError|b'HTTP/1.1 403", result.stdout
            )


async def test_udp_is_refused_at_once(world: Upstream) -> None:
    async with sandbox_with("a.example") as sandbox:
        code = "from socket import *; s = socket(type=SOCK_DGRAM); s.connect(('a.example', 9)); s.send(b'x'); s.recv(1)"
        result = await sandbox.exec(["python3", "-c", code])
        assert "ConnectionRefusedError" in result.stderr


async def test_a_port_that_no_rule_has_is_refused(world: Upstream) -> None:
    one, other = world.serve_http("one.example"), world.serve_http("other.example")
    async with sandbox_with(private("one.example", one), private("other.example", other)) as sandbox:
        result = await sandbox.exec(["curl", "-sS", f"http://one.example:{other}/"])
        # It is reset, on a port that has no words for why: curl sees that when it connects, or afterwards.
        assert result.exit_code in (7, 52, 56)
        (denial,) = result.denied
        assert (denial.host, denial.port, denial.rule) == ("one.example", other, f"one.example:{other}")


async def test_a_program_that_sends_its_request_late_is_told_why_it_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "_GOODBYE_SECONDS", 0.0)
    ours, theirs = socket.socketpair()
    reports, reported = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, reports, reported:
        ours.setblocking(False)
        reports.setblocking(False)
        gate = Gate(EventReport(reports), await asyncio.to_thread(HostTrust))
        refusing = asyncio.ensure_future(Connection(gate, ours, "198.18.0.1", 80).run())
        await turns()
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await refusing
        assert (await asyncio.to_thread(theirs.recv, 1000)).startswith(b"HTTP/1.1 403")


async def test_a_refusal_is_reported_before_the_program_is_told() -> None:
    """A command may end as soon as it is told, and its own result is to list what was refused."""
    ours, theirs = socket.socketpair()
    reports, reported = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, reports, reported:
        ours.setblocking(False)
        reports.setblocking(False)
        gate = Gate(EventReport(reports), await asyncio.to_thread(HostTrust))
        refusing = asyncio.ensure_future(Connection(gate, ours, "198.18.0.1", 80).run())
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert (await asyncio.to_thread(theirs.recv, 1000)).startswith(b"HTTP/1.1 403")
        assert b"has no name" in reported.recv(10_000, socket.MSG_DONTWAIT)
        theirs.close()
        await refusing
        with pytest.raises(BlockingIOError):
            reported.recv(10_000, socket.MSG_DONTWAIT)


async def test_a_name_that_leads_nowhere_is_no_fault_of_the_policy(world: Upstream) -> None:
    async with sandbox_with("missing.example") as sandbox:
        answer = await fetch(sandbox, "http://missing.example/", "--write-out", "%{http_code}")
        assert answer == "cove: missing.example has no address\n502"


async def test_a_name_of_the_hosts_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# none.example\nnone none.example\n10.0.0.5\tOne.example two.example # note\n::1 two.example\n")
    monkeypatch.setattr(resolver_module, "_HOSTS", hosts)
    monkeypatch.setattr(socket, "getaddrinfo", _knows_none)
    resolver = Resolver(None)
    assert [str(each) for each in await resolver.resolve("one.example")] == ["10.0.0.5"]
    assert [str(each) for each in await resolver.resolve("two.example")] == ["10.0.0.5", "::1"]
    for name in ("none.example", "example", "note"):
        with pytest.raises(NameUnknown):
            await resolver.resolve(name)


def _knows_none(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize("answer", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::ffff:127.0.0.1", "64:ff9b::7f00:1"])
async def test_a_name_that_leads_to_a_private_address_is_refused(world: Upstream, answer: str) -> None:
    port = world.serve_http("trap.example")
    world.addresses["trap.example"] = [answer]
    async with sandbox_with(f"trap.example:{port}", "*.trap.example") as sandbox:
        result = await sandbox.exec(["curl", "-sS", f"http://trap.example:{port}/"])
        assert result.exit_code != 0
        assert any("address" in denial.reason for denial in result.denied)
    assert world.requests == []


async def test_the_address_that_was_judged_is_the_one_that_is_used(world: Upstream) -> None:
    port = world.serve_http("rebind.example")
    world.addresses["rebind.example"] = ["192.0.2.1,127.0.0.1"]
    async with sandbox_with(f"*.example:{port}") as sandbox:
        result = await sandbox.exec(["curl", "-sS", "--max-time", "30", f"http://rebind.example:{port}/"])
        assert result.exit_code != 0
    assert world.requests == []


async def test_tls_passes_through_to_the_name_it_is_for(world: Upstream, tmp_path: Path) -> None:
    port = world.serve_http("secure.example", tls=True, body=b"secret garden")
    async with sandbox_with(private("secure.example", port)) as sandbox:
        await sandbox.files.write("ca.pem", world.ca.read_bytes())
        assert await fetch(sandbox, f"https://secure.example:{port}/", "--cacert", "ca.pem") == "secret garden"


async def test_a_policy_can_come_and_go_while_the_sandbox_runs(world: Upstream) -> None:
    port = world.serve_http("files.example")
    async with AsyncSandbox.create() as sandbox:
        assert "Could not resolve" in await fetch(sandbox, f"http://files.example:{port}/")
        await sandbox.set_network(NetworkPolicy(allow=[private("files.example", port)]))
        assert await fetch(sandbox, f"http://files.example:{port}/") == "hello"
        assert isinstance((await sandbox.info()).spec.network, NetworkPolicy)
        await sandbox.set_network("none")
        assert "Could not resolve" in await fetch(sandbox, f"http://files.example:{port}/")
        await sandbox.set_network(NetworkPolicy(allow=[private("files.example", port)]))
        assert await fetch(sandbox, f"http://files.example:{port}/") == "hello"


async def test_a_policy_change_ends_what_is_open(world: Upstream) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"open\n")
        await reader.read()
        writer.close()

    port, other = world.serve(hold, "hold.example"), world.serve_http("files.example")
    async with sandbox_with(private("hold.example", port)) as sandbox:
        code = f"import socket; s = socket.create_connection(('hold.example', {port})); print(s.recv(9)); s.recv(9)"
        process = await sandbox.start_process(["python3", "-u", "-c", code])
        await process.wait_for_log("open", timeout=30)
        await sandbox.set_network(NetworkPolicy(allow=[private("files.example", other)]))
        await process.wait(timeout=30)
        logs = b"".join([event.data async for event in process.logs() if isinstance(event, Output)])
        assert b"ConnectionResetError" in logs
        assert await fetch(sandbox, f"http://files.example:{other}/") == "hello"


async def test_servers_inside_go_on_working_beside_a_policy(world: Upstream) -> None:
    async with sandbox_with("files.example") as sandbox:
        process = await sandbox.start_process(["python3", "-u", "-m", "http.server", "8123"])
        await process.wait_for_port(8123, timeout=30)
        assert "Directory listing" in await fetch(sandbox, "http://127.0.0.1:8123/")
        assert "Directory listing" in await fetch(sandbox, "http://localhost:8123/")


async def test_a_killed_egress_process_comes_back_and_the_policy_holds(world: Upstream) -> None:
    port = world.serve_http("files.example")
    async with sandbox_with(private("files.example", port)) as sandbox:
        assert await fetch(sandbox, f"http://files.example:{port}/") == "hello"
        for _ in range(2):
            process = sandbox._surfaces.egress._process  # type: ignore[attr-defined]
            signal.pidfd_send_signal(process._pidfd, signal.SIGKILL)
            await process.ended
            assert await fetch(sandbox, f"http://files.example:{port}/") == "hello"
            assert "Could not resolve" in await fetch(sandbox, "http://other.example/")


async def test_usage_has_the_totals_also_after_a_kill_a_restart_and_the_end_of_the_policy(world: Upstream) -> None:
    port = world.serve_http("files.example", body=b"x" * 1000)
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.usage()).network_connections is None
        policy = NetworkPolicy(allow=[private("files.example", port)])
        await sandbox.set_network(policy)
        for _ in range(2):
            assert len(await fetch(sandbox, f"http://files.example:{port}/")) == 1000
        await fetch(sandbox, "http://other.example/")
        before = await sandbox.usage()
        assert (before.network_connections, before.network_requests, before.network_refused) == (2, 0, 1)
        assert before.network_received_bytes is not None
        assert before.network_received_bytes > 2000
        process = sandbox._surfaces.egress._process  # type: ignore[attr-defined]
        signal.pidfd_send_signal(process._pidfd, signal.SIGKILL)
        await process.ended
        assert len(await fetch(sandbox, f"http://files.example:{port}/")) == 1000
        assert (await sandbox.usage()).network_connections == 3
        await sandbox.restart()
        assert len(await fetch(sandbox, f"http://files.example:{port}/")) == 1000
        await sandbox.set_network("none")
        assert (await sandbox.usage()).network_connections == 4


async def test_a_name_that_was_answered_before_is_judged_by_the_policy_that_holds_now(world: Upstream) -> None:
    look_up = "getent ahostsv4 files.example FILES.example | cut -d' ' -f1 | sort -u"
    first, second = NetworkPolicy(allow=["files.example"]), NetworkPolicy(allow=["files.example", "*.example"])
    async with AsyncSandbox.create(network=first) as sandbox:
        answers = [(await sandbox.exec(look_up)).stdout for _ in range(2)]
        assert answers[0].startswith("198.18.")
        assert answers[0] == answers[1]
        await sandbox.set_network(NetworkPolicy(allow=["other.example"]))
        result = await sandbox.exec(look_up)
        assert (result.stdout, {denial.host for denial in result.denied}) == ("", {"files.example"})
        for policy in (first, second):
            await sandbox.set_network(policy)
            assert (await sandbox.exec(look_up)).stdout == answers[0]
        await sandbox.set_network(NetworkPolicy(allow=["*.example"]))
        assert (await sandbox.exec(look_up)).stdout == ""  # it is looked up, and does not exist


async def test_limits_end_in_a_refusal_that_says_which(world: Upstream) -> None:
    port = world.serve_http("files.example", body=b"x" * 100_000)
    limits = NetworkLimits(total_bytes=250_000)
    async with sandbox_with(private("files.example", port), limits=limits) as sandbox:
        assert len(await fetch(sandbox, f"http://files.example:{port}/")) == 100_000
        assert len(await fetch(sandbox, f"http://files.example:{port}/")) == 100_000
        result = await sandbox.exec(["curl", "-sS", f"http://files.example:{port}/"])
        assert result.exit_code != 0
        assert "total_bytes" in result.denied[0].reason


async def test_more_connections_than_allowed_are_reset_at_once(world: Upstream) -> None:
    port = world.serve_http("files.example")
    limits = NetworkLimits(connections=3)
    async with sandbox_with(private("files.example", port), limits=limits) as sandbox:
        code = f"""
import socket
held = [socket.create_connection(("files.example", {port})) for _ in range(3)]
for each in held:
    each.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    print(each.recv(15))
try:
    more = socket.create_connection(("files.example", {port}))
    more.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    print(more.recv(15))
except ConnectionError as error:
    print(error)
"""
        result = await sandbox.exec(["python3", "-c", code])
        assert result.stdout.count("200 OK") == 3
        assert "reset" in result.stdout
        assert "more than 3 connections" in result.denied[0].reason


async def test_the_network_of_the_host_is_had_from_the_beginning_or_never(world: Upstream) -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(ValidationFailed, match="or never"):
            await sandbox.set_network(Network.HOST)


async def test_without_isolation_there_is_no_policy() -> None:
    with pytest.raises(ValidationFailed, match="needs isolation"):
        await AsyncSandbox.create(isolation="none", network="internet")


async def test_a_policy_holds_after_a_restart(world: Upstream) -> None:
    port = world.serve_http("files.example")
    async with sandbox_with(private("files.example", port)) as sandbox:
        await sandbox.restart()
        assert await fetch(sandbox, f"http://files.example:{port}/") == "hello"
        assert "Could not resolve" in await fetch(sandbox, "http://other.example/")


async def test_a_follower_of_the_log_sees_what_happens(world: Upstream) -> None:
    async with sandbox_with("files.example") as sandbox:
        events = sandbox.network_log(follow=True)
        reading = asyncio.ensure_future(anext(events))
        await fetch(sandbox, "http://first.example/")
        assert (await asyncio.wait_for(reading, 30)).host == "first.example"
        await fetch(sandbox, "http://second.example/")
        second = await asyncio.wait_for(anext(events), 30)
        assert second.host == "second.example"
        await events.aclose()
        assert [event.host async for event in sandbox.network_log(since=second.cursor)] == []


async def test_wildcards_are_warned_about() -> None:
    async with sandbox_with("*.cdn.example", "files.example") as sandbox:
        (warning,) = (each for each in (await sandbox.info()).warnings if "below" in each)
        assert "*.cdn.example" in warning
        assert "files.example" not in warning


async def test_every_public_name_exists_on_the_internet_and_no_private_one(world: Upstream) -> None:
    world.addresses |= {"public.example": ["192.0.2.7,8.8.8.8", "8.8.4.4"], "inner.example": ["10.0.0.1"]}
    world.addresses["public.example"] = ["8.8.8.8"]
    async with AsyncSandbox.create(network="internet") as sandbox:
        shown = await sandbox.exec("getent ahostsv4 public.example inner.example nowhere.example")
        assert shown.stdout.startswith("198.18.")
        result = await sandbox.exec("getent ahostsv4 inner.example; getent ahostsv4 nowhere.example")
        assert result.stdout == ""
        assert [denial.host for denial in result.denied] == ["inner.example"]
        assert "private address" in result.denied[0].reason


async def test_an_address_can_be_allowed_by_itself(world: Upstream) -> None:
    port = world.serve_http("unused.example")
    async with AsyncSandbox.create() as sandbox:
        for address in ("127.0.0.9", "10.255.255.1"):
            await sandbox.set_network(NetworkPolicy(allow=[NetworkRule(f"{address}:{port}", private=True)]))
            result = await sandbox.exec(["python3", "-c", CONNECT, address, str(port)])
            other = await sandbox.exec(["python3", "-c", CONNECT, "10.255.255.2", str(port)])
            assert "nreachable" in other.stdout
        assert "ConnectionResetError" in result.stdout
        assert result.denied[0].host == "10.255.255.1"


async def test_a_thousand_connections_are_carried_at_once(world: Upstream) -> None:
    port = world.serve_http("files.example")
    async with sandbox_with(private("files.example", port)) as sandbox:
        code = f"""
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = [socket.create_connection(("files.example", {port})) for _ in range(1000)]
for each in held:
    each.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
print(sum(b"200 OK" in each.recv(100) for each in held))
"""
        assert (await sandbox.exec(["python3", "-c", code], timeout=60)).stdout.strip() == "1000"


async def test_raw_bytes_to_the_name_server_harm_nobody(world: Upstream) -> None:
    port = world.serve_http("files.example")
    async with sandbox_with(private("files.example", port)) as sandbox:
        code = """
import os, socket
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.connect(("127.0.0.53", 53))
for size in (0, 1, 11, 12, 13, 100, 512, 4000, 9000):
    for _ in range(50):
        udp.send(os.urandom(size))
for data in (b"", b"\\0", b"\\xff\\xff" + bytes(65535), b"\\0\\x0c" + bytes(12), os.urandom(5000)):
    with socket.create_connection(("127.0.0.53", 53)) as tcp:
        tcp.sendall(data)
        tcp.shutdown(socket.SHUT_WR)
        try:
            tcp.recv(10)
        except ConnectionError:
            pass
"""
        (await sandbox.exec(["python3", "-c", code], timeout=60)).check()
        assert await fetch(sandbox, f"http://files.example:{port}/") == "hello"
