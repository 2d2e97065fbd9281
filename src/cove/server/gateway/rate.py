"""The requests that may be made in a second, by a tenant or to log in, counted over all workers (GCRA).

One number in a file that all workers have mapped says up to when the rate is used. A second's requests may come at
once. All workers have one clock: CLOCK_MONOTONIC is the machine's.
"""

import fcntl
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

from cove.errors import LimitExceeded
from cove.local.api_keys import TENANTS
from cove.server.gateway.key_ring import Principal

_NAME: Final = "rate"
_TIME = struct.Struct("d")
_BURST_SECONDS: Final = 1.0


class Rates:
    """The rates of all tenants that a worker has met."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._rates: dict[str, Rate] = {}

    def take(self, principal: Principal) -> None:
        """Count one request, if its key has a rate: see `Rate.take`."""
        if principal.rate is None:
            return
        rate = self._rates.get(principal.tenant)
        if rate is None:
            rate = self._rates[principal.tenant] = Rate(self._home / TENANTS / principal.tenant)
        rate.take(principal.rate)

    def close(self) -> None:
        """Forget them."""
        for rate in self._rates.values():
            rate.close()


class Rate:
    """The rate of one tenant, or of another, whose directory that is; `who` has it."""

    def __init__(self, directory: Path, who: str = "this key") -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._who = who
        self._file = os.open(directory / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, _TIME.size)
        self._map = mmap.mmap(self._file, _TIME.size)

    def take(self, rate: float) -> None:
        """Count one request; LimitExceeded where there were as many as there may be, with when to try again."""
        now = time.monotonic()
        fcntl.flock(self._file, fcntl.LOCK_EX)  # others hold it for microseconds
        try:
            (until,) = _TIME.unpack_from(self._map)
            if until > now + _BURST_SECONDS + 1 / rate:  # of before the machine was started, or of a lower rate
                until = now + _BURST_SECONDS
            until = max(until, now) + 1 / rate
            wait = until - now - max(_BURST_SECONDS, 1 / rate)
            if wait > 0:
                raise LimitExceeded(
                    f"{self._who} may make {rate:g} requests a second: try again later", limit="rate", retry_after=wait
                )
            _TIME.pack_into(self._map, 0, until)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Forget it."""
        self._map.close()
        os.close(self._file)
