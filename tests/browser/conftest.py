"""A server for all tests of a module that drive the console."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    home = Path(tempfile.mkdtemp(prefix="cove-browser-", dir="/tmp"))
    home.chmod(0o711)
    with serving(home) as running:
        yield running
    shutil.rmtree(home)
