"""Who makes sandboxes: this program itself, or a server."""

import os
from typing import TYPE_CHECKING, Protocol

from cove.errors import SandboxUnavailable
from cove.model import SandboxInfo, SandboxSpec

if TYPE_CHECKING:
    from cove.api.sandbox import AsyncSandbox


class Provider(Protocol):
    """Makes, finds and lists sandboxes."""

    async def create(self, id: str | None, spec: SandboxSpec) -> "AsyncSandbox":
        """A new sandbox."""

    async def connect(self, id: str) -> "AsyncSandbox":
        """The sandbox with that id."""

    async def list(self) -> list[SandboxInfo]:
        """All of them."""


_embedded: Provider | None = None


def register_embedded(provider: Provider) -> None:
    """Called once, when `cove` is imported: the layer that implements sandboxes lies above this one."""
    global _embedded
    _embedded = provider


def provider_for(url: str | None, api_key: str | None) -> Provider:
    """The server that `url` or COVE_URL names, otherwise this program."""
    if url or os.environ.get("COVE_URL"):
        raise SandboxUnavailable("this version of Cove has no remote client yet: leave out url= and COVE_URL")
    assert _embedded is not None
    return _embedded
