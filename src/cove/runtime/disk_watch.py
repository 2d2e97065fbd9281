"""Enforce a disk limit where no file system does: measure, and end what runs when the limit is passed.

Files that have a name, files without one that can be looked at, and logs are counted. Where something may be held that
cannot be looked at, the sandbox is charged with all that the disk has lost since everything could be: whoever hides
what it holds pays for what others write.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cove.core.jail import WORKSPACE
from cove.linux.disk_usage import DiskUsage, measure_disk
from cove.linux.unlinked_files import measure_unlinked
from cove.local.threads import in_thread
from cove.model import Limits
from cove.runtime.notify import Notify

# The free space of the disk is looked at this often, which is cheap. The files are counted when it has shrunk by as
# much as would matter, and otherwise from time to time, but never for more than a small part of the time.
# While nothing runs inside, only calls of the file API write.
_LOOK_SECONDS = 0.25
_IDLE_SECONDS = 2.0
_COUNT_SECONDS = 5.0
_COUNTING_SHARE = 20.0


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes and files that are free on the disk."""

    bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The sandbox as the watch sees it. `activity` is announced when something is started; `pids` blocks."""

    agent_pid: int
    activity: Notify
    is_busy: Callable[[], bool]
    pids: Callable[[], Sequence[int]]
    log_bytes: Callable[[], int]
    end_everything: Callable[[str], Awaitable[None]]


@dataclass(slots=True)
class DiskWatch:
    """One sandbox's watch of its files, or of a volume that it uses.

    Who has passed the limit is ended; who then only reads or removes is left alone.

    `_known` is what was used and free when everything could last be looked at.
    """

    directories: Callable[[], Sequence[Path]]
    limits: Limits
    sandbox: Watched
    volume: str | None = None
    measure: Callable[[list[str]], DiskUsage] = measure_disk
    _last: DiskUsage = field(default_factory=DiskUsage)
    _free: Space = Space(0, 0)
    _known: tuple[DiskUsage, Space] | None = None
    _count_at: float = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            if await in_thread(self._is_due, asyncio.get_running_loop().time()):
                began = asyncio.get_running_loop().time()
                usage = await in_thread(self._count, self.sandbox.log_bytes())
                await self._judge(usage)
                now = asyncio.get_running_loop().time()
                self._count_at = now + max(_COUNT_SECONDS, (now - began) * _COUNTING_SHARE)
            await self._pause()

    async def _pause(self) -> None:
        if self.sandbox.is_busy():
            await asyncio.sleep(_LOOK_SECONDS)  # no event tells of bytes written: statvfs(3) is the cheapest sign
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_SECONDS):
                await self.sandbox.activity.wait()

    def _is_due(self, now: float) -> bool:
        """Return whether half as much was written on this disk, by anybody, as the sandbox may still write."""
        if now >= self._count_at:
            return True
        lost = self._look_since(self._free)
        bytes_left = float("inf") if self.limits.disk is None else self.limits.disk - self._last.bytes
        files_left = float("inf") if self.limits.inodes is None else self.limits.inodes - self._last.files
        return 2 * lost.bytes > bytes_left or 2 * lost.files > files_left

    def _look(self) -> Space:
        found = os.statvfs(self.directories()[0])
        return Space(found.f_bavail * found.f_frsize, found.f_favail)

    def _look_since(self, before: Space) -> Space:
        now = self._look()
        return Space(before.bytes - now.bytes, before.files - now.files)

    def _count(self, log_bytes: int) -> DiskUsage:
        self._free = self._look()
        usage = self.measure([str(path) for path in self.directories()])
        held = measure_unlinked(self.sandbox.pids(), self._devices(), self.sandbox.agent_pid)
        usage.bytes += held.bytes + log_bytes
        usage.files += len(held.sizes)
        if held.is_complete or self._known is None:
            self._known = replace(usage), self._free
            return usage
        return self._charge(usage, *self._known)

    def _devices(self) -> set[int]:
        """Return the devices on which its files are: those of an overlay are on one of its own."""
        found = {os.stat(self.directories()[0]).st_dev}
        with suppress(OSError):
            found.add(os.stat(f"/proc/{self.sandbox.agent_pid}/root{WORKSPACE}").st_dev)
        return found

    def _charge(self, usage: DiskUsage, known: DiskUsage, free: Space) -> DiskUsage:
        """Bytes alone: there are file systems on which the number of files that could be made tells nothing."""
        usage.bytes = max(usage.bytes, known.bytes + self._look_since(free).bytes)
        return usage

    async def _judge(self, usage: DiskUsage) -> None:
        before, self._last = self._last, usage
        reason = self._reason(usage)
        has_grown = usage.bytes > before.bytes or usage.files > before.files
        if reason is not None and (has_grown or self._reason(before) is None):
            await self.sandbox.end_everything(reason)

    def _reason(self, usage: DiskUsage) -> str | None:
        if self.limits.disk is not None and usage.bytes > self.limits.disk:
            if self.volume is not None:
                return f"volume {self.volume} holds {usage.bytes} bytes, its size is {self.limits.disk}"
            return f"the sandbox's files take {usage.bytes} bytes, its limit is {self.limits.disk}"
        if self.limits.inodes is not None and usage.files > self.limits.inodes:
            return f"the sandbox has {usage.files} files, its limit is {self.limits.inodes}"
        if usage.is_partial:
            return "the sandbox has directories that cannot be measured: unreadable, or nested too deep"
        return None
