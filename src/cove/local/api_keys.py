"""API keys in the state directory: a file for each, which holds a digest of the key. Blocks.

The directory's time of change tells every process of the server that a key was made, changed or removed.
"""

import builtins
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from cove.core.api_key import digest_of, new_key
from cove.core.identifier import new_identifier
from cove.errors import ApiKeyAlreadyExists, ApiKeyNotFound, SandboxUnavailable, ValidationFailed
from cove.model.api_key import ApiKeyInfo, ApiKeyMade, Quota, check_key_name, check_quota

_DIRECTORY = "keys"
_USES = "key-uses"
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

    def is_over(self, now: datetime) -> bool:
        """Return whether its time is over."""
        return self.expires_at is not None and self.expires_at <= now


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
        if record.tenant:
            (self.home / TENANTS / record.tenant).mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        return self._write(record, is_new=True)

    def rotate(self, name: str) -> ApiKeyMade:
        """Replace a key by a new one with the same rights; the old one stops working at once."""
        return self._write(replace(self.find(name), handle=new_identifier()), is_new=False)

    def delete(self, name: str) -> None:
        """Revoke a key. Raises ApiKeyNotFound."""
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise _missing(name) from None
        (self.home / _USES / name).unlink(missing_ok=True)

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
        try:
            changed = os.stat(self._directory).st_mtime_ns
        except FileNotFoundError:
            return -1
        return changed if time.time_ns() - changed > _TICK_NS else 0

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

    def _write(self, record: ApiKeyRecord, *, is_new: bool) -> ApiKeyMade:
        key = new_key(record.handle)
        record = replace(record, digest=digest_of(key))
        self._directory.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        building = self._directory / f".{record.name}-{new_identifier()}"
        try:
            with open(building, "xb", opener=_open_private) as file:
                file.write(msgspec.json.encode(record))
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                os.link(building, self._path(record.name))
            else:
                building.rename(self._path(record.name))
        except FileExistsError:
            raise ApiKeyAlreadyExists(f"there is a key {record.name} already: rotate or remove it") from None
        finally:
            building.unlink(missing_ok=True)
        return ApiKeyMade(key=key, info=self._describe(record))


def _decode(path: Path) -> ApiKeyRecord:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ApiKeyRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SandboxUnavailable(f"{path} cannot be read: remove the key: {error}") from None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _missing(name: str) -> ApiKeyNotFound:
    return ApiKeyNotFound(f"there is no key {name}")
