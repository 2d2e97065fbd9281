"""Check the arguments of backups, and decide what has expired."""

import math
from datetime import datetime, timedelta
from typing import Final

from cove.errors import ValidationFailed
from cove.model import BackupInfo

# For so long after its end a backup is said to have expired; after that, there is none.
REMEMBERED: Final = timedelta(days=30)
_MOST_SECONDS: Final = 100 * 365 * 86400.0
_MOST_NAME: Final = 200


def check_backup_name(name: str | None) -> str | None:
    """Return the name, or raise ValidationFailed."""
    if name is None:
        return None
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or not name.isprintable():
        raise ValidationFailed(f"the name of a backup has 1 to {_MOST_NAME} printable characters, not {name!r:.300}")
    return name


def check_ttl(ttl: float | None) -> float | None:
    """Return the time that a backup is kept, or raise ValidationFailed."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or math.isnan(ttl) or not 0 < ttl <= _MOST_SECONDS:
        raise ValidationFailed(f"ttl must be a number of seconds above 0, or None for ever, not {ttl!r:.300}")
    return float(ttl)


def expiry(created_at: datetime, ttl: float | None) -> datetime | None:
    """Return when a backup expires."""
    return None if ttl is None else created_at + timedelta(seconds=ttl)


def is_expired(backup: BackupInfo, now: datetime) -> bool:
    """Return whether a backup's time is over."""
    return backup.expires_at is not None and backup.expires_at <= now


def is_forgotten(backup: BackupInfo, now: datetime) -> bool:
    """Return whether it has been over for so long that nothing of it need be known."""
    return backup.expires_at is not None and backup.expires_at + REMEMBERED <= now
