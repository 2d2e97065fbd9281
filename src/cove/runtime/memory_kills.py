"""Attribute out-of-memory (OOM) kills to processes, from a counter of the whole sandbox.

Theory of operation. The kernel picks the largest process, ends it with SIGKILL and counts that, for the sandbox
as a whole. A process that ends by a SIGKILL nobody here sent (or with 137, which is how a shell says it) and finds
the counter risen since anybody last looked is the offender. Several may be ended in one go, so whoever ends so
shortly after a rise counts too. To keep an old rise from being taken for a new one, everybody who fails looks.
"""

import asyncio

from cove.local.threads import in_thread
from cove.runtime.cgroups import SandboxGroups

_TOGETHER_SECONDS = 0.25


class MemoryKills:
    """The kills of one sandbox."""

    def __init__(self, groups: SandboxGroups) -> None:
        self._groups = groups
        self._seen = 0
        self._last_rise = float("-inf")

    async def was_one(self) -> bool:
        """Return whether a process that has just ended as if by SIGKILL was ended by the OOM killer."""
        await self.look()
        return asyncio.get_running_loop().time() - self._last_rise < _TOGETHER_SECONDS

    async def look(self) -> None:
        """Read the counter, and note whether it has risen."""
        try:
            count = await in_thread(self._groups.count_memory_kills)
        except OSError:
            return  # the sandbox is ending, and its group with it
        if count > self._seen:
            self._seen = count
            self._last_rise = asyncio.get_running_loop().time()
