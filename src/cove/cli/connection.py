"""Connect a subcommand to its server and its sandbox."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from cove.api import AsyncSandbox
from cove.cli.descriptors import say
from cove.cli.options import Shape
from cove.errors import CoveError, SandboxNotFound, SandboxUnavailable, Unreachable, ValidationFailed
from cove.local.state import LOCK_FILE, SERVER_DIRECTORY, URL_FILE, default_home
from cove.model import NetworkPolicy, SandboxSpec

DEFAULT_URL: Final = "http://127.0.0.1:8787"


UrlOption = Annotated[
    str | None,
    typer.Option(
        envvar="COVE_URL", metavar="URL", help="The server, or several of a cluster; yours on this machine by default."
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        envvar="COVE_API_KEY", metavar="KEY", help="The server's key; that of a server of yours here is found."
    ),
]
InOption = Annotated[
    str | None, typer.Option("--in", metavar="ID", help="A sandbox of a server, instead of a throw-away one.")
]
PlaceUrlOption = Annotated[
    str | None,
    typer.Option(envvar="COVE_URL", metavar="URL", help="The server that has the sandbox; none by default."),
]


@dataclass(frozen=True, slots=True)
class Server:
    """A server by its address, and the key to show it."""

    url: str
    api_key: str | None

    @classmethod
    def named(cls, url: str | None, api_key: str | None) -> "Server":
        """Connect to the server of the options, or to that of this machine."""
        return cls(url or _local_url() or DEFAULT_URL, api_key)

    @asynccontextmanager
    async def sandbox(self, id: str) -> AsyncIterator[AsyncSandbox]:
        """A sandbox that is there; it lives on afterwards."""
        await self.check()
        try:
            sandbox = await AsyncSandbox.connect(id, url=self.url, api_key=self.api_key)
        except SandboxNotFound:
            await self._name_owner(id)
            raise
        try:
            yield sandbox
        finally:
            await sandbox.detach()

    async def _name_owner(self, id: str) -> None:
        """Tell an admin whose a sandbox is: ids are a tenant's own, and lists show those of all."""
        found = await AsyncSandbox.list(url=self.url, api_key=self.api_key)
        owners = sorted(each.owner for each in found if each.id == id and each.owner is not None)
        if owners:
            advice = f"COVE_TENANT={owners[0]} acts for {' or '.join(owners)}, who has one"
            raise SandboxNotFound(f"there is no sandbox {id} of yours: {advice}", id=id)

    async def check(self) -> None:
        """Fail fast: calls retry while a server is restarted; a person wants to know at once if there is none."""
        from cove.client.servers import Servers  # only who has a server waits for it

        servers = Servers(self.url, None)
        pools = servers.make_pools()
        try:
            _, (_, writer) = await servers.open_streams()
        except Unreachable:
            raise SandboxUnavailable(
                f"no server answers at {self.url}: start one with `cove serve`, or name one with --url or COVE_URL"
            ) from None
        finally:
            for pool in pools:
                await pool.aclose()
        writer.transport.abort()


def _local_url() -> str | None:
    """Return where the server of this state directory listens, if one runs."""
    from cove.linux.file_lock import is_locked  # only who names no server waits for it

    directory = default_home() / SERVER_DIRECTORY
    try:
        return (directory / URL_FILE).read_text().strip() if is_locked(directory / LOCK_FILE) else None
    except OSError:  # none was ever started, or it belongs to another user
        return None


@dataclass(frozen=True, slots=True)
class Workplace:
    """The sandbox that a command runs in: one that is there, or a new one that is thrown away."""

    server: Server | None
    id: str | None
    spec: SandboxSpec

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncSandbox]:
        """The sandbox, as long as it is needed."""
        if self.id is not None and self.server is not None:
            async with self.server.sandbox(self.id) as sandbox:
                yield sandbox
            return
        if self.server is not None:
            await self.server.check()
        url, api_key = (self.server.url, self.server.api_key) if self.server is not None else (None, None)
        async with AsyncSandbox.create(spec=self.spec, url=url, api_key=api_key) as sandbox:
            if self.spec != SandboxSpec():
                for warning in (await sandbox.info()).warnings:
                    say(warning)
            yield sandbox

    @property
    def has_policy(self) -> bool:
        """Return whether a new sandbox can reach what options name, and nothing else."""
        return isinstance(self.spec.network, NetworkPolicy)

    async def knows(self, id: str) -> bool:
        """Return whether the server, or one of this machine, has that sandbox. Without --url no server is asked."""
        from cove.server.sandboxes.directory import Directory  # only who mistypes waits for it

        try:
            if self.server is None:
                return Directory(default_home()).find(id) is not None
            async with self.server.sandbox(id):
                return True
        except CoveError:
            return False


def choose_workplace(id: str | None, url: str | None, api_key: str | None, shape: Shape) -> Workplace:
    """Return the one that the options ask for. What a sandbox is, is decided when it is made."""
    if id is not None:
        if shape.is_given:
            raise ValidationFailed(
                "--isolation, --network, --mount and limits make a new sandbox: they do not go with --in"
            )
        return Workplace(Server.named(url, api_key), id, SandboxSpec())
    server = Server(url, api_key) if url else None
    return Workplace(server, None, shape.spec(on_server=server is not None))
