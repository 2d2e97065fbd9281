"""The surfaces of one jail: processes, sessions, terminals, code contexts, files, git and backups. They end with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cove.core.command import build_invocation
from cove.model import JournalKind, Limits, Outcome
from cove.runtime.backup_store import BackupStore
from cove.runtime.backups import Backups
from cove.runtime.code_contexts import CodeContexts
from cove.runtime.disk import MOUNT_POINT
from cove.runtime.disk_watch import Watched
from cove.runtime.egress import Egress
from cove.runtime.errand import Errands
from cove.runtime.file_access import FileAccess
from cove.runtime.files import Files, FindUser
from cove.runtime.git import Git
from cove.runtime.home import Place
from cove.runtime.isolation import Inside
from cove.runtime.jail import Jail
from cove.runtime.processes import LOG_BYTES, LOG_SHARES, Processes
from cove.runtime.programs import PROLOGUE
from cove.runtime.sessions import Sessions
from cove.runtime.spawner import Spawner
from cove.runtime.terminals import Terminals
from cove.runtime.usage import processes_of

# The id of the process that is started with the sandbox.
STARTUP = "startup"


class Surfaces:
    """All that is built on one jail. `base` gives the directory of calls without one, `env` their variables."""

    def __init__(
        self,
        jail: Jail,
        spawner: Spawner,
        egress: Egress,
        place: Place,
        inside: Inside,
        limits: Limits,
        *,
        base: Callable[[], str],
        env: Callable[[], Mapping[str, str]],
        find_user: FindUser,
    ) -> None:
        self._jail = jail
        self.spawner = spawner
        self.egress = egress
        spawner.bash = tuple(word.encode() for word in inside.bash)
        spawner.user = inside.user
        logs = place.path / MOUNT_POINT if jail.groups.has_disk else place.logs
        self.processes = Processes(spawner, logs, LOG_BYTES if limits.disk is None else limits.disk // LOG_SHARES)
        access = FileAccess(jail.link, inside.user)
        self._errands = Errands(spawner, inside.interpreter, inside.agent)
        self.files = files = Files(access, self._errands, base, find_user)
        self.git = Git(spawner, access, self._errands, base, env)
        self.sessions = Sessions(
            spawner,
            self.processes,
            place,
            egress,
            make_files=lambda base, user: files.of_user(user, base),
            inside=inside.shell,
            prologue=f"{inside.agent}/{PROLOGUE}",
        )
        self.terminals = Terminals(spawner)
        interpreters = replace(inside.interpreters, home=env()["HOME"])
        self.contexts = CodeContexts(spawner, interpreters, limit=limits.contexts)

    def make_backups(self, store: BackupStore, base: Callable[[], str], id: Callable[[], str]) -> Backups:
        """The backups of a sandbox, by its id."""
        return Backups(self._errands, store, base, id)

    def watched(self) -> Watched:
        """The jail, as who watches its disk sees it."""
        return Watched(
            agent_pid=self._jail.agent_pid,
            activity=self.spawner.activity,
            is_busy=self.spawner.is_busy,
            pids=lambda: processes_of(self._jail.groups, self._jail.pid),
            log_bytes=lambda: self.processes.log_bytes,
            end_everything=self._end_everything,
        )

    async def _end_everything(self, reason: str) -> None:
        """End what has used more disk than it may."""
        self.spawner.link.journal.record(JournalKind.LIMIT, reason=reason[:200])
        await self.spawner.end_everything(reason)

    async def run_startup(self, command: Sequence[str], *, cwd: str, env: Mapping[str, str]) -> None:
        """Start what the sandbox is to run from its start on, if there is anything."""
        if command:
            invocation = build_invocation(command, cwd=cwd, env=env)
            await self.processes.start(
                command, invocation, id=STARTUP, timeout=None, stdin=False, keep=True, lossless=False
            )

    async def close(self, outcome: Outcome) -> None:
        """End all of them with that outcome, after the jail was killed."""
        await self.egress.close()
        await self.spawner.close(outcome)
        await self.terminals.close()
        await self.contexts.close()
        self.sessions.close()
        await self.processes.close()
