"""Who makes sandboxes: this program itself, or a server."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cove.model import SandboxInfo, SandboxSpec

if TYPE_CHECKING:
    from cove.api.sandbox import AsyncSandbox


class Provider(Protocol):
    """Makes, finds and lists sandboxes."""

    async def create(self, id: str | None, spec: SandboxSpec, *, exist_ok: bool = False) -> "AsyncSandbox":
        """A new sandbox; with `exist_ok`, the one that has the id already."""

    async def connect(self, id: str) -> "AsyncSandbox":
        """The sandbox with that id."""

    async def list(self) -> list[SandboxInfo]:
        """All of them."""


_embedded: Callable[[], Provider] | None = None
_remote: Callable[[str, str | None], Provider] | None = None


def register_embedded(make: Callable[[], Provider]) -> None:
    """Called once, when `cove` is imported: the layer that implements sandboxes lies above this one."""
    global _embedded
    _embedded = make


def register_remote(make: Callable[[str, str | None], Provider]) -> None:
    """Called once, when `cove` is imported, with what makes the provider for a server."""
    global _remote
    _remote = make


def provider_for(url: str | None, api_key: str | None) -> Provider:
    """The server that `url` or COVE_URL names, otherwise this program."""
    assert _embedded is not None
    assert _remote is not None
    chosen = url or os.environ.get("COVE_URL")
    return _remote(chosen, api_key) if chosen else _embedded()
