"""Interface of a provider of sandboxes: embedded in this program, or a server."""

import os
from importlib import import_module
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


def provider_for(url: str | None, api_key: str | None) -> Provider:
    """Return the server that `url` or COVE_URL names, otherwise this program.

    Both lie in layers above this one, and most of the time that importing Cove takes is theirs: each is imported by
    name when it is first used.
    """
    provider: Provider
    if chosen := url or os.environ.get("COVE_URL"):
        provider = import_module("cove.client.provider").RemoteProvider(chosen, api_key)
    else:
        provider = import_module("cove.runtime.provider").EMBEDDED
    return provider
