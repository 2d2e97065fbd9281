"""What hostile sandboxes, hostile and careless clients, and bad luck do to a server."""

import asyncio
import random
from pathlib import Path

import pytest
from servers import serving

from cove import AsyncSandbox
from cove.server.worker import limits_for

pytestmark = pytest.mark.anyio


async def test_a_sandbox_that_stops_all_the_time_answers_every_call_once(other_home: Path) -> None:
    """Calls come about when it stops: each is answered by the runtime that stops or by the next, and runs once."""
    moments = random.Random(7)

    async def use(sandbox: AsyncSandbox) -> None:
        for number in range(25):
            (await sandbox.exec(f"echo {number} >> calls")).check()
            await asyncio.sleep(moments.uniform(0.03, 0.09))
        assert await sandbox.files.read_text("calls") == "".join(f"{number}\n" for number in range(25))

    with serving(other_home) as server:
        made = [await server.create(idle_timeout=0.05) for _ in range(3)]
        await asyncio.gather(*map(use, made))
        for sandbox in made:
            await sandbox.destroy()


def test_a_worker_takes_no_more_connections_than_it_has_descriptors_for() -> None:
    assert limits_for(256).connections == 51
    assert limits_for(1 << 20).connections == 4096
