"""The API keys of a server as its workers see them: read again whenever one was made, changed or removed.

Whether there was a change is asked for each request, by one look at the time of a directory: a key that was revoked
is refused from the next request on, on all workers.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cove.core.api_key import handle_of, is_key
from cove.core.quota import strictest
from cove.local.api_keys import ApiKeyRecord, ApiKeys
from cove.local.threads import start_in_thread

_NEVER = -2
_USE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request: the name of a key, and its tenant; no tenant is an admin."""

    name: str
    tenant: str = ""
    rate: float | None = None

    @property
    def is_admin(self) -> bool:
        """Return whether everything may be reached."""
        return not self.tenant


class KeyRing:
    """Knows whose a shown key is."""

    def __init__(self, home: Path) -> None:
        self._keys = ApiKeys(home)
        self.check_current: Callable[[], None] = _do_nothing
        self._stamp = _NEVER
        self._records: dict[str, ApiKeyRecord] = {}
        self._rates: dict[str, float | None] = {}
        self._noted: dict[str, datetime] = {}

    def find(self, shown: str) -> Principal | None:
        """Return whose this key is; None for what is none, or was revoked, or is over.

        In a cluster, NodeUnavailable where a revocation may not have been heard of: `check_current` raises it.
        """
        handle = handle_of(shown)
        return None if handle is None else self.find_by_handle(handle, lambda digest: is_key(shown, digest))

    def find_by_handle(self, handle: str, is_right: Callable[[str], bool]) -> Principal | None:
        """Return whose the key with that public part is, if it holds and its digest is the right one."""
        self.check_current()
        record = self._current().get(handle)
        now = datetime.now(UTC)
        if record is None or not is_right(record.digest) or record.is_over(now):
            return None
        self._note(record, now)
        return Principal(record.name, record.tenant, record.quota.rate)

    def rate_of(self, tenant: str) -> float | None:
        """Return the strictest rate of a tenant's keys: it holds for tokens, which are of none of them."""
        records = self._current()
        if tenant not in self._rates:
            self._rates[tenant] = strictest(each.quota for each in records.values() if each.tenant == tenant).rate
        return self._rates[tenant]

    def _current(self) -> dict[str, ApiKeyRecord]:
        stamp = self._keys.stamp()
        if stamp != self._stamp or not stamp:
            self._records = {record.handle: record for record in self._keys.read()}
            self._rates.clear()
            self._stamp = stamp
        return self._records

    @property
    def stamp(self) -> int:
        """Return what changes with the keys; 0 while they may just change."""
        return self._keys.stamp()

    def _note(self, record: ApiKeyRecord, now: datetime) -> None:
        """Remember the use, at most once a minute, in a thread: nobody waits for a disk."""
        noted = self._noted.get(record.handle)
        if noted is None or (now - noted).total_seconds() > _USE_SECONDS:
            self._noted[record.handle] = now
            start_in_thread(self._keys.note_use, record.name).add_done_callback(_ignore)


def _do_nothing() -> None:
    """Let every key be current: a single server has heard of all changes."""


def _ignore(noting: "asyncio.Future[None]") -> None:
    """Let a full disk disturb nobody."""
    if not noting.cancelled():
        noting.exception()
