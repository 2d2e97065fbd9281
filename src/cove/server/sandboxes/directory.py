"""The directory (registry) of a server's sandboxes: their records on disk, the only truth.

`sandboxes/<key>/sandbox.json` says what a sandbox is, its lock says whether a runtime has it, and
`ids/<digest of the id>` says which key has the id, and whether somebody has taken the sandbox yet. One that was only
offered when its runtime died was never given to anybody: it is removed. All calls here block, but for microseconds.
"""

import builtins
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from cove.core.identifier import KEY_LENGTH
from cove.errors import SandboxUnavailable
from cove.linux.file_lock import is_locked
from cove.local.api_keys import TENANTS
from cove.local.state import replace_file
from cove.model import SandboxInfo, SandboxSpec, SandboxStatus, SandboxUsers, SnapshotMethod, TreeKill
from cove.model.cluster import Member
from cove.runtime.home import LOCK, RECORD, SOCKET
from cove.server.sandboxes.members import Stamp, members_path, read_members, stamp_of

_ENTRY = re.compile(rb"([a-z2-7]{%d})(\??)" % KEY_LENGTH)
_MOST_PATH_BYTES = 107  # unix(7)
ENTRY_BYTES = 64
MOVES = "moves"

log = logging.getLogger("cove.server")


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of the file of an id: the key, or nothing; and whether its sandbox is only offered."""

    key: str = ""
    is_offered: bool = False

    @classmethod
    def read(cls, data: bytes) -> "Entry":
        """Read it; nothing for what is none, as in a file that a crash of the machine spoilt."""
        found = _ENTRY.fullmatch(data)
        return cls(found[1].decode(), bool(found[2])) if found else cls()

    def encode(self) -> bytes:
        """The bytes of the file: to take an offer is to cut off the last one."""
        return self.key.encode() + (b"?" if self.is_offered else b"")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox; `status` is what its runtime wrote last, and that runtime may be gone.

    `wakes` says whether a call starts or resumes it. `env` is what was set since its creation, and
    `origin` is the spec of that where another one holds.
    """

    id: str
    key: str
    spec: SandboxSpec
    created_at: datetime
    status: SandboxStatus = SandboxStatus.RUNNING
    user_id: int | None = None
    tree_kill: TreeKill = TreeKill.SUBREAPER
    limits_enforced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    wakes: bool = True
    ends_at: datetime | None = None
    env: dict[str, str | None] = {}
    origin: SandboxSpec | None = None
    users: SandboxUsers = SandboxUsers.ONE
    snapshots: SnapshotMethod = SnapshotMethod.OVERLAY
    tenant: str = ""

    @property
    def created_spec(self) -> SandboxSpec:
        """The spec of its creation: the one that holds, if none was recorded."""
        return self.spec if self.origin is None else self.origin

    @property
    def deadline(self) -> datetime | None:
        """The time when its lifetime is over."""
        if self.ends_at is not None:
            return self.ends_at
        return None if self.spec.lifetime is None else self.created_at + timedelta(seconds=self.spec.lifetime)

    def is_over(self, now: datetime) -> bool:
        """Return whether its lifetime is over."""
        return self.deadline is not None and self.deadline <= now

    def info(self, status: SandboxStatus, node: str | None = None) -> SandboxInfo:
        """The facts, with the status that is true, and the node of a cluster."""
        return SandboxInfo(
            id=self.id,
            status=status,
            created_at=self.created_at,
            spec=self.spec,
            isolation=self.spec.isolation,
            tree_kill=self.tree_kill,
            limits_enforced=self.limits_enforced,
            warnings=self.warnings,
            snapshots=self.snapshots,
            ends_at=self.deadline,
            users=self.users,
            node=node,
            owner=self.tenant or None,
        )


