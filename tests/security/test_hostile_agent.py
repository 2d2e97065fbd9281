"""Whatever arrives from inside, the runtime reports the loss, leaks nothing, and its event loop sees no exception."""

import asyncio
import os
import socket
from collections.abc import Callable

import pytest
from support.fake_agent import Peer
from support.leaks import descriptors

from cove.core.command import build_invocation
from cove.errors import CoveError, SandboxDestroyed, ValidationFailed
from cove.linux.descriptors import Kind
from cove.linux.packets import socket_pair
from cove.local.threads import close_in_thread
from cove.model import Outcome
from cove.runtime.launcher import Launcher, LauncherPool
from cove.runtime.link import Link
from cove.runtime.supervised import Supervised
from cove.tasks import Tasks

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

Attack = Callable[[Peer], None]


def with_descriptors(count: int, *fields: bytes) -> Attack:
    def attack(peer: Peer) -> None:
        null = os.open("/dev/null", os.O_RDONLY)
        peer.send(*fields, descriptors=(null,) * count)
        os.close(null)

    return attack


def oversized(peer: Peer) -> None:
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    peer.sock.send(b"x" * 100_000)


def says(*fields: bytes) -> Attack:
    return lambda peer: peer.send(*fields)


def hangs_up(peer: Peer) -> None:
    peer.sock.close()


LINK_ATTACKS = {
    "garbage": says(b"\xff\xfe garbage"),
    "only separators": says(b"", b"", b""),
    "a second hello": says(b"hello"),
    "a tag nobody asked for": says(b"ok", b"999"),
    "a tag that is no number": says(b"ok", b"one"),
    "a huge tag": says(b"ok", b"9" * 30),
    "no tag": says(b"ok"),
    "too many fields": says(b"ok", b"1", b"5", b"6"),
    "too few fields": says(b"ok", b"1"),
    "an unknown verb": says(b"perhaps", b"1", b"5"),
    "an error without a number": says(b"error", b"1", b"many"),
    "an error with a number beyond any": says(b"error", b"1", b"9" * 20),
    "an error with too much": says(b"error", b"1", b"2", b"3"),
    "a descriptor that nobody expects": with_descriptors(1, b"ok", b"1", b"5"),
    "many descriptors": with_descriptors(20, b"ok", b"1", b"5"),
    "more descriptors than agreed": with_descriptors(200, b"ok", b"1", b"5"),
    "descriptors with a hello": with_descriptors(3, b"hello"),
    "descriptors with an error": with_descriptors(1, b"error", b"1", b"2"),
    "descriptors and nothing else": with_descriptors(2, b""),
    "an oversized packet": oversized,
    "the end": hangs_up,
}


async def linked() -> tuple[socket.socket, list[str], Link, Peer]:
    """A link that has heard the agent's hello: its other end, why it was lost, itself, and who speaks there."""
    ours, theirs = socket_pair()
    lost: list[str] = []
    link = Link(ours, lost.append)
    peer = Peer(theirs)
    peer.send(b"hello")
    await link.hello
    return theirs, lost, link, peer


@pytest.mark.parametrize("name", LINK_ATTACKS)
async def test_a_hostile_answer_loses_the_sandbox_and_nothing_else(name: str) -> None:
    before = descriptors()
    theirs, lost, link, peer = await linked()
    request = asyncio.ensure_future(link.request(b"launcher", expect_fields=1))
    await asyncio.sleep(0)
    LINK_ATTACKS[name](peer)
    with pytest.raises(CoveError):
        await asyncio.wait_for(request, 30)
    assert len(lost) == 1
    assert link.closed
    with pytest.raises(SandboxDestroyed):
        await link.request(b"stat")
    link.close()
    theirs.close()
    await close_in_thread([])  # after what was to be closed before
    assert descriptors() == before


@pytest.mark.parametrize(
    "attack",
    [
        says(b"ok", b"1"),
        says(b"perhaps", b"1", b"content"),
        with_descriptors(1, b"ok", b"1"),
        with_descriptors(1, b"ok", b"1", b"content"),
        with_descriptors(1, b"ok", b"1", b"", b""),
        with_descriptors(2, b"ok", b"1", b""),
    ],
)
async def test_an_answer_that_is_neither_content_nor_one_descriptor_loses_the_sandbox(attack: Attack) -> None:
    before = descriptors()
    theirs, lost, link, peer = await linked()
    request = asyncio.ensure_future(link.request_content(b"read", b"100", b"/x", subject="x"))
    await asyncio.sleep(0)
    attack(peer)
    with pytest.raises(SandboxDestroyed):
        await asyncio.wait_for(request, 30)
    assert lost == ["the agent broke the protocol: malformed answer"]
    theirs.close()
    await close_in_thread([])  # after what was to be closed before
    assert descriptors() == before


