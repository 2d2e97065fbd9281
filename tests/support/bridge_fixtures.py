"""What the tests of the bridge protocol have in common: a server for each module, a sandbox for each test."""

from collections.abc import Iterator

import pytest

from support.bridge_client import BridgeClient, bridge_server, fresh_sandbox
from support.servers import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with bridge_server() as server:
        yield server


@pytest.fixture
def bridge(server: Server) -> Iterator[BridgeClient]:
    with fresh_sandbox(server) as client:
        yield client
