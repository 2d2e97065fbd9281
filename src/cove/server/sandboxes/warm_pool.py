"""The warm pool against cold starts: sandboxes that run already and wait for an id.

Each listens on a socket in the directory of its kind. Whoever wants one renames the socket away first: that can
succeed only once, so that none is ever given out twice. It hears one request in its life, and never a second.
"""

import hashlib
import os
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.identifier import new_identifier
from cove.errors import ImageNotFound
from cove.images.store import ImageStore
from cove.layers.store import LayerStore
from cove.model import Network, SandboxSpec
from cove.model.spec import HOST_IMAGE
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.start_protocol import Prepare, encode

_CLOSED = "closed-"
_ON_IMAGE = "image-"


class WarmPool:
    """The sandboxes of this server that wait. Calls block, but for microseconds."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._waiting = directory.server / "warm"
        self._claimed = directory.server / "claimed"

    def open(self) -> None:
        """Make the directories."""
        for path in (self._waiting, self._claimed):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, kind: str, key: str, listening: Path) -> bool:
        """Offer a sandbox of a kind to be claimed from here on; False when the pool is closed."""
        try:
            (self._waiting / kind).mkdir(mode=0o700, exist_ok=True)
            listening.rename(self._waiting / kind / key)
        except FileNotFoundError:
            listening.unlink(missing_ok=True)
            return False
        return True

    def forget(self, kind: str, key: str) -> None:
        """Withdraw a sandbox: it waits no longer."""
        (self._waiting / kind / key).unlink(missing_ok=True)
        (self._claimed / key).unlink(missing_ok=True)

    def building(self) -> Path:
        """Return a place for a socket that nobody may claim yet."""
        return self._claimed / new_identifier()

    def claim(self, spec: SandboxSpec) -> Path | None:
        """Return the socket of one that is alike and now belongs to the caller, or None."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self._kind(spec)):
                if (claimed := self._take(self._kind(spec) / name)) is not None:
                    return claimed
        return None

    def _take(self, path: Path) -> Path | None:
        claimed = self._claimed / path.name
        try:
            path.rename(claimed)
        except FileNotFoundError:
            return None  # somebody else was faster
        return claimed

    def count_all(self) -> int:
        """Count those that wait, of all kinds."""
        return sum(1 for _ in self._waiting.glob("*/*"))

    def count(self, spec: SandboxSpec) -> int:
        """Count those that wait."""
        try:
            return len(os.listdir(self._kind(spec)))
        except (FileNotFoundError, ImageNotFound):
            return 0

    def close(self) -> None:
        """Let none wait any more: those that do are told, and who comes later finds no pool."""
        with suppress(FileNotFoundError):
            self._waiting.rename(self._directory.server / f"{_CLOSED}{new_identifier()}")
        self.drain()

    def drain(self) -> None:
        """Tell all that wait, of whatever kind, that nobody will want them. Nobody claims one meanwhile."""
        for path in self._waiting.glob("*/*"):
            self._take(path)
        for closed in self._directory.server.glob(f"{_CLOSED}*"):
            for path in closed.glob("*/*"):
                self._take(path)
            remove_tree(str(closed))
        for claimed in self._claimed.iterdir():
            self._dismiss(claimed)

    @staticmethod
    def _dismiss(claimed: Path) -> None:
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.connect(str(claimed))
        claimed.unlink(missing_ok=True)

    def replenish(self, spec: SandboxSpec, most: int) -> None:
        """Ask the zygote for one more, which will be there after a while unless there are enough by then."""
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.connect(str(self._directory.zygote))
            connection.sendall(encode(Prepare(spec=spec, most=most)))

    def kind_of(self, spec: SandboxSpec) -> str:
        """Return what names all that are alike: else is decided when one gets its id. Raises ImageNotFound.

        On an image it is what the name stands for now: one that waits on what it stood for before is of another kind.
        """
        prefix = ""
        alike: tuple[object, ...] = (spec.isolation, spec.network is Network.HOST, spec.limits, spec.mounts)
        if spec.image != HOST_IMAGE:
            home = self._directory.home
            image = ImageStore(home, LayerStore(home, self._directory.tenant)).find(spec.image)
            alike += (image.name, image.tenant, image.id, image.layers, spec.user, spec.sudo)
            prefix = _ON_IMAGE
        return prefix + hashlib.sha256(msgspec.json.encode(alike)).hexdigest()[:16]

    def keep_only(self, kinds: Collection[str]) -> None:
        """Tell those on images, of other kinds, that nobody will want them: their image is another now, or gone."""
        for path in self._waiting.glob(f"{_ON_IMAGE}*/*"):
            if path.parent.name not in kinds and (claimed := self._take(path)) is not None:
                self._dismiss(claimed)

    def _kind(self, spec: SandboxSpec) -> Path:
        return self._waiting / self.kind_of(spec)
