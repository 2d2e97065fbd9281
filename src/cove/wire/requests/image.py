"""Requests about images."""

from cove.wire.requests.request import Request


class LoadImage(Request, frozen=True):
    """The name that it has afterwards; the archive may say one."""

    name: str | None = None


class CommitSandbox(Request, frozen=True):
    """The name that the image has."""

    name: str


class PullImage(Request, frozen=True):
    """The image in a registry: HOST/NAME:TAG."""

    reference: str


class DeleteImage(Request, frozen=True):
    """With `force` also one that something stands on."""

    force: bool = False


class PruneImages(Request, frozen=True):
    """With `all` also images that no sandbox and no snapshot stands on."""

    all: bool = False
