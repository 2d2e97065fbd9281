"""A jail's namespaces, opened while its agent is pinned: no process that has its pid later is taken for it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from cove.attach.actions import Namespace
from cove.errors import SandboxUnavailable, ValidationFailed
from cove.linux.pidfd import open_fact

# ioctl_nsfs(2): the user namespace that owns another namespace. With --disable-userns the agent's own is another one,
# which owns nothing.
_NS_GET_USERNS = 0xB701


@dataclass(frozen=True, slots=True)
class Target:
    """The agent of a jail: a pidfd, its pid on the host, and the host user it runs as if that is not ours."""

    pidfd: int
    pid: int
    user_id: int | None

    @contextmanager
    def open(self, wanted: set[Namespace]) -> Iterator[dict[Namespace, int]]:
        """Hold these namespaces of it. Raises SandboxUnavailable when it has ended."""
        with ExitStack() as stack:
            yield {name: self._open(name, stack) for name in wanted}

    def _open(self, name: Namespace, stack: ExitStack) -> int:
        opened = self._hold(stack, Namespace.MOUNTS if name is Namespace.USER else name)
        if name is not Namespace.USER:
            return opened
        owner = fcntl.ioctl(opened, _NS_GET_USERNS)
        stack.callback(os.close, owner)
        return owner

    def _hold(self, stack: ExitStack, name: Namespace) -> int:
        try:
            opened = open_fact(self.pidfd, self.pid, f"ns/{name}")
        except ProcessLookupError as error:
            raise SandboxUnavailable("the sandbox has ended: nothing was attached") from error
        stack.callback(os.close, opened)
        if os.path.samestat(os.fstat(opened), os.stat(f"/proc/self/ns/{name}")):
            raise ValidationFailed(f"the sandbox has no {_NOUNS[name]} of its own: nothing can be attached to it")
        return opened


_NOUNS = {Namespace.MOUNTS: "file system", Namespace.NETWORK: "network"}
