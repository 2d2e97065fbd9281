from collections.abc import Iterator

import pytest
from support.clusters import NAMES, Cluster, cluster_of_three

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_three() as found:
        yield found


async def test_a_sandbox_is_used_through_every_node(cluster: Cluster) -> None:
    made = await cluster["a"].create()
    node = cluster.node_of(made.id)
    for name in NAMES:
        sandbox = await cluster[name].connect(made.id)
        result = await sandbox.exec("echo hello")
        assert result.stdout == "hello\n"
        assert (await sandbox.info()).node == node
    await made.destroy()
