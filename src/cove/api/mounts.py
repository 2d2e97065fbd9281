"""Interface of the mounts of a running sandbox: host directories, volumes and buckets."""

import builtins
from abc import ABC, abstractmethod

from cove.model import AnyMount


class Mounts(ABC):
    """The mounts of a sandbox, which can be changed while it runs. They are back after a restart."""

    @abstractmethod
    async def add(self, mount: AnyMount) -> None:
        """Mount it, at a target outside the system's directories; what is missing on the way there is made.

        A target that is used, or would cover another one, is MountExists. No link on the way to it is followed. On a
        server, only what its configuration allows can be mounted.
        """

    @abstractmethod
    async def list(self) -> builtins.list[AnyMount]:
        """Return all mounts, also those that it was created with."""

    @abstractmethod
    async def remove(self, target: str) -> None:
        """Unmount it; raises MountNotFound. Programs that have files in it open keep those until they close them.

        What was written to a bucket is sent before this returns.
        """

    @abstractmethod
    async def sync(self, target: str) -> None:
        """Send what was written to a bucket. Where it is copied, not mounted, copy it in and out."""
