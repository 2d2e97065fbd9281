"""Names, times and the end of backups."""

from datetime import UTC, datetime, timedelta

import pytest

from cove.core.backup import REMEMBERED, check_backup_name, check_ttl, expiry, is_expired, is_forgotten
from cove.errors import ValidationFailed
from cove.model import BackupInfo

pytestmark = pytest.mark.pure

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def backup(ttl: float | None) -> BackupInfo:
    return BackupInfo(
        id="a", name=None, dir="/workspace", sandbox="s", created_at=NOW, expires_at=expiry(NOW, ttl), size=1
    )


def test_names_are_printable_and_short() -> None:
    assert check_backup_name(None) is None
    assert check_backup_name("before é") == "before é"
    for name in ("", "a\nb", "x" * 201, 5):
        with pytest.raises(ValidationFailed):
            check_backup_name(name)  # type: ignore[arg-type]  # on purpose


def test_a_ttl_is_a_number_of_seconds() -> None:
    assert check_ttl(None) is None
    assert check_ttl(3) == 3.0
    for ttl in (0, -1, float("nan"), float("inf"), 1e12, True, "5"):
        with pytest.raises(ValidationFailed):
            check_ttl(ttl)  # type: ignore[arg-type]  # on purpose


def test_a_backup_expires_and_is_forgotten_later() -> None:
    for moment, expired, forgotten in (
        (timedelta(seconds=9), False, False),
        (timedelta(seconds=10), True, False),
        (timedelta(seconds=10) + REMEMBERED, True, True),
    ):
        assert is_expired(backup(10), NOW + moment) is expired
        assert is_forgotten(backup(10), NOW + moment) is forgotten
    assert not is_expired(backup(None), NOW + timedelta(days=9999))
    assert not is_forgotten(backup(None), NOW + timedelta(days=9999))
