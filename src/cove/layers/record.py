"""Records of layers, of snapshots, and of what one sandbox stands on, as they are kept on disk."""

from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from cove.core.snapshot_index import IndexedLayer
from cove.core.squash import Merge, shorten
from cove.model import SnapshotInfo

PARTS = ("workspace", "home", "tmp")
ROOT = "root"


class Owners(NamedTuple):
    """The host users that files of a layer belong to: `first` stands for root, the numbers after it for others."""

    first: int
    users: int

    @property
    def root(self) -> int | None:
        """The number of root's files, where users have numbers of their own."""
        return self.first if self.users > 1 else None


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable directory. `owner` is the user that its files belong to, `parent` the layer it was made on.

    With `users` more than one, `owner` is the one that stands for root, and the numbers after it for the others.
    `digest` and `archive_size` are those of its archive, once somebody asked for them; `whole` are those of the archive
    that another node gets. Their names on disk have the version of the packing: those of another are not read. `size`
    is there once counted.
    """

    id: str
    owner: int
    created_at: datetime
    parent: str | None = None
    digest: str | None = msgspec.field(default=None, name="digest_2")
    archive_size: int | None = msgspec.field(default=None, name="archive_size_2")
    size: int | None = None
    users: int = 1
    whole: IndexedLayer | None = msgspec.field(default=None, name="whole_2")

    @property
    def root(self) -> int | None:
        """The number of root's files, where users have numbers of their own."""
        return Owners(self.owner, self.users).root


class System(msgspec.Struct, frozen=True, kw_only=True):
    """The system of an image, as a sandbox has it: its user, and what its image says about what runs.

    `groups` are further groups of the user, `startup` is what the image would start. With `sudo` the
    user may become root. `python` and `node` are paths in the image, where it has them.
    """

    image: str
    user_id: int
    group_id: int
    user: str
    home: str
    env: dict[str, str] = {}
    workdir: str = "/workspace"
    has_bash: bool = True
    groups: tuple[int, ...] = ()
    startup: tuple[str, ...] = ()
    sudo: bool = False
    python: str = ""
    python_version: tuple[int, int] = (0, 0)
    node: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot: its layers, bottom first, and what of the sandbox's spec belongs to it.

    One with a `holder` is there only while the sandbox with that key is copied. One with an `origin` is a copy of what
    that node of the cluster has.
    """

    id: str
    created_at: datetime
    layers: tuple[str, ...]
    name: str | None = None
    labels: dict[str, str] = {}
    parent: str | None = None
    env: dict[str, str] = {}
    workdir: str = "/workspace"
    system: System | None = None
    holder: str | None = None
    tenant: str = ""
    origin: str = ""

    def __post_init__(self) -> None:
        """Read a time without a zone as UTC: all snapshots can be compared."""
        if self.created_at.tzinfo is None:
            msgspec.structs.force_setattr(self, "created_at", self.created_at.replace(tzinfo=UTC))

    def info(self, size: int | None) -> SnapshotInfo:
        """Describe it for a caller."""
        return SnapshotInfo(
            id=self.id,
            created_at=self.created_at,
            name=self.name,
            labels=self.labels,
            size=size,
            parent=self.parent,
            owner=self.tenant or None,
        )


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """The layers a sandbox stands on, bottom first, and its own `upper`; `base` are those of its creation.

    With `undo` a transaction is open: its sandbox is started on those layers, with nothing on top. `snapshot` is the
    one that was made or restored last. With a `system` the root is one of the parts. `merges` are layers that can take
    the places of others: they do when the mounts are next changed.
    """

    upper: str
    layers: tuple[str, ...] = ()
    base: tuple[str, ...] = ()
    undo: tuple[str, ...] | None = None
    merges: tuple[Merge, ...] = ()
    snapshot: str | None = None
    system: System | None = None

    def shorten(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        """Put merged layers in the places of others."""
        return shorten(layers, self.merges)
