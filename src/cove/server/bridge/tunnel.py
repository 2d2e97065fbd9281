"""Tunnels of the bridge protocol: a preview URL for a port inside."""

import asyncio
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from cove import api
from cove.errors import CoveError, PortAlreadyExposed
from cove.http import Request, Response
from cove.model import ExposedPort
from cove.server.bridge.protocol import MOST_BODY_BYTES, answer_json, decode_object, failed, invalid, timestamp

_PORT = re.compile(r"[0-9]{4,5}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RESERVED: Final = 3000


class BridgeTunnels:
    """The tunnels of one sandbox; `_created` says since when there is one. They open and close one at a time."""

    def __init__(self, sandbox: api.AsyncSandbox) -> None:
        self._sandbox = sandbox
        self._created: dict[int, str] = {}
        self._changing = asyncio.Lock()

    async def open(self, request: Request, text: str) -> Response:
        """`POST tunnel/{port}`: the same one each time."""
        port = _check_port(text)
        body = await request.read(MOST_BODY_BYTES)
        name = _read_name(decode_object(body)) if body else None
        async with self._changing:
            try:
                return answer_json(self._describe(await self._expose(port, name)))
            except CoveError as error:
                raise failed("tunnel_error", error.message) from None

    async def close(self, text: str) -> Response:
        """`DELETE tunnel/{port}`."""
        port = _check_port(text)
        async with self._changing:
            try:
                await self._sandbox.ports.unexpose(port)
            except CoveError as error:
                raise failed("tunnel_error", error.message) from None
            self._created.pop(port, None)
        return Response(204)

    def _describe(self, exposed: ExposedPort) -> dict[str, object]:
        tunnel: dict[str, object] = {
            "id": exposed.token,
            "port": exposed.port,
            "url": exposed.url,
            "path_url": exposed.path_url,
            "hostname": urlsplit(exposed.url).hostname,
            "createdAt": self._created.setdefault(exposed.port, timestamp()),
        }
        return tunnel if exposed.name is None else {**tunnel, "name": exposed.name}

    async def _expose(self, port: int, name: str | None) -> ExposedPort:
        try:
            return await self._sandbox.ports.expose(port, name)
        except PortAlreadyExposed as error:
            for each in await self._sandbox.ports.list():
                if each.port == port:
                    return each
            raise error  # the native API has withdrawn it meanwhile


def _check_port(text: str) -> int:
    if not _PORT.fullmatch(text) or not 1024 <= int(text) <= 65535 or int(text) == _RESERVED:
        raise invalid("Invalid port")
    return int(text)


def _read_name(fields: Mapping[str, object]) -> str | None:
    if "name" not in fields:
        return None
    name = fields["name"]
    if not isinstance(name, str):
        raise invalid("name must be a string")
    if not _NAME.fullmatch(name):
        raise invalid("name must be a valid DNS label: 1-63 lower-case letters, digits and inner hyphens")
    return name
