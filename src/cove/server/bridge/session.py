"""Sessions of the bridge protocol: made when they are first named."""

import asyncio
from contextlib import suppress

import msgspec

from cove.core.identifier import new_identifier
from cove.errors import CoveError, SessionNotFound, SessionTerminated, TerminalNotFound
from cove.http import Request, Response
from cove.runtime.sandbox import Sandbox
from cove.runtime.session import Session
from cove.server.bridge.protocol import (
    MOST_BODY_BYTES,
    WORKSPACE,
    answer_json,
    check_session_id,
    failed,
    invalid,
    timestamp,
)


class _Wanted(msgspec.Struct):
    id: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] | None = None


class BridgeSessions:
    """The sessions of one sandbox by the ids that clients choose. Two who name a new one at once get the same."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._creating = asyncio.Lock()

    async def obtain(self, id: str) -> Session:
        """Return the session with that id; a new one in the workspace if there is none, or if its shell has ended."""
        async with self._creating:
            try:
                session = await self._sandbox.get_session(id)
                await session.cwd()
                return session
            except (SessionNotFound, SessionTerminated):
                return await self._sandbox.create_session(id=id, cwd=WORKSPACE)

    async def create(self, request: Request) -> Response:
        """`POST session`: a body that cannot be understood asks for nothing in particular."""
        wanted = _decode(await request.read(MOST_BODY_BYTES))
        id = check_session_id(wanted.id) if wanted.id is not None else f"session-{new_identifier()}"
        try:
            async with self._creating:
                await self._sandbox.create_session(id=id, cwd=wanted.cwd or WORKSPACE, env=wanted.env)
        except CoveError as error:
            raise failed("session_error", error.message) from None
        return answer_json({"id": id})

    async def delete(self, id: str) -> Response:
        """`DELETE session/{id}`: its terminal goes with it."""
        check_session_id(id)
        try:
            await self._sandbox.delete_session(id)
        except CoveError as error:
            raise failed("session_error", error.message) from None
        with suppress(TerminalNotFound):  # nobody has opened one
            await (await self._sandbox.get_terminal(id)).destroy()
        return answer_json({"success": True, "sessionId": id, "timestamp": timestamp()})


def chosen_session(request: Request, query_value: str = "") -> str | None:
    """Return the id of the session that a request names; the header wins."""
    header = request.headers.get(b"session-id", b"").decode("latin-1")
    chosen = header or query_value
    return check_session_id(chosen) if chosen else None


def _decode(body: bytes) -> _Wanted:
    try:
        value = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Wanted()
    try:
        return msgspec.convert(value if isinstance(value, dict) else {}, _Wanted)
    except msgspec.ValidationError as error:
        raise invalid(f"Invalid session: {error}") from None
