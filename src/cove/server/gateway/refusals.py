"""Announce refused requests: one line for each class, at most every few seconds, with how many there were.

All workers count, and any of them announces. What was announced last, and when, is in a file that they share behind a
lock, so that each refused request is in exactly one line.
"""

import asyncio
import fcntl
import os
import re
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from cove.local.threads import in_thread
from cove.server.announcement import Event, LogFormat, announce
from cove.server.counters import counts_path, read_counts

SECONDS: Final = 5.0
_FILE: Final = "announced"
_REFUSED = re.compile(r'cove_refused_total\{code="([A-Z_]+)",limit="([a-z_]*)"\}')


class _Announced(msgspec.Struct):
    """Announcements until now: when the last was, on the machine's monotonic clock, and how many of each class."""

    at: float = 0.0
    counts: dict[str, int] = {}


class Refusals:
    """Those of one worker, which it announces together with those of others."""

    def __init__(self, home: Path, form: LogFormat) -> None:
        self._home = home
        self._form = form
        self._some = asyncio.Event()

    def note(self) -> None:
        """Note that there is something to announce."""
        self._some.set()

    async def run(self) -> None:
        """Announce for as long as the worker serves."""
        while True:
            await self._some.wait()
            self._some.clear()
            wait = await in_thread(self.announce)
            if wait > 0:
                self._some.set()
            await asyncio.sleep(wait or SECONDS)

    def announce(self, *, is_last: bool = False) -> float:
        """Announce what nobody has, and return 0; or, when that was done just now, after how long to try. Blocks."""
        path = counts_path(self._home) / _FILE
        with closing(open(path, "r+b", buffering=0, opener=_open_private)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            data = file.read()
            last = msgspec.json.decode(data, type=_Announced) if data else _Announced()
            now = time.monotonic()
            if not is_last and last.at <= now < last.at + SECONDS:
                return last.at + SECONDS - now
            counts = self._announce_since(last.counts)
            file.seek(0)
            file.truncate()
            file.write(msgspec.json.encode(_Announced(now, counts)))
        return 0.0

    def _announce_since(self, before: dict[str, int]) -> dict[str, int]:
        counts = {name: int(number) for name, number in read_counts(self._home).items() if _REFUSED.fullmatch(name)}
        for name, number in counts.items():
            count = number - before.get(name, 0)
            found = _REFUSED.fullmatch(name)
            if count > 0 and found is not None:
                code, limit = found[1], found[2]
                which = f"{code} ({limit})" if limit else code
                message = f"Refused {count} request{'s' if count > 1 else ''} with {which}."
                announce(self._form, Event.REFUSED, message, code=code, limit=limit or None, count=count)
        return counts


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
