"""Pause a jail: freeze everything in it, and let its clock stand still.

The clock is stopped before anything freezes and goes on after everything has thawed, so that nothing that cannot answer
is taken for dead. A freeze that fails leaves everything running (runtime/freeze). What runs inside ends with this
process also while it is frozen: SIGKILL, which bwrap gets when its parent dies, reaches what is frozen or stopped.
"""

from cove.errors import ValidationFailed
from cove.local.threads import in_thread
from cove.runtime.freeze import Frozen, freeze
from cove.runtime.jail import Jail


class Freezer:
    """Freezes one jail. The caller shields both from cancel, and calls one at a time."""

    def __init__(self, jail: Jail) -> None:
        self._jail = jail
        self._frozen: Frozen | None = None

    async def freeze(self) -> None:
        """Freeze everything. Raises SandboxUnavailable when that cannot be done in time; then nothing is."""
        if not self._jail.is_confined:
            raise ValidationFailed("a sandbox without isolation cannot be paused: nothing could hold its processes")
        clock = self._jail.link.clock
        clock.stop()
        try:
            self._frozen = await in_thread(freeze, self._jail.groups, self._jail.pid)
        except BaseException:
            clock.go_on()
            raise

    async def thaw(self) -> None:
        """Let everything go on. Idempotent."""
        if self._frozen is not None:
            await in_thread(self._frozen.thaw)
            self._frozen = None
        self._jail.link.clock.go_on()
