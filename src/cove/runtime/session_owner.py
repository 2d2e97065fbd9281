"""Interface of the sessions of one jail, as each of them sees it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from cove.runtime.egress import Egress
from cove.runtime.files import Files
from cove.runtime.processes import Processes
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell_snapshot import ShellSnapshot
from cove.runtime.spawner import Spawner

if TYPE_CHECKING:
    from cove.runtime.session import Session


class SessionOwner(Protocol):
    """The sessions of one jail: what a session is given there."""

    spawner: Spawner
    processes: Processes
    egress: Egress

    def make_files(self, base: Callable[[], str], user: bytes) -> Files:
        """The files of a session, as that user has them."""

    async def open_shell(
        self, cwd: str, env: Mapping[str, str], state: ShellSnapshot | None, user: bytes
    ) -> SessionShell:
        """A shell at its loop: fresh, or made from a snapshot."""

    async def fork(self, parent: "Session") -> "Session":
        """A session with the state of another."""

    def forget(self, session: "Session") -> None:
        """Drop a session that was deleted."""