async def test_a_flood_of_answers_after_the_loss_is_not_read() -> None:
    ours, theirs = socket_pair()
    lost: list[str] = []
    link = Link(ours, lost.append)
    peer = Peer(theirs)
    peer.send(b"hello")
    for _ in range(20):
        with_descriptors(4, b"ok", b"1")(peer)
    await asyncio.wait_for(link.hello, 30)
    while not lost:
        await asyncio.sleep(0)
    assert len(lost) == 1
    theirs.close()


async def test_an_agent_that_speaks_before_its_hello_is_not_believed() -> None:
    ours, theirs = socket_pair()
    lost: list[str] = []
    link = Link(ours, lost.append)
    Peer(theirs).send(b"ok", b"1")
    while not lost:
        await asyncio.sleep(0)
    assert link.hello.cancelled()
    theirs.close()


def open_read(path: str) -> Callable[[], int]:
    return lambda: os.open(path, os.O_RDONLY)


def unix_socket() -> int:
    one, other = socket.socketpair()
    other.close()
    return one.detach()


def udp_socket() -> int:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()


def tcp_socket() -> int:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach()


def pipe_end() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


@pytest.mark.parametrize(
    ("kind", "make", "is_taken"),
    [
        (Kind.FILE, open_read("/etc/passwd"), True),
        (Kind.FILE, open_read("/etc"), False),
        (Kind.FILE, open_read("/dev/null"), False),
        (Kind.FILE, open_read("/proc/self/status"), False),
        (Kind.FILE, open_read("/proc/sys/kernel/hostname"), False),
        (Kind.FILE, open_read("/sys/kernel/mm/transparent_hugepage/enabled"), False),
        (Kind.FILE, pipe_end, False),
        (Kind.FILE, unix_socket, False),
        (Kind.DIRECTORY, open_read("/etc"), True),
        (Kind.DIRECTORY, open_read("/proc"), False),
        (Kind.DIRECTORY, open_read("/sys"), False),
        (Kind.DIRECTORY, open_read("/etc/passwd"), False),
        (Kind.STREAM, tcp_socket, True),
        (Kind.STREAM, udp_socket, False),
        (Kind.STREAM, unix_socket, False),
        (Kind.STREAM, open_read("/etc/passwd"), False),
    ],
)
async def test_a_descriptor_of_another_kind_than_requested_is_closed(
    kind: Kind, make: Callable[[], int], is_taken: bool
) -> None:
    before = descriptors()
    ours, theirs = socket_pair()
    link = Link(ours, lambda reason: None)
    request = asyncio.ensure_future(link.request_descriptor(kind, b"open", subject="the thing"))
    await asyncio.sleep(0)
    sent = make()
    Peer(theirs).send(b"ok", b"1", descriptors=(sent,))
    os.close(sent)
    if is_taken:
        os.close(await request)
    else:
        with pytest.raises(ValidationFailed, match="the thing"):
            await request
    link.close()
    theirs.close()
    await close_in_thread([])  # after what was to be closed before
    assert descriptors() == before


async def test_an_answer_to_a_cancelled_request_is_dropped_with_its_descriptors() -> None:
    before = descriptors()
    ours, theirs = socket_pair()
    lost: list[str] = []
    link = Link(ours, lost.append)
    peer = Peer(theirs)
    cancelled = asyncio.ensure_future(link.request(b"open", expect_descriptors=1))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    with_descriptors(1, b"ok", b"1")(peer)
    following = asyncio.ensure_future(link.request(b"stat", expect_fields=1))
    await asyncio.sleep(0)
    peer.send(b"ok", b"2", b"x")
    assert (await following).fields == [b"x"]
    assert lost == []
    link.close()
    theirs.close()
    await close_in_thread([])  # after what was to be closed before
    assert descriptors() == before


LAUNCHER_ATTACKS = {
    "garbage": says(b"\xff\xfe garbage"),
    "an unknown verb": says(b"perhaps"),
    "an exit before the start": says(b"exit", b"0", b"0", b"0", b"0", b"1"),
    "nothing left before the start": says(b"empty"),
    "a second ready": says(b"ready"),
    "a start without a pid": says(b"started"),
    "a start with a pid that is no number": says(b"started", b"x"),
    "a refusal without a reason": says(b"refused", b"cwd"),
    "a refusal with an impossible reason": says(b"refused", b"cwd", b"9" * 20),
    "a descriptor": with_descriptors(1, b"started", b"5"),
    "many descriptors": with_descriptors(100, b"started", b"5"),
    "an oversized packet": oversized,
}
AFTER_START_ATTACKS = {
    "a second start": says(b"started", b"5"),
    "a refusal after the start": says(b"refused", b"cwd", b"2"),
    "an exit with an impossible status": says(b"exit", b"9" * 20, b"0", b"0", b"0", b"1"),
    "an exit with a status that is a stop": says(b"exit", b"127", b"0", b"0", b"0", b"1"),
    "an exit with a status beyond 16 bits": says(b"exit", b"65536", b"0", b"0", b"0", b"1"),
    "an exit that is cut short": says(b"exit", b"0"),
    "an exit with words for numbers": says(b"exit", b"zero", b"0", b"0", b"0", b"1"),
}


