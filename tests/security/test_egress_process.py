"""The egress process: what rights it has, what it may cost, and that nothing opens when it is killed."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

import pytest
from support.upstream import Upstream, running_upstream

from cove import AsyncSandbox, NetworkPolicy, NetworkRule, Output
from cove.core.cassette import MOST_BODY_BYTES
from cove.core.egress_protocol import Configure
from cove.egress import gate as gate_module
from cove.egress.event_report import EventReport
from cove.egress.gate import Gate
from cove.egress.trust import HostTrust
from cove.runtime import egress, egress_process
from cove.runtime.egress_process import EgressProcess

pytestmark = pytest.mark.anyio

NAME = "files.example"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    with running_upstream(tmp_path) as upstream:
        monkeypatch.setenv("COVE_RESOLVER", upstream.resolver)
        monkeypatch.setenv("SSL_CERT_FILE", str(upstream.ca))
        yield upstream


def policy_for(port: int, **fields: object) -> NetworkPolicy:
    return NetworkPolicy(allow=[NetworkRule(f"{NAME}:{port}", private=True)], **fields)  # type: ignore[arg-type]  # named by NetworkPolicy


async def fetch(sandbox: AsyncSandbox, port: int, name: str = NAME) -> str:
    result = await sandbox.exec(["curl", "-sS", "--max-time", "30", f"http://{name}:{port}/"])
    return (result.stdout + result.stderr).strip()


def process_of(sandbox: AsyncSandbox) -> EgressProcess:
    process = sandbox._surfaces.egress._process  # type: ignore[attr-defined]  # of the runtime's
    assert isinstance(process, EgressProcess)
    return process


async def test_it_has_the_rights_of_the_sandbox_and_no_secret_of_the_caller(
    world: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    port = world.serve_http(NAME)
    async with AsyncSandbox.create(network=policy_for(port)) as sandbox:
        assert await fetch(sandbox, port) == "hello"
        place = Path(f"/proc/{process_of(sandbox)._pid}")
        status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
        user = sandbox._place.user_id if os.geteuid() == 0 else os.geteuid()  # type: ignore[attr-defined]  # of the runtime's
        assert user != 0
        assert status["Uid"].split() == status["Gid"].split() == [str(user)] * 4
        assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        if os.geteuid() == 0:
            assert status["Groups"].strip() == ""
            assert b"hunter2" not in (place / "environ").read_bytes()
        else:
            with pytest.raises(PermissionError):  # no process of this user can look into it
                (place / "environ").read_bytes()


async def test_a_killed_one_breaks_what_was_open_and_comes_back_with_its_policy(world: Upstream) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"open\n")
        await reader.read()
        writer.close()

    port = world.serve(hold, NAME)
    async with AsyncSandbox.create(network=policy_for(port)) as sandbox:
        code = f"import socket; s = socket.create_connection(('{NAME}', {port})); print(s.recv(9)); print(s.recv(9))"
        program = await sandbox.start_process(["python3", "-u", "-c", code])
        await program.wait_for_log("open", timeout=30)
        killed = process_of(sandbox)
        signal.pidfd_send_signal(killed._pidfd, signal.SIGKILL)
        await program.wait(timeout=30)
        logs = b"".join([event.data async for event in program.logs() if isinstance(event, Output)])
        assert b"ConnectionResetError" in logs or logs.endswith(b"b''\n")
        again = await sandbox.exec(["python3", "-c", code.rpartition(";")[0]])
        assert "open" in again.stdout
        assert "Could not resolve" in await fetch(sandbox, port, "other.example")


@pytest.mark.parametrize(
    "moment", ["before it hears the policy", "while it takes the policy", "after it has confirmed"]
)
async def test_one_that_is_killed_at_any_step_of_its_start_opens_nothing(
    world: Upstream, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    port = world.serve_http(NAME)
    world.addresses["other.example"] = ["127.0.0.1"]
    configure, killed = EgressProcess.configure, list[int | None]()

    async def configure_and_die(self: EgressProcess, message: Configure, descriptors: list[int]) -> str | None:
        if killed:
            return await configure(self, message, descriptors)
        killed.append(self._pid)
        if moment.startswith("before"):
            self.kill()
        confirming = asyncio.ensure_future(configure(self, message, descriptors))
        if moment.startswith("while"):
            await asyncio.sleep(0)
            self.kill()
        certificate = await confirming
        self.kill()
        return certificate

    monkeypatch.setattr(EgressProcess, "configure", configure_and_die)
    async with AsyncSandbox.create(network=policy_for(port)) as sandbox:
        assert "Could not resolve" in await fetch(sandbox, port, "other.example")
        assert await fetch(sandbox, port) == "hello"
        assert process_of(sandbox)._pid not in killed
    assert "other.example" not in world.asked


async def test_when_none_stays_alive_everything_is_refused_until_the_network_is_set_again(
    world: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = world.serve_http(NAME)
    with monkeypatch.context() as broken:
        broken.setattr(egress, "_FIRST_PAUSE", 0.0001)
        broken.setattr(egress_process, "_popen", start_what_ends_at_once)
        async with AsyncSandbox.create(network=policy_for(port)) as sandbox:
            await sandbox._surfaces.egress._changed.wait()  # type: ignore[attr-defined]  # of the runtime's
            assert any("set its network again" in each for each in (await sandbox.info()).warnings)
            assert "Could not resolve" in await fetch(sandbox, port)
            refused = await sandbox.exec(["curl", "-sS", f"http://198.18.1.0:{port}/"])
            assert refused.exit_code == 7
            broken.undo()
            await sandbox.set_network(policy_for(port))
            assert await fetch(sandbox, port) == "hello"
            assert not any("set its network again" in each for each in (await sandbox.info()).warnings)


def start_what_ends_at_once(sock: socket.socket, _: int | None) -> tuple[int, int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    sock.close()
    process.returncode = 0  # as in the original: it is waited for by its pidfd
    return process.pid, os.pidfd_open(process.pid)


async def test_answers_that_are_being_recorded_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_MOST_RECORDING", 100)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(ours), closing(theirs):
        gate = Gate(EventReport(ours), await asyncio.to_thread(HostTrust))
        assert gate.reserve(60)
        assert not gate.reserve(41)
        assert gate.reserve(40)
        gate.release(60)
        assert gate.reserve(60)


@pytest.mark.parametrize(("size", "kept"), [(1000, 1), (MOST_BODY_BYTES + 1, 0)])
async def test_an_answer_that_is_too_large_passes_and_is_not_recorded(
    world: Upstream, size: int, kept: int, cove_home: Path
) -> None:
    port = world.serve_http(NAME, body=b"x" * size)
    async with AsyncSandbox.create(network=policy_for(port, record=f"tape-{size}")) as sandbox:
        counted = await sandbox.exec(f"curl -sS http://{NAME}:{port}/ | wc -c", timeout=60)
        assert counted.stdout.strip() == str(size)
    cassette = (cove_home / "cassettes" / f"tape-{size}.jsonl").read_bytes()
    assert cassette.count(b"\n") == kept


async def test_readers_that_do_not_read_cost_bounded_memory(world: Upstream) -> None:
    async def pour(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        except OSError:
            writer.close()

    flood, port = world.serve(pour, "flood.example"), world.serve_http(NAME)
    policy = NetworkPolicy(allow=[NetworkRule(f"flood.example:{flood}", private=True), *policy_for(port).allow])
    code = f"""
