"""API keys in the state directory: a file for each, which holds a digest of the key. Blocks.

The directory's time of change tells every process of the server that a key was made, changed or removed.

Every change has a version that grows, and a removed key leaves a small file that says so: of what two state directories
have of one name, the newer wins (`state`, `merge`). That is how the nodes of a cluster come to the same keys.
"""

import builtins
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import msgspec
from msgspec.structs import replace

from cove.core.api_key import digest_of, new_key
from cove.core.identifier import new_identifier
from cove.errors import ApiKeyAlreadyExists, ApiKeyNotFound, LimitExceeded, SandboxUnavailable, ValidationFailed
from cove.local.state import replace_file
from cove.model.api_key import ApiKeyInfo, ApiKeyMade, Quota, check_key_name, check_quota

_DIRECTORY = "keys"
_USES = "key-uses"
_REVOKED = "revoked-keys"
_LOCK = ".lock"
MOST_KEYS = 5_000
_MOST_REVOKED = 10_000
TENANTS = "tenants"
_SUFFIX = ".json"
_PRIVATE = 0o700
# Two changes within one tick of the kernel's clock leave one time: what was read so soon after one is read again.
_TICK_NS = 20_000_000


class ApiKeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept."""

    name: str
    tenant: str
    handle: str
    digest: str
    created_at: datetime
    is_admin: bool = False
    expires_at: datetime | None = None
    quota: Quota = Quota()
    version: int = 0

    @property
    def order(self) -> "Order":
        """The order of the records of one name: the last one holds."""
        return self.version, False, self.handle

    def is_over(self, now: datetime) -> bool:
        """Return whether its time is over."""
        return self.expires_at is not None and self.expires_at <= now


class RevokedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was removed."""

    name: str
    version: int

    @property
    def order(self) -> "Order":
        """The order of the records of one name: the last one holds."""
        return self.version, True, ""