class Directory:
    """Reads and writes records. A record that its id does not lead to belongs to a sandbox that is being removed.

    That of a tenant finds and lists the tenant's sandboxes only: ids are its own, whoever else has the same. That of
    no tenant lists all.
    """

    def __init__(self, home: Path, tenant: str = "") -> None:
        self.home = home
        self.tenant = tenant
        self.ids = home / "ids"
        self.server = home / "server"
        self.zygote = self.server / "zygote.sock"
        self._helpers = self.server / "attach"
        self._sandboxes = home / "sandboxes"
        self._here: tuple[Stamp | None, Member | None] = None, None

    def here(self) -> Member | None:
        """Return which node of a cluster this is; None without one."""
        stamp = stamp_of(members_path(self.home))
        if stamp != self._here[0]:
            members = read_members(self.home)
            self._here = stamp, None if members is None else members.here
        return self._here[1]

    def node(self) -> str | None:
        """Return the name of this node of a cluster; None without one."""
        here = self.here()
        return None if here is None else here.name

    def code(self) -> str:
        """Return the code of this node of a cluster, which new ids end in; nothing without one."""
        here = self.here()
        return "" if here is None else here.code

    def of(self, tenant: str) -> "Directory":
        """Return the same as that tenant sees it."""
        return self if tenant == self.tenant else Directory(self.home, tenant)

    def helpers(self, version: str) -> Path:
        """Return where the zygote forks helpers of that version: runtimes of another one start their own."""
        return self._helpers.with_suffix(f".{version}.sock")

    def forget_zygote(self) -> None:
        """Remove the sockets of a zygote that has ended."""
        for path in (self.zygote, *self.server.glob(f"{self._helpers.name}.*.sock")):
            path.unlink(missing_ok=True)

    def open(self) -> None:
        """Make what a server needs beside the sandboxes."""
        if len(os.fsencode(self._sandboxes / ("k" * 12) / SOCKET)) > _MOST_PATH_BYTES:
            raise SandboxUnavailable(f"the path {self.home} is too long for sockets: set COVE_HOME to a shorter one")
        for path in (self.ids, self.server):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, id: str) -> Record | None:
        """The sandbox with that id; None too for one whose lifetime ended while it was stopped."""
        entry = self.look_up(id)
        record = self.read(entry.key)
        if record is None or record.id != id or self._is_left(record, entry):
            return None
        return record

    def find_all(self, id: str) -> builtins.list[Record]:
        """The sandboxes of all tenants with that id: for those who show a right to one of them, and not a key."""
        return [record for each in self.of_all() if (record := each.find(id)) is not None]

    def of_all(self) -> "builtins.list[Directory]":
        """Return the same as each tenant sees it, the server's own first."""
        tenants = [""]
        with suppress(FileNotFoundError):
            tenants += os.listdir(self.home / TENANTS)
        return [self.of(tenant) for tenant in tenants]

    def list(self) -> builtins.list[Record]:
        """All sandboxes, oldest first."""
        known = (record for record in self._readable() if self.tenant in ("", record.tenant) and self.is_known(record))
        return sorted(known, key=lambda record: record.created_at)

    def unknown(self) -> builtins.list[Record]:
        """Return those to be removed.

        Their lifetime is over, their removal was begun by somebody who is gone, or nobody took them.
        """
        return [each for each in self._readable() if not self.is_known(each) and not self._is_coming(each)]

    def _is_coming(self, record: Record) -> bool:
        """Return whether it is on its way from another node: its id leads to it when it is here."""
        return arrival_path(self.home, record.key).exists()

    def _readable(self) -> Iterator[Record]:
        """One record that a crash of the machine spoilt takes no other with it."""
        for entry in os.scandir(self._sandboxes):
            try:
                record = self.read(entry.name)
            except SandboxUnavailable as error:
                log.error("%s", error)
            else:
                if record is not None:
                    yield record

    def is_known(self, record: Record) -> bool:
        """Return whether the record is a sandbox, and not what is left of one."""
        entry = self.of(record.tenant).look_up(record.id)
        return entry.key == record.key and not self._is_left(record, entry)

    def _is_left(self, record: Record, entry: Entry) -> bool:
        """Return whether its lifetime is over, or nobody has taken it, and no runtime has it."""
        return (entry.is_offered or record.is_over(datetime.now(UTC))) and not self.is_held(record.key)

    def status(self, record: Record) -> SandboxStatus:
        """Return the status: one that was running or paused and has no runtime is lost."""
        if record.status is not SandboxStatus.STOPPED and not self.is_held(record.key):
            return SandboxStatus.LOST
        return record.status

    def info(self, record: Record) -> SandboxInfo:
        """The facts, also of one that does not run."""
        return record.info(self.status(record), self.node())

    def socket(self, record: Record) -> Path:
        """Return the path of the socket that its runtime listens on."""
        return self.place(record.key) / SOCKET

    def place(self, key: str) -> Path:
        """Return the path of its files."""
        return self._sandboxes / key

    def is_held(self, key: str) -> bool:
        """Return whether a runtime holds the lock of the place."""
        return is_locked(self.place(key) / LOCK)

    def holder(self, key: str) -> tuple[int, int] | None:
        """The pid and start time of the runtime that has the place, as it wrote them."""
        try:
            pid, started = (self.place(key) / LOCK).read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid), int(started)

    def read(self, key: str) -> Record | None:
        """The record of that place, if it has one."""
        if not key:
            return None
        path = self.place(key) / RECORD
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SandboxUnavailable(f"{path} cannot be read: repair it, or destroy the sandbox: {error}") from None

    def write(self, record: Record, *, durable: bool = False) -> None:
        """Replace the record, all at once."""
        replace_file(self.place(record.key) / RECORD, msgspec.json.encode(record), durable=durable)

    def look_up(self, id: str) -> Entry:
        """Return what the file of the id says."""
        try:
            descriptor = os.open(self.entry(id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return Entry()
        try:
            return Entry.read(os.read(descriptor, ENTRY_BYTES))
        finally:
            os.close(descriptor)

    def entry(self, id: str) -> Path:
        """The file that stands for the id."""
        name = f"{self.tenant}/{id}" if self.tenant else id
        return self.ids / hashlib.sha256(name.encode()).hexdigest()[:32]

    def count(self) -> int:
        """Count the ids that are taken, by whomever."""
        return len(os.listdir(self.ids))


def arrival_path(home: Path, key: str) -> Path:
    """Return the record of a sandbox that comes from another node: see `moves`."""
    return home / MOVES / f"in-{key}"
