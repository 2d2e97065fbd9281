"""One process between its launcher and init, both played by a test."""

import asyncio
import os
import socket
from dataclasses import dataclass, field

from cove.core.command import build_invocation
from cove.linux.packets import socket_pair
from cove.local.threads import close_in_thread
from cove.model import Outcome
from cove.runtime.launcher import Launcher, LauncherPool
from cove.runtime.link import Link
from cove.runtime.supervised import Supervised
from cove.tasks import Tasks
from support.fake_agent import Peer


@dataclass
class Stage:
    """The runtime's parts, and the other ends of their sockets."""

    lost: list[str] = field(default_factory=list)
    output: list[bytes] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)

    async def __aenter__(self) -> "Stage":
        control, agent = socket_pair()
        ours, theirs = socket_pair()
        self.sockets += [agent, theirs]
        agent.settimeout(30)
        theirs.settimeout(30)
        self.agent, self.peer = Peer(agent), Peer(theirs)
        self.link = Link(control, self.lost.append)
        self.background = Tasks(lambda error: self.lost.append(repr(error)))
        self.pool = LauncherPool(self.link, None, self.background, self.lost.append)
        self.launcher = Launcher(ours, None, self.lost.append)
        self.peer.send(b"ready")
        await self.launcher.host_pid
        invocation = build_invocation("true", cwd="/", env={})
        self.process = Supervised(
            lambda stream, data: self.output.append(data),
            pool=self.pool,
            background=self.background,
            on_fault=self.lost.append,
        )
        self.process.start(self.launcher, invocation)
        _, self.descriptors = self.peer.receive()
        self.peer.send(b"started", b"5")
        await self.process.started
        return self

    async def __aexit__(self, *_: object) -> None:
        self.process.lose(Outcome.LOST)
        await self.background.aclose()
        self.pool.close()
        self.launcher.close()
        self.link.close()
        await close_in_thread([])
        for sock in self.sockets:
            sock.close()
        for descriptor in self.descriptors:
            os.close(descriptor)

    async def end_request(self) -> bytes:
        """The tag of the request to end the launcher."""
        await turns()
        fields, _ = self.agent.receive()
        assert fields[0] == b"end"
        return fields[1]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
