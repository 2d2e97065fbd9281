"""What whoever wants a sandbox is told when the process that starts them does not do it."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cove.errors import SandboxUnavailable
from cove.model import SandboxSpec
from cove.server.sandboxes import starter
from cove.server.sandboxes.starter import Starter

pytestmark = pytest.mark.anyio


@pytest.fixture
def zygote(other_home: Path) -> Iterator[socket.socket]:
    """Listens where the zygote would, and does nothing else."""
    path = Starter(other_home).directory.zygote
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        yield listener


async def test_a_zygote_that_hangs_is_not_waited_for_without_end(
    other_home: Path, zygote: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "_ANSWER_SECONDS", 0.1)
    with pytest.raises(SandboxUnavailable, match="does not answer: try again later"):
        await asyncio.wait_for(Starter(other_home).create(None, SandboxSpec()), 10)
    connection, _ = zygote.accept()
    with connection:
        asked = connection.makefile("rb").read()  # to its end: whoever starts late sees that nobody waits
    assert b'"create"' in asked


async def test_a_zygote_that_is_not_there_is_said_to_be_so(other_home: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="No such file or directory"):
        await Starter(other_home).create(None, SandboxSpec())
