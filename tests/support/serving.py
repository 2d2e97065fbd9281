"""One server for all tests that only use it, and the three ways to a sandbox, as fixtures."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypedDict

import pytest

from cove import AsyncSandbox
from support.servers import Server, left_behind, serving


class Where(TypedDict, total=False):
    """Where sandboxes live, as arguments of `create`, `connect` and `list`: here, or on a server."""

    url: str
    api_key: str


MakeSandbox = Callable[..., AbstractAsyncContextManager[AsyncSandbox]]


@pytest.fixture(scope="session")
def shared_server(cove_home: Path) -> Iterator[Server]:
    """A server that no test ends or disturbs."""
    home = Path(tempfile.mkdtemp(prefix="cove-server-", dir="/tmp"))
    home.chmod(0o711)
    with serving(home, "--on-stop", "destroy") as server:
        yield server
    shutil.rmtree(home)


@pytest.fixture(params=["embedded", "runtime", "gateway"])
def make_sandbox(request: pytest.FixtureRequest, shared_server: Server) -> Iterator[MakeSandbox]:
    """Makes sandboxes in this program, or on a server; those are used through its gateway or at their own socket."""
    yield partial(_WAYS[request.param], shared_server)
    assert left_behind(shared_server.home) == []


@pytest.fixture(params=["embedded", "gateway"])
def where(request: pytest.FixtureRequest, shared_server: Server) -> Where:
    """How `create`, `connect` and `list` are told where sandboxes live."""
    return {} if request.param == "embedded" else address(shared_server)


def address(server: Server) -> Where:
    """The server as an argument."""
    return {"url": server.url, "api_key": server.key}


@asynccontextmanager
async def _embedded(_: Server, **options: object) -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox.create(**options) as sandbox:  # type: ignore[arg-type]  # as the test says
        yield sandbox


@asynccontextmanager
async def _gateway(server: Server, **options: object) -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox.create(**address(server), **options) as sandbox:  # type: ignore[arg-type]  # as the test says
        yield sandbox


@asynccontextmanager
async def _runtime(server: Server, **options: object) -> AsyncIterator[AsyncSandbox]:
    """A runtime serves one sandbox and neither makes nor destroys any."""
    async with _gateway(server, **options) as made:
        socket = server.directory.socket(await server.record(made.id))
        async with AsyncSandbox.connect(made.id, url=f"unix://{socket}") as sandbox:
            yield sandbox


_WAYS: dict[str, MakeSandbox] = {
    "embedded": _embedded,
    "runtime": _runtime,
    "gateway": _gateway,
}
