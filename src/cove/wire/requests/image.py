"""Requests about images."""

from cove.model import Limits, Network, NetworkPolicy
from cove.wire.requests.request import Request, Seconds


class LoadImage(Request, frozen=True):
    """The name that it has afterwards; the archive may say one."""

    name: str | None = None


class CommitSandbox(Request, frozen=True):
    """The name that the image has."""

    name: str


class PullImage(Request, frozen=True):
    """The image in a registry: HOST/NAME:TAG."""

    reference: str


class BuildImage(Request, frozen=True):
    """The options of a build; the body is the tar archive of a directory, and `dockerfile` a path in it.

    Objects are JSON. `outside` is where the caller has the Dockerfile, if it is no part of the directory: errors name
    that, and the archive has it under the name of `dockerfile`.
    """

    name: str | None = None
    dockerfile: str = "Dockerfile"
    outside: str | None = None
    build_args: dict[str, str] | None = None
    target: str | None = None
    preset: str | None = None
    base: str | None = None
    network: Network | NetworkPolicy | None = None
    limits: Limits | None = None
    timeout: Seconds = None
    cache: bool = True


class DeleteImage(Request, frozen=True):
    """With `force` also one that something stands on."""

    force: bool = False


class PruneImages(Request, frozen=True):
    """With `all` also images that no sandbox and no snapshot stands on."""

    all: bool = False
