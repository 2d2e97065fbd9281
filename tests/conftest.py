"""What every test gets: a state directory of its own, and a check that it left nothing behind."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster
from hypothesis import settings
from support.leaks import KEYS, adopt_orphans, processes_below, take_footprint
from support.serving import (
    cluster_before_all_tests,
    contract_servers,
    make_sandbox,
    shared_cluster,
    shared_server,
    where,
)

import cove
from cove.local.state import default_home

__all__ = [
    "cluster_before_all_tests",
    "contract_servers",
    "make_sandbox",
    "shared_cluster",
    "shared_server",
    "where",
]  # fixtures for all

# A program that was started in the background ignores these; the tests send them to themselves and to programs.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
# A shared machine may pause for longer than any deadline per example.
settings.register_profile("cove", deadline=None)
# For `make coverage`: which branches are taken must not depend on chance.
settings.register_profile("coverage", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("cove")


def pytest_collection_finish() -> None:
    """What is there before the first test never becomes garbage: looking for leaks need not go through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def cove_home() -> Iterator[Path]:
    """Where the tests' sandboxes live: as root, every directory above it must be open to their users."""
    adopt_orphans()
    path = Path(tempfile.mkdtemp(prefix="cove-tests-", dir="/tmp"))
    path.chmod(0o711)
    KEYS.watch(path)
    before = os.environ.get("COVE_HOME")
    os.environ.setdefault("COVE_PYTHON", str(default_home() / "python"))  # as `cove setup` has made it
    os.environ["COVE_HOME"] = str(path)
    yield path
    shutil.rmtree(path)
    if before is None:
        del os.environ["COVE_HOME"]
    else:
        os.environ["COVE_HOME"] = before


@pytest.fixture
def other_home() -> Iterator[Path]:
    """A second state directory, for programs that the test starts and kills."""
    path = Path(tempfile.mkdtemp(prefix="cove-other-", dir="/tmp"))
    path.chmod(0o711)
    KEYS.watch(path)
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def nothing_leaks(cove_home: Path) -> Iterator[None]:
    """Fails the very test that left a process, a descriptor, a control group or a sandbox directory."""
    before = take_footprint(cove_home)
    yield
    after = take_footprint(cove_home)
    leaked = after.beyond(before)
    if leaked:
        for pid in processes_below(os.getpid()):
            if pid not in before.processes:
                os.kill(pid, 9)
        take_footprint(cove_home)
        pytest.fail(f"this test leaked {leaked}")


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[None]:
    """A blocking call of Cove's own in an event loop raises. Calls on non-blocking descriptors are let through."""
    guard = BlockBuster(scanned_modules=[cove])
    guard.activate()
    yield
    guard.deactivate()
