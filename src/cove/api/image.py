"""Interface of an image: layers and configuration that a sandbox can have as its system."""

import builtins
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from os import PathLike
from typing import Literal

from cove.api.named import Named
from cove.api.provider import provider_for
from cove.model import (
    BuildEvent,
    BuildSpec,
    ImageInfo,
    Limits,
    Network,
    NetworkPolicy,
    SandboxSpec,
    TransferProgress,
    make_spec,
)


class AsyncImage(Named, ABC):
    """An image in this user's state directory, or in that of a server.

    `AsyncSandbox.create(image=name)` makes a sandbox on it, in the same place.
    """

    name: str

    @classmethod
    async def load(
        cls,
        path: str | PathLike[str],
        *,
        name: str | None = None,
        progress: "Callable[[TransferProgress], object] | None" = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "AsyncImage":
        """Load an archive of an image, or a root file system; an image with the same name is replaced.

        Archives are those of `docker save` and of OCI tools, plain or compressed by gzip or zstd. A root file system
        is a tar archive or a directory, and needs a `name`. The path is yours: a server is sent what is there. Raises
        ImageInvalid.
        """
        return await provider_for(url, api_key).load_image(os.fspath(path), name=name, progress=progress)

    @classmethod
    async def pull(
        cls,
        reference: str,
        *,
        progress: "Callable[[TransferProgress], object] | None" = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "AsyncImage":
        """Pull `HOST/NAME:TAG` from a registry, with the credentials of `~/.docker/config.json`.

        What an interrupted pull has fetched is used by the next. A server pulls from registries that its configuration
        allows, with credentials of its own. Raises ImageNotFound, ImageInvalid, Unauthorized, PermissionDenied.
        """
        return await provider_for(url, api_key).pull_image(reference, progress)

    @classmethod
    async def build(
        cls,
        directory: str | None = None,
        *,
        name: str | None = None,
        dockerfile: str = "Dockerfile",
        build_args: Mapping[str, str] | None = None,
        target: str | None = None,
        preset: str | None = None,
        base: str | None = None,
        network: "Network | NetworkPolicy | Literal['none', 'internet', 'host'] | None" = None,
        limits: Limits | None = None,
        timeout: float | None = None,
        cache: bool = True,
        progress: "Callable[[BuildEvent], object] | None" = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "AsyncImage":
        """Build an image from a directory with a Dockerfile; one with the same name is replaced.

        With `preset` it is one of Cove's own recipes, `python`, `node` or `data`, on the image `base`, which is
        `debian:bookworm` unless you say another; its network is then the preset `packages`, otherwise none.

        Each RUN has a sandbox of its own on the image so far, which reaches what `network` allows and has `limits`.
        Steps that were done before are taken from the build cache, unless `cache` is false. `target` names the stage
        to build, the last by default. `timeout` is for the whole build. `progress` is called with each step, and with
        what it prints. Raises BuildFailed with the line, the exit code and the last output of a step that failed,
        ValidationFailed for what cannot be read, ImageNotFound for an image in FROM.
        """
        spec = BuildSpec(
            name=name,
            dockerfile=dockerfile,
            build_args=dict(build_args or {}),
            target=target,
            preset=preset,
            base=base,
            network=None if network is None else make_spec(SandboxSpec(), {"network": network}).network,
            limits=limits or Limits(),
            timeout=timeout,
            cache=cache,
        )
        return await provider_for(url, api_key).build_image(directory, spec, progress)

    @classmethod
    async def bootstrap(
        cls,
        distribution: str = "debian",
        *,
        suite: str = "bookworm",
        include: Sequence[str] = (),
        name: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> "AsyncImage":
        """Make a small image of Debian by `mmdebstrap` on this machine, from the sources that its own apt has.

        `include` names more packages. It is called `debian:bookworm`, by its suite, unless you give it a name. For a
        server it is made here, and sent.
        """
        return await provider_for(url, api_key).bootstrap_image(
            distribution, suite=suite, include=include, name=name or f"{distribution}:{suite}"
        )

    @classmethod
    async def get(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> "AsyncImage":
        """The image with that name; raises ImageNotFound."""
        return await provider_for(url, api_key).get_image(name)

    @classmethod
    async def list(cls, *, url: str | None = None, api_key: str | None = None) -> "builtins.list[ImageInfo]":
        """All images, by their names."""
        return await provider_for(url, api_key).list_images()

    @classmethod
    async def prune(
        cls, *, all: bool = False, url: str | None = None, api_key: str | None = None
    ) -> "builtins.list[str]":
        """Remove what has no name: the build cache, and what interrupted pulls have left.

        With `all` images that no sandbox and no snapshot stands on are forgotten too; returns their names.
        """
        return await provider_for(url, api_key).prune_images(all=all)

    @abstractmethod
    async def info(self) -> ImageInfo:
        """Describe the image."""

    @abstractmethod
    async def save(
        self, path: str | PathLike[str], *, progress: "Callable[[TransferProgress], object] | None" = None
    ) -> None:
        """Write it to a path of yours as an OCI archive, which `load` and other tools take.

        The same image gives the same bytes. Set-id bits and attributes are not in it; owners are, where they are real.
        """

    @abstractmethod
    def read_archive(self) -> AsyncGenerator[bytes, None]:
        """Read what `save` writes, in pieces."""

    @abstractmethod
    async def delete(self, *, force: bool = False) -> None:
        """Forget the image. ImageInUse while a sandbox, running or stopped, or a snapshot stands on it.

        With `force` only its name goes then: layers stay as long as anything stands on them.
        """
