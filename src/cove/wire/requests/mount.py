"""Requests for mounts and volumes."""

from cove.model import AnyMount
from cove.wire.requests.request import Request


class AddMount(Request, frozen=True):
    """A mount of any kind; its `type` says which: `host`, `volume` or `bucket`."""

    mount: AnyMount


class MountTarget(Request, frozen=True):
    """The target of a mount."""

    target: str


class CreateVolume(Request, frozen=True):
    """Without a size the server chooses one."""

    name: str
    size: int | None = None