def supervised(lost: list[str], ours: socket.socket) -> tuple[Supervised, Launcher, Tasks, Link, socket.socket]:
    control, agent = socket_pair()
    link = Link(control, lost.append)
    background = Tasks(lambda error: lost.append(repr(error)))
    pool = LauncherPool(link, None, background, lost.append)
    launcher = Launcher(ours, None, lost.append)
    process = Supervised(lambda stream, data: None, pool=pool, background=background, on_fault=lost.append)
    return process, launcher, background, link, agent


async def attack_launcher(attack: Attack, *, is_started: bool) -> None:
    before = descriptors()
    ours, theirs = socket_pair()
    lost: list[str] = []
    process, launcher, background, link, agent = supervised(lost, ours)
    peer = Peer(theirs)
    peer.send(b"ready")
    await launcher.host_pid
    process.start(launcher, build_invocation("true", cwd="/", env={}))
    _, received = peer.receive()
    for descriptor in received:
        os.close(descriptor)
    if is_started:
        peer.send(b"started", b"5")
        await process.started
    attack(peer)
    async with asyncio.timeout(30):
        while not lost:
            await asyncio.sleep(0.001)
    assert len(lost) == 1
    assert launcher.closed
    process.lose(Outcome.LOST)
    await asyncio.wait_for(process.ended, 30)
    await background.aclose()
    link.close()
    theirs.close()
    agent.close()
    await close_in_thread([])  # after what was to be closed before
    assert descriptors() == before


@pytest.mark.parametrize("name", LAUNCHER_ATTACKS)
async def test_a_hostile_launcher_loses_the_sandbox_and_nothing_else(name: str) -> None:
    await attack_launcher(LAUNCHER_ATTACKS[name], is_started=False)


@pytest.mark.parametrize("name", AFTER_START_ATTACKS)
async def test_a_launcher_that_turns_hostile_loses_the_sandbox_and_nothing_else(name: str) -> None:
    await attack_launcher(AFTER_START_ATTACKS[name], is_started=True)


async def test_a_parked_launcher_that_speaks_loses_the_sandbox() -> None:
    ours, theirs = socket_pair()
    lost: list[str] = []
    launcher = Launcher(ours, None, lost.append)
    peer = Peer(theirs)
    peer.send(b"ready")
    await launcher.host_pid
    peer.send(b"started", b"1")
    while not lost:
        await asyncio.sleep(0)
    assert launcher.closed
    theirs.close()


@pytest.mark.parametrize("first", [b"hello", b"started\x005", b""])
async def test_a_launcher_that_is_not_ready_first_is_let_go(first: bytes) -> None:
    ours, theirs = socket_pair()
    lost: list[str] = []
    launcher = Launcher(ours, None, lost.append)
    theirs.send(first)
    while not launcher.closed:
        await asyncio.sleep(0)
    assert launcher.host_pid.cancelled() or launcher.host_pid.exception() is not None
    assert len(lost) == (1 if first else 0)
    theirs.close()


async def test_requests_wait_while_the_agent_is_busy_and_end_with_the_sandbox() -> None:
    before = descriptors()
    ours, theirs = socket_pair()
    link = Link(ours, lambda reason: None)
    requests = [asyncio.ensure_future(link.request(b"stat", bytes(2000).replace(b"\0", b"x"))) for _ in range(500)]
    await asyncio.sleep(0)
    requests[-1].cancel()
    peer = Peer(theirs)
    theirs.settimeout(30)
    for _ in range(300):
        await asyncio.sleep(0)
        fields, _ = peer.receive()
        peer.send(b"ok", fields[1])
    await asyncio.wait(requests[:300])
    assert all(request.exception() is None for request in requests[:300])
    link.close()
    await asyncio.wait(requests)
    assert requests[-1].cancelled()
    assert all(isinstance(request.exception(), SandboxDestroyed) for request in requests[300:-1])
    theirs.close()
    await close_in_thread([])  # after what was to be closed before
    assert descriptors() == before