Order = tuple[int, bool, str]
Change = ApiKeyRecord | RevokedKey


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """All keys of a state directory, and those that were removed: at most one of the two for each name."""

    keys: tuple[ApiKeyRecord, ...] = ()
    revoked: tuple[RevokedKey, ...] = ()

    def changes(self) -> list[Change]:
        """Return both."""
        return [*self.keys, *self.revoked]

    def digest(self) -> str:
        """Return what is the same for two directories that have the same keys."""
        orders = sorted((each.name, *each.order) for each in self.changes())
        return hashlib.sha256(msgspec.json.encode(orders)).hexdigest()


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The keys of one state directory."""

    home: Path

    @property
    def _directory(self) -> Path:
        return self.home / _DIRECTORY

    def create(
        self,
        name: str,
        *,
        tenant: str | None = None,
        is_admin: bool = False,
        expires_at: datetime | None = None,
        quota: Quota | None = None,
    ) -> ApiKeyMade:
        """Make a key. Raises ApiKeyAlreadyExists."""
        check_key_name(name)
        if is_admin and (tenant is not None or quota not in (None, Quota())):
            raise ValidationFailed("an admin's key reaches everything: it has neither a tenant nor a quota")
        quota = check_quota(quota or Quota())
        if expires_at is not None and expires_at.tzinfo is None:
            raise ValidationFailed("expires_at needs a time zone: datetime.now(UTC) + timedelta(days=30)")
        if expires_at is not None and expires_at <= datetime.now(UTC):
            raise ValidationFailed("a key cannot expire in the past")
        record = ApiKeyRecord(
            name=name,
            tenant="" if is_admin else check_key_name(tenant or name),
            handle=new_identifier(),
            digest="",
            created_at=datetime.now(UTC),
            is_admin=is_admin,
            expires_at=expires_at,
            quota=quota,
        )
        with self._locked():
            if self._path(name).exists():
                raise ApiKeyAlreadyExists(f"there is a key {name} already: rotate or remove it")
            if sum(1 for _ in self.read()) >= MOST_KEYS:
                raise LimitExceeded(f"there are {MOST_KEYS} keys already: remove some", limit="keys")
            return self._make(record)

    def rotate(self, name: str) -> ApiKeyMade:
        """Replace a key by a new one with the same rights; the old one stops working at once."""
        with self._locked():
            return self._make(replace(self.find(name), handle=new_identifier()))

    def delete(self, name: str) -> None:
        """Revoke a key. Raises ApiKeyNotFound."""
        with self._locked():
            self._revoke(RevokedKey(name=self.find(name).name, version=self._next_version(name)))

    def state(self) -> KeyState:
        """Return all there is, for others to merge."""
        with self._locked():
            revoked = {each.name: each for each in self._read_revoked()}
            keys = []
            for record in self.read():
                other = revoked.get(record.name)
                if other is not None and other.order > record.order:  # somebody was killed who removed it
                    self._path(record.name).unlink(missing_ok=True)
                    continue
                revoked.pop(record.name, None)
                keys.append(record)
            return KeyState(keys=tuple(keys), revoked=tuple(revoked.values()))

    def merge(self, state: KeyState) -> None:
        """Take over what is newer elsewhere. Raises ValidationFailed for what no state directory has."""
        if len(state.keys) > MOST_KEYS * 2 or len(state.revoked) > _MOST_REVOKED * 2:
            raise ValidationFailed("so many keys nobody has")
        for each in state.changes():
            check_key_name(each.name)
        for record in state.keys:
            check_quota(record.quota)
            if record.tenant or not record.is_admin:
                check_key_name(record.tenant)
        with self._locked():
            known = self._orders()
            for each in state.changes():
                if each.order > known.get(each.name, (-1, False, "")):
                    known[each.name] = each.order
                    if isinstance(each, ApiKeyRecord):
                        self._write(each)
                    else:
                        self._revoke(each)

    def _orders(self) -> dict[str, Order]:
        found: dict[str, Order] = {}
        changes: Iterator[Change] = chain(self.read(), self._read_revoked())
        for each in changes:
            found[each.name] = max(each.order, found.get(each.name, each.order))
        return found

    def _read_revoked(self) -> builtins.list[RevokedKey]:
        paths = (self.home / _REVOKED).glob("[!.]*")
        return [msgspec.json.decode(path.read_bytes(), type=RevokedKey) for path in paths]

    def _revoke(self, revoked: RevokedKey) -> None:
        """Say first that it was removed: whoever is killed between the two leaves no key that comes back."""
        replace_file(self.home / _REVOKED / revoked.name, msgspec.json.encode(revoked), durable=True)
        self._path(revoked.name).unlink(missing_ok=True)
        (self.home / _USES / revoked.name).unlink(missing_ok=True)
        oldest = sorted(self._read_revoked(), key=lambda each: each.version)
        for each in oldest[: max(0, len(oldest) - _MOST_REVOKED)]:
            (self.home / _REVOKED / each.name).unlink(missing_ok=True)

    def _next_version(self, name: str) -> int:
        """Return a version that is newer than all there were of a name: by the clock, unless that was set back."""
        last = self._orders().get(name, (0, False, ""))[0]
        return max(time.time_ns() // 1000, last + 1)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        (self.home / _REVOKED).mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        lock = os.open(self.home / _REVOKED / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def find(self, name: str) -> ApiKeyRecord:
        """Return a key's record. Raises ApiKeyNotFound."""
        try:
            return _decode(self._path(name))
        except FileNotFoundError:
            raise _missing(name) from None

    def info(self, name: str) -> ApiKeyInfo:
        """Describe a key."""
        return self._describe(self.find(name))

    def list(self) -> builtins.list[ApiKeyInfo]:
        """Describe all keys, oldest first."""
        return [self._describe(each) for each in sorted(self.read(), key=lambda record: record.created_at)]

    def read(self) -> Iterator[ApiKeyRecord]:
        """Read all records."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                if name.endswith(_SUFFIX) and not name.startswith("."):
                    with suppress(FileNotFoundError):
                        yield _decode(self._directory / name)

    def stamp(self) -> int:
        """Return the time of the last change; 0 when it is so short ago that another may follow unseen."""
        return _stamp(self._directory)

    def stamps(self) -> tuple[int, int]:
        """Return the times of the last change of keys and of those removed; 0 as in `stamp`."""
        return self.stamp(), _stamp(self.home / _REVOKED)

    def note_use(self, name: str) -> None:
        """Remember that a key was used now."""
        uses = self.home / _USES
        uses.mkdir(mode=_PRIVATE, exist_ok=True)
        os.close(os.open(uses / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.utime(uses / name)

    def _path(self, name: str) -> Path:
        return self._directory / f"{check_key_name(name)}{_SUFFIX}"

    def _describe(self, record: ApiKeyRecord) -> ApiKeyInfo:
        used = None
        with suppress(FileNotFoundError):
            used = datetime.fromtimestamp(os.stat(self.home / _USES / record.name).st_mtime, UTC)
        return ApiKeyInfo(
            name=record.name,
            tenant=record.tenant,
            created_at=record.created_at,
            is_admin=record.is_admin,
            expires_at=record.expires_at,
            last_used_at=used,
            quota=record.quota,
        )

    def _make(self, record: ApiKeyRecord) -> ApiKeyMade:
        key = new_key(record.handle)
        record = replace(record, digest=digest_of(key), version=self._next_version(record.name))
        self._write(record)
        return ApiKeyMade(key=key, info=self._describe(record))

    def _write(self, record: ApiKeyRecord) -> None:
        if record.tenant:
            (self.home / TENANTS / record.tenant).mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        self._directory.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        replace_file(self._path(record.name), msgspec.json.encode(record), durable=True)
        (self.home / _REVOKED / record.name).unlink(missing_ok=True)


def _stamp(directory: Path) -> int:
    try:
        changed = os.stat(directory).st_mtime_ns
    except FileNotFoundError:
        return -1
    return changed if time.time_ns() - changed > _TICK_NS else 0


def _decode(path: Path) -> ApiKeyRecord:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ApiKeyRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SandboxUnavailable(f"{path} cannot be read: remove the key: {error}") from None


def _missing(name: str) -> ApiKeyNotFound:
    return ApiKeyNotFound(f"there is no key {name}")
