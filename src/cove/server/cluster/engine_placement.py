"""Placement by an engine: asks the agent beside this server, over its unix socket."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cove.errors import CoveError, NoCapacity, PlacementUnavailable, ValidationFailed
from cove.model.cluster import Claim, Members
from cove.server.cluster.agent_protocol import (
    MOST_BYTES,
    Answer,
    Call,
    ClaimName,
    FindName,
    FreeName,
    GrantRoom,
    ReleaseRoom,
    agent_socket,
)
from cove.server.cluster.placement import Placement

_CALL_SECONDS = 10.0
_MARGIN = 5.0
_ERRORS: dict[str, type[CoveError]] = {
    error.code: error for error in (NoCapacity, PlacementUnavailable, ValidationFailed)
}


@dataclass(frozen=True, slots=True)
class EnginePlacement(Placement):
    """The seam to the engine, for the workers of one server; `known` gives the members that were written last."""

    server: Path
    known: Callable[[], Members]
    grant_timeout: float = 30.0

    def members(self) -> Members:
        return self.known()

    async def grant(self, slots: int) -> str:
        call = GrantRoom(slots=slots, timeout=self.grant_timeout)
        answer = await call_agent(self.server, call, self.grant_timeout + _MARGIN)
        if answer.node is None:
            raise PlacementUnavailable("the agent of the cluster granted room on no node")
        return answer.node

    async def release(self, node: str, slots: int) -> None:
        await call_agent(self.server, ReleaseRoom(node=node, slots=slots))

    async def claim(self, name: str, node: str, epoch: int | None = None) -> Claim:
        answer = await call_agent(self.server, ClaimName(name=name, node=node, epoch=epoch))
        if answer.claim is None:
            raise PlacementUnavailable(f"the agent of the cluster gave no claim of {name}")
        return answer.claim

    async def find(self, name: str) -> Claim | None:
        return (await call_agent(self.server, FindName(name=name))).claim

    async def unclaim(self, claim: Claim) -> None:
        await call_agent(self.server, FreeName(claim=claim))


async def call_agent(server: Path, call: Call, timeout: float = _CALL_SECONDS) -> Answer:
    """Ask the agent; PlacementUnavailable when there is none, or no answer in time, or what it answers as an error."""
    try:
        async with asyncio.timeout(timeout):
            answer = await _exchange(agent_socket(server), call)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, msgspec.DecodeError):
        raise PlacementUnavailable(
            "the agent of the cluster does not answer: what runs goes on, room and names wait for it. "
            "`cove cluster status` tells more"
        ) from None
    if answer.error is not None:
        raise _ERRORS.get(answer.error, PlacementUnavailable)(answer.message)
    return answer


async def _exchange(socket: Path, call: Call) -> Answer:
    reader, writer = await asyncio.open_unix_connection(socket, limit=MOST_BYTES)
    try:
        writer.write(msgspec.json.encode(call) + b"\n")
        await writer.drain()
        return msgspec.json.decode(await reader.readuntil(b"\n"), type=Answer)
    finally:
        writer.close()