import socket, time
held = [socket.create_connection(("flood.example", {flood})) for _ in range(200)]
for each in held:
    each.recv(1)
print("held", flush=True)
time.sleep(1000)
"""
    async with AsyncSandbox.create(network=policy) as sandbox:
        holder = await sandbox.start_process(["python3", "-u", "-c", code])
        await holder.wait_for_log("held", timeout=60)
        assert await fetch(sandbox, port) == "hello"
        status = Path(f"/proc/{process_of(sandbox)._pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0]) << 10
        assert resident < 200 << 20


async def test_bodies_that_nobody_takes_cost_bounded_memory(world: Upstream) -> None:
    async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
        writer.transport.abort()
        await asyncio.sleep(0)

    port = world.serve(take_nothing, NAME)
    policy = NetworkPolicy(allow=[NetworkRule(f"{NAME}:{port}", private=True, methods=["POST"])])
    code = f"""
import selectors, socket, time
head = b"POST / HTTP/1.1\\r\\nhost: {NAME}:{port}\\r\\ncontent-length: 100000000\\r\\n\\r\\n"
ready = selectors.DefaultSelector()
for number in range(600):
    sock = socket.create_connection(("{NAME}", {port}))
    sock.sendall(head)
    sock.setblocking(False)
    ready.register(sock, selectors.EVENT_WRITE)
while taking := ready.select(3):  # until nobody takes more
    for key, _ in taking:
        key.fileobj.send(bytes(1 << 16))
print("full", flush=True)
time.sleep(1000)
"""
    async with AsyncSandbox.create(network=policy) as sandbox:
        holder = await sandbox.start_process(["python3", "-u", "-c", code])
        await holder.wait_for_log("full", timeout=120)
        status = Path(f"/proc/{process_of(sandbox)._pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0]) << 10
        assert resident < 170 << 20


async def test_thousands_of_names_leave_room_for_those_that_are_allowed(world: Upstream) -> None:
    port = world.serve_http(NAME)
    world.addresses |= {f"n{number}.wild.example": ["8.8.8.8"] for number in range(3000)}
    code = """
import socket, struct
sock = socket.socket(type=socket.SOCK_DGRAM)
sock.connect(("127.0.0.53", 53))
for number in range(3000):
    for name in (f"n{number}.wild.example", f"n{number}.evil.example"):
        labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
        sock.send(b"ab\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + labels + b"\\0\\0\\1\\0\\1")
"""
    policy = NetworkPolicy(allow=["*.wild.example", *policy_for(port).allow])
    async with AsyncSandbox.create(network=policy) as sandbox:
        assert await fetch(sandbox, port) == "hello"
        before = process_of(sandbox)
        (await sandbox.exec(["python3", "-c", code], timeout=60)).check()
        assert await fetch(sandbox, port) == "hello"
        assert process_of(sandbox) is before
    assert not any(name.endswith("evil.example") for name in world.asked)
