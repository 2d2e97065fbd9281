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
from support.clusters import NAMES, Cluster, cluster_of_three
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


@pytest.fixture(scope="session")
def shared_cluster(cove_home: Path) -> Iterator[Cluster]:
    """A cluster that no test ends or disturbs."""
    with cluster_of_three() as cluster:
        yield cluster


@pytest.fixture(scope="session", autouse=True)
def cluster_before_all_tests(request: pytest.FixtureRequest) -> None:
    """Start the cluster where a test wants it, before any test: what one starts, it has to end."""
    wanted = (item for item in request.session.items if item.get_closest_marker("cluster"))
    if any("make_sandbox" in getattr(item, "fixturenames", ()) for item in wanted):
        request.getfixturevalue("shared_cluster")


@pytest.fixture
def contract_servers(request: pytest.FixtureRequest, shared_server: Server) -> list[Server]:
    """The servers that `make_sandbox` uses: of a cluster one node, which has what all sandboxes of a test need."""
    if request.node.get_closest_marker("cluster") is None:
        return [shared_server]
    cluster: Cluster = request.getfixturevalue("shared_cluster")
    return [shared_server, cluster["a"]]


@pytest.fixture(
    params=[
        "embedded",
        pytest.param("runtime", marks=pytest.mark.pure),
        "gateway",
        pytest.param("node", marks=pytest.mark.cluster),
    ]
)
def make_sandbox(request: pytest.FixtureRequest, shared_server: Server) -> Iterator[MakeSandbox]:
    """Makes sandboxes in this program, or on a server; those are used through its gateway or at their own socket.

    With the mark `cluster` also on one node of a cluster, and used through another.
    """
    if request.param == "node":
        cluster: Cluster = request.getfixturevalue("shared_cluster")
        yield partial(_node, cluster)
        assert [left for name in NAMES for left in left_behind(cluster[name].home)] == []
        return
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


@asynccontextmanager
async def _node(cluster: Cluster, **options: object) -> AsyncIterator[AsyncSandbox]:
    """A sandbox that is used through a node which does not have it."""
    async with _gateway(cluster["a"], **options) as made:
        node = (await made.info()).node
        assert node is not None
        async with AsyncSandbox.connect(made.id, **address(cluster.another(node))) as sandbox:
            yield sandbox


_WAYS: dict[str, MakeSandbox] = {
    "embedded": _embedded,
    "runtime": _runtime,
    "gateway": _gateway,
}
