"""State that code inside could have forged, and processes that do not stand still when they are to."""

import os
from pathlib import Path

import pytest

from cove import AsyncSandbox
from cove.errors import SandboxUnavailable
from cove.linux.cgroup import Group
from cove.model import SandboxStatus
from cove.runtime import freeze
from cove.runtime.sandbox import Sandbox
from cove.runtime.shell_snapshot import MOST_STATE_BYTES

pytestmark = pytest.mark.anyio


STATES = {
    "empty": b"",
    "garbage": os.urandom(100_000),
    "a script without end": b"while :; do :; done\n",
    "a flood": b"x=" + b"y" * (1 << 20),
    "an exit": b"exit 3\n",
    "too large": None,
}


@pytest.mark.parametrize("forged", STATES)
async def test_a_forged_state_of_a_session_costs_that_session_alone(forged: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        session = await sandbox.create_session(timeout=5)
        other = await sandbox.create_session()
        await session.exec("x=1; cd /tmp")
        await other.exec("y=2")
        await sandbox.stop()
        state: Path = sandbox.layers.place.place / "sessions" / "0"
        assert state.stat().st_size > 0
        with open(state, "r+b") as file:
            content = STATES[forged]
            if content is None:
                file.truncate(MOST_STATE_BYTES * 4)
            else:
                file.truncate(0)
                file.write(content)
        await sandbox.start()
        assert (await other.exec("echo $y")).stdout == "2\n"
        assert (await session.exec("echo up")).stdout == "up\n"
        assert sandbox.life.status is SandboxStatus.RUNNING


async def test_what_does_not_stand_still_is_neither_paused_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncSandbox.create() as sandbox:
        assert isinstance(sandbox, Sandbox)
        await sandbox.exec("echo 1 > f")
        with monkeypatch.context() as patch:
            patch.setattr(freeze, "FREEZE_SECONDS", 0.2)
            patch.setattr(Group, "freeze", lambda *_: False)
            patch.setattr(freeze, "_state", lambda *_: "D")
            for call in (sandbox.pause(), sandbox.snapshot(), sandbox.begin_transaction(), sandbox.fork()):
                with pytest.raises(SandboxUnavailable, match="could not be"):
                    await call
        assert sandbox.life.status is SandboxStatus.RUNNING
        assert (await sandbox.exec("cat f; echo 2 > f")).stdout == "1\n"
        snapshot = await sandbox.snapshot()
        assert len(os.listdir(sandbox.layers.place.place / "uppers")) == 1
        await snapshot.delete()
