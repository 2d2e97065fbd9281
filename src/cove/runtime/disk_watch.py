"""Holds a limit on the disk where no file system does: measures, and ends what runs when the limit is passed."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cove.linux.disk_usage import DiskUsage, measure_disk, measure_unlinked
from cove.model import Limits
from cove.runtime.threads import in_thread

# The free space of the disk is looked at this often, which is cheap. The files are counted when it has shrunk by as
# much as would matter, and otherwise from time to time, but never for more than a small part of the time.
_LOOK_SECONDS = 0.25
_COUNT_SECONDS = 5.0
_COUNTING_SHARE = 20.0


@dataclass(slots=True)
class DiskWatch:
    """One sandbox's watch. Who has passed the limit is ended; who then only reads or removes is left alone."""

    directories: Sequence[Path]
    limits: Limits
    pids: Callable[[], Sequence[int]]
    stop: Callable[[str], Awaitable[None]]
    _last: DiskUsage = field(default_factory=DiskUsage)
    _free: tuple[int, int] = (0, 0)
    _count_at: float = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            if await in_thread(self._is_due, asyncio.get_running_loop().time()):
                began = asyncio.get_running_loop().time()
                usage = await in_thread(self._count)
                await self._judge(usage)
                now = asyncio.get_running_loop().time()
                self._count_at = now + max(_COUNT_SECONDS, (now - began) * _COUNTING_SHARE)
            await asyncio.sleep(_LOOK_SECONDS)

    def _is_due(self, now: float) -> bool:
        """Whether half as much was written on this disk, by anybody, as the sandbox may still write."""
        if now >= self._count_at:
            return True
        written, made = (before - left for before, left in zip(self._free, self._look(), strict=True))
        bytes_left = float("inf") if self.limits.disk is None else self.limits.disk - self._last.bytes
        files_left = float("inf") if self.limits.inodes is None else self.limits.inodes - self._last.files
        return 2 * written > bytes_left or 2 * made > files_left

    def _look(self) -> tuple[int, int]:
        found = os.statvfs(self.directories[0])
        return found.f_bavail * found.f_frsize, found.f_favail

    def _count(self) -> DiskUsage:
        self._free = self._look()
        usage = measure_disk([str(path) for path in self.directories])
        usage.bytes += measure_unlinked(self.pids(), os.stat(self.directories[0]).st_dev)
        return usage

    async def _judge(self, usage: DiskUsage) -> None:
        before, self._last = self._last, usage
        reason = self._reason(usage)
        has_grown = usage.bytes > before.bytes or usage.files > before.files
        if reason is not None and (has_grown or self._reason(before) is None):
            await self.stop(reason)

    def _reason(self, usage: DiskUsage) -> str | None:
        if self.limits.disk is not None and usage.bytes > self.limits.disk:
            return f"the sandbox's files take {usage.bytes} bytes, its limit is {self.limits.disk}"
        if self.limits.inodes is not None and usage.files > self.limits.inodes:
            return f"the sandbox has {usage.files} files, its limit is {self.limits.inodes}"
        if usage.is_partial:
            return "the sandbox has directories that cannot be measured: unreadable, or nested too deep"
        return None
