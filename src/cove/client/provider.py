"""Make, find and list the sandboxes of a server; find the API key that it is shown."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from cove.api import AsyncImage, AsyncSnapshot
from cove.api.provider import Provider
from cove.client.calls import Calls
from cove.client.connection_pool import Address
from cove.client.handle import Handle
from cove.client.image import Image, made_image, opened_source
from cove.client.image_build import opened_context
from cove.client.sandbox import Sandbox
from cove.client.servers import parse_addresses
from cove.client.snapshot_transfer import read_export
from cove.client.transport import Transport
from cove.client.volume import Volume
from cove.core.identifier import check_sandbox_id
from cove.errors import Unauthorized, ValidationFailed
from cove.local.bootstrap import bootstrapped
from cove.local.state import default_home
from cove.model import BuildEvent, BuildSpec, SandboxSpec, TransferProgress
from cove.model.mount import check_volume_name
from cove.wire import operations
from cove.wire.target import Target

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_transports: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str | None], Transport]]"
_transports = WeakKeyDictionary()


class RemoteProvider(Handle, Provider, target=Target.SERVER):
    """Makes, finds and lists sandboxes over HTTP."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._api_key = find_key(url, api_key)

    @property
    def _calls(self) -> Calls:  # type: ignore[override]  # those of the event loop in which it is used
        return Calls(_transport(self._url, self._api_key))

    async def count_room(self, spec: SandboxSpec) -> None:
        """Return None: the server says when it is full."""

    async def connect(self, id: str) -> Sandbox:
        """Open a sandbox that is there."""
        calls = self._calls.of_sandbox(check_sandbox_id(id), was_seen=False)
        return Sandbox.of(self._calls, await calls.call(operations.INFO))

    async def load_snapshot(
        self, source: str, progress: Callable[[TransferProgress], object] | None = None
    ) -> AsyncSnapshot:
        """Send an export of this program's."""
        async with aclosing(read_export(source, progress)) as chunks:
            return await self.load_archive(chunks)

    async def load_image(
        self, path: str, *, name: str | None = None, progress: Callable[[TransferProgress], object] | None = None
    ) -> AsyncImage:
        """Send what is at a path of this program's."""
        async with opened_source(path, progress) as chunks:
            return await made_image(self._calls, self.load_image_events(chunks, name=name), progress)

    async def pull_image(
        self, reference: str, progress: Callable[[TransferProgress], object] | None = None
    ) -> AsyncImage:
        """Let the server pull an image."""
        return await made_image(self._calls, self.pull_image_events(reference), progress)

    async def build_image(
        self, directory: str | None, spec: BuildSpec, progress: Callable[[BuildEvent], object] | None = None
    ) -> AsyncImage:
        """Send a directory of this program's, and let the server build it."""
        fields = {name: getattr(spec, name) for name in BuildSpec.__struct_fields__ if name != "shown"}
        async with opened_context(directory, spec) as (chunks, where):
            events = self.build_image_events(chunks, **{**fields, **where})
            return await made_image(self._calls, events, progress)

    async def bootstrap_image(self, distribution: str, *, suite: str, include: Sequence[str], name: str) -> AsyncImage:
        """Make an image of a distribution on this machine."""
        return await bootstrapped(distribution, suite, include, partial(self.load_image, name=name))

    async def get_image(self, name: str) -> AsyncImage:
        """Find an image."""
        calls = self._calls
        return Image.of(calls, await calls.call(operations.GET_IMAGE, name))

    async def get_volume(self, name: str) -> Volume:
        """Find a volume."""
        calls = self._calls
        return Volume.of(calls, await calls.call(operations.GET_VOLUME, check_volume_name(name)))


def _transport(url: str, api_key: str | None) -> Transport:
    """Programs with many sandboxes on one server share its connections."""
    of_loop = _transports.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault((url, api_key), Transport(url, api_key, partial(find_key, url, api_key)))


def find_key(url: str, api_key: str | None) -> str | None:
    """The given one, COVE_API_KEY, or that of a running server of this user: that is shown to this machine only.

    A server leaves a key that it was given in `server/key`, and one that it made in `key`.
    """
    if not isinstance(url, str):
        raise ValidationFailed(f"url must be a string, not {type(url).__name__}")
    if chosen := api_key or os.environ.get("COVE_API_KEY"):
        return _check(chosen)
    if not all(_is_here(address) for address in parse_addresses(url)):
        return None
    home = default_home()
    return _read(home / "server" / "key") or _read(home / "key")


def _is_here(address: Address) -> bool:
    """Return whether it is a port of this machine; whoever may open a unix socket needs no key."""
    return address.socket_path is None and (address.host in _LOOPBACK or address.host.endswith(".localhost"))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise Unauthorized(
            f"the server's key in {path} belongs to another user: give api_key= or COVE_API_KEY"
        ) from None


def _check(key: str) -> str:
    """The key, without the newline that a file ends with."""
    if not isinstance(key, str):
        raise ValidationFailed(f"api_key must be a string, not {type(key).__name__}")
    stripped = key.strip()
    if not stripped.isascii() or not stripped.isprintable():
        raise ValidationFailed("the key for the server has characters that no key has")
    return stripped
