"""Requests at a worker's door: what they reach, and whose turn they take, is what their credentials say."""

import asyncio
import hmac
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

import pytest
from support.raw_http import Client, connect, serve_unix

from cove import SandboxSpec
from cove.core.e2b_access import TokenKind, Tokens
from cove.core.identifier import new_identifier
from cove.http import Answer, HttpServer, Observer, Request, Response
from cove.linux.file_lock import make_locked
from cove.local.api_keys import TENANTS
from cove.runtime.home import LOCK
from cove.server.configuration import Configuration
from cove.server.e2b.record import E2bRecord, write_record
from cove.server.error_response import describe_error
from cove.server.gateway import turns as module
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.documents import Documents
from cove.server.gateway.key_ring import Principal
from cove.server.gateway.turns import FEW_OPEN, Activity, Turns
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.starter import Starter
from cove.server.tenants import TenantGateways

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

KEY, SECRET = "the-key-of-this-server", b"the secret of tokens"
TOKENS = Tokens(hmac.digest(SECRET, KEY.encode(), "sha256"))
KEY_OF_A = f"cove_{'a' * 12}_{'b' * 43}"
SERVERS, A = {"authorization": f"Bearer {KEY}"}, {"authorization": f"Bearer {KEY_OF_A}"}
MANY = FEW_OPEN + 4


@pytest.fixture
def home(other_home: Path) -> Path:
    Directory(other_home).open()
    (other_home / "sandboxes").mkdir(exist_ok=True)
    return other_home


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still for turns: a request is young until it is answered, and who waits for it waits."""

    class Clock:
        def monotonic(self) -> float:
            return 1000.0

    monkeypatch.setattr(module, "time", Clock())


class Answered(Observer):
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def answered(self, request: Request) -> None:
        self._turns.answered(request)

    def rejected(self, response: Response) -> None: ...


@asynccontextmanager
async def worker(home: Path) -> AsyncIterator[int]:
    """The gateways of all tenants, in a server that has no zygote: nothing can be started."""
    turns = Turns(Activity())
    authenticator = Authenticator(KEY, is_loopback=True, sessions={KEY_OF_A.encode(): Principal("a", "a")}.get)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    async with (
        TenantGateways(
            authenticator,
            Starter(home),
            Configuration(),
            Documents(json=b"", html=b""),
            secret=SECRET,
            key=KEY,
            turns=turns,
        ) as gateways,
        HttpServer(gateways, [sock], describe=describe_error, grace=1.0, observer=Answered(turns)),
    ):
        yield sock.getsockname()[1]


class Runtime:
    """A sandbox as a worker sees it: its record, its lock, and a runtime that holds what comes until it is let go."""

    def __init__(self, record: Record) -> None:
        self.id, self.tenant = record.id, record.tenant
        self.headers = {
            "e2b_sandbox_id": record.id,
            "x_access_token": TOKENS.make(TokenKind.ACCESS, record.id, record.key),
        }
        self.held = 0
        self.has_come = asyncio.Condition()
        self.let_go = asyncio.Event()

    async def answer(self, request: Request) -> Answer:
        async with self.has_come:
            self.held += 1
            self.has_come.notify_all()
        await self.let_go.wait()
        return Response(204)

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(20), self.has_come:
            await self.has_come.wait_for(lambda: self.held >= count)


@asynccontextmanager
async def sandbox(home: Path, id: str, tenant: str = "") -> AsyncIterator[Runtime]:
    record, lock = await asyncio.to_thread(write_down, home, id, tenant)
    runtime = Runtime(record)
    try:
        async with serve_unix(runtime.answer, Directory(home).socket(record)):
            yield runtime
            runtime.let_go.set()
    finally:
        lock.close()


def write_down(home: Path, id: str, tenant: str) -> tuple[Record, FileIO]:
    directory = Directory(home, tenant)
    created = datetime.now(UTC)
    record = Record(id=id, key=new_identifier(), spec=SandboxSpec(), created_at=created, tenant=tenant)
    place = directory.place(record.key)
    place.mkdir()
    (home / TENANTS / tenant).mkdir(parents=True, exist_ok=True)
    directory.write(record)
    directory.entry(id).write_text(record.key)
    write_record(place, E2bRecord(template="base", timeout=300.0))
    return record, make_locked(place / LOCK)


async def ask(port: int, path: str = "/v1/sandboxes/none", **headers: str) -> int:
    async with connect(port) as client:
        return (await client.ask(path, method="GET", body=None, **headers)).status


@asynccontextmanager
async def asking(port: int, count: int, path: str, **headers: str) -> AsyncIterator[list[Client]]:
    """Requests that nobody has answered yet."""
    lines = "".join(
        f"{name.replace('_', '-')}: {value}\r\n" for name, value in {"host": "localhost", **headers}.items()
    )
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(port)) for _ in range(count)]
        for client in clients:
            client.send(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        yield clients


@pytest.mark.usefixtures("still")
async def test_who_shows_no_credentials_makes_nobody_wait(home: Path) -> None:
    async with sandbox(home, "visited", "a") as visited, worker(home) as port:
        assert await ask(port, **A) == await ask(port, **SERVERS) == 404
        async with asking(port, MANY, "/", host=f"8000-{visited.id}.localhost"):
            await visited.wait_for(MANY)
            for headers in (SERVERS, A):
                assert await ask(port, **headers) == 404
            assert await ask(port, "/sandboxes/none", x_api_key=KEY) == 404
            assert await ask(port, "/envs", e2b_sandbox_id="visited", x_access_token="wrong") == 401
            assert await ask(port) == await ask(port, authorization="Bearer wrong") == 401


@pytest.mark.usefixtures("still")
async def test_who_shows_a_token_takes_the_turns_of_its_sandboxs_tenant(home: Path) -> None:
    async with (
        sandbox(home, "busy", "a") as busy,
        sandbox(home, "of-server") as other,
        worker(home) as port,
        asyncio.TaskGroup() as tasks,
    ):
        assert await ask(port, **SERVERS) == 404
        async with asking(port, MANY, "/envs", **busy.headers):
            await busy.wait_for(FEW_OPEN)
            waiting = tasks.create_task(ask(port, **A))
            assert await ask(port, **SERVERS) == 404
            other.let_go.set()
            assert await ask(port, "/envs", **other.headers) == 204
            assert (busy.held, waiting.done()) == (FEW_OPEN, False)
            busy.let_go.set()
            assert await waiting == 404


@pytest.mark.usefixtures("still")
async def test_the_servers_own_key_takes_turns_too(home: Path) -> None:
    async with sandbox(home, "busy") as busy, worker(home) as port:
        assert await ask(port, **A) == 404
        async with asking(port, MANY, "/v1/sandboxes/busy/processes", **SERVERS):
            await busy.wait_for(FEW_OPEN)
            assert await ask(port, **A) == 404
            assert await ask(port) == 401
            assert busy.held == FEW_OPEN
            busy.let_go.set()


async def test_of_sandboxes_with_one_id_nobody_is_given_one_that_they_did_not_name(home: Path) -> None:
    visit = {"e2b_sandbox_id": "same", "e2b_sandbox_port": "8000"}
    async with sandbox(home, "same", "a") as first, sandbox(home, "same", "b") as second, worker(home) as port:
        for runtime in (first, second):
            runtime.let_go.set()
            assert await ask(port, "/envs", **runtime.headers) == 204
            assert runtime.held == 1
            assert await ask(port, **visit) == 403
            assert await ask(port, "/health", e2b_sandbox_id="same") == 403
        assert (first.held, second.held) == (1, 1)
