"""Servers on loopback: one, or three that are a cluster by a list of members."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from soak.server import API_KEY, Server, free_port
from soak.world import World

NODES = ("a", "b", "c")


@asynccontextmanager
async def running_servers(home: Path, world: World, count: int) -> AsyncGenerator[list[Server], None]:
    """So many servers: none, one on the state directory, or a cluster whose nodes have directories below it."""
    servers = _cluster(home, world) if count > 1 else [_single(home, world)] * count
    try:
        for server in servers:
            await asyncio.to_thread(server.start)
        yield servers
    finally:
        for server in servers:
            await asyncio.to_thread(server.stop)


def _single(home: Path, world: World) -> Server:
    return Server(home, _write(world, "one", ""))


def _cluster(home: Path, world: World) -> list[Server]:
    key = world.directory / "peer-key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_urlsafe(32))
    ports = {name: free_port() for name in NODES}
    members = ", ".join(f'{name} = "http://127.0.0.1:{port}"' for name, port in ports.items())
    servers = []
    for name, port in ports.items():
        path = home / name
        path.mkdir(mode=0o711)
        path.chmod(0o711)
        table = f"[cluster]\nnode = {name!r}\npeer_key_file = {str(key)!r}\nmembers = {{{members}}}\n"
        servers.append(Server(path, _write(world, name, table), port, name))
    return servers


def _write(world: World, name: str, more: str) -> Path:
    path = world.directory / f"{name}.toml"
    path.write_text(f"api_key = {API_KEY!r}\n{world.configuration()}{more}")
    return path
