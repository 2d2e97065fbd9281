"""All sessions of one sandbox."""

import builtins
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from cove import shell as shell_files
from cove.agent.protocol import SESSION
from cove.core.command import Invocation, check_timeout, encode_environment, encode_text
from cove.core.identifier import check_id, new_identifier
from cove.core.shell_protocol import loop_script
from cove.errors import FileNotFound, LimitExceeded, SessionAlreadyExists, SessionNotFound, SpawnFailed
from cove.local.threads import finished, in_thread, start_in_thread
from cove.model import SessionInfo
from cove.runtime.egress import Egress
from cove.runtime.files import Files
from cove.runtime.home import Place
from cove.runtime.processes import Processes
from cove.runtime.session import Session
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell import Shell
from cove.runtime.shell_channel import ShellChannel, open_channel
from cove.runtime.shell_snapshot import ShellSnapshot
from cove.runtime.spawner import Spawner
from cove.tasks import settled, shared

MOST_SESSIONS = 256


class Sessions:
    """Owns the sessions by id. An id is taken before the first await."""

    def __init__(
        self,
        spawner: Spawner,
        processes: Processes,
        place: Place,
        egress: Egress,
        *,
        make_files: Callable[[Callable[[], str]], Files],
        inside: str,
        prologue: str,
    ) -> None:
        self._spawner = spawner
        self._processes = processes
        self._place = place
        self._egress = egress
        self._make_files = make_files
        self._inside = inside
        self._prologue = prologue
        self._sessions: dict[str, Session | None] = {}
        self._shells = 0

    async def create(self, *, id: str | None, cwd: str, env: Mapping[str, str], timeout: float | None) -> Session:
        """A new session; one whose shell has ended is replaced."""
        id = new_identifier() if id is None else check_id("session", id)
        previous = self._sessions.get(id)
        if id in self._sessions and (previous is None or previous.is_running):
            raise SessionAlreadyExists(f"session {id} exists already: choose another id, or delete it", id=id)
        if len(self._sessions) >= MOST_SESSIONS and previous is None:
            raise LimitExceeded(f"this sandbox has {MOST_SESSIONS} sessions already: delete some")
        seconds = check_timeout(timeout)
        self._sessions[id] = None
        try:
            if previous is not None:
                await previous.delete()
            session = await self._open(id, cwd, env, seconds)
        except BaseException:
            self._sessions.pop(id, None)
            raise
        self._sessions[id] = session
        return session

    async def fork(self, parent: Session) -> Session:
        """A session with the state of another."""
        if len(self._sessions) >= MOST_SESSIONS:
            raise LimitExceeded(f"this sandbox has {MOST_SESSIONS} sessions already: delete some")
        id = new_identifier()
        self._sessions[id] = None
        try:
            session = self._wrap(id, await parent.copy_shell(), parent.timeout)
        except BaseException:
            self._sessions.pop(id, None)
            raise
        self._sessions[id] = session
        return session

    async def _open(self, id: str, cwd: str, env: Mapping[str, str], timeout: float | None) -> Session:
        start_shell = partial(self._start_shell, cwd, env)
        shell = SessionShell(await start_shell(None), start_shell, self._spawner, cwd=cwd, env=env)
        return self._wrap(id, shell, timeout)

    def _wrap(self, id: str, shell: SessionShell, timeout: float | None) -> Session:
        session = Session(
            id,
            shell,
            timeout=timeout,
            spawner=self._spawner,
            processes=self._processes,
            egress=self._egress,
            make_files=self._make_files,
            on_fork=self.fork,
            on_deleted=lambda: self._forget(session),
        )
        return session

    async def _start_shell(self, cwd: str, env: Mapping[str, str], state: ShellSnapshot | None) -> Shell:
        """A bash at its loop: fresh, or made from a snapshot."""
        self._shells += 1
        number = self._shells
        inside = f"{self._inside}/{number}"
        loops = await in_thread(_loops)
        path = self._place.shell / str(number)
        try:
            opening = start_in_thread(open_channel, path, inside, self._place.user_id)
            channel = await settled(opening, discard=self._discard)
        except OSError as error:
            if self._spawner.closed:  # and its directory is gone
                raise self._spawner.link.explain(False) from None
            raise SpawnFailed(f"the session's files cannot be made: {error.strerror}. Nothing was started.") from None
        ours = {"BASH_ENV": self._prologue, "__cove_directory": inside}
        if state is not None:
            ours["__cove_restored"] = "1"
        invocation = Invocation(
            argv=(b"/bin/bash", b"-s"),
            env=encode_environment(ours if state is not None else {**env, **ours}),
            cwd=b"/" if state is not None else encode_text(cwd, "cwd"),
            files={0: loops},
            snapshot=None if state is None else state.descriptor,
            snapshot_kind=SESSION if state is None else state.kind,
        )
        try:
            process = await self._spawner.spawn(invocation, _drop)
            try:
                await shared(process.started)
            except BaseException:
                await process.sweep()
                raise
            if not process.pid and not process.refusal:
                raise SpawnFailed("the session's shell was killed before it ran. Nothing was started.")
            if not process.pid:
                raise FileNotFound(process.refusal)
        except BaseException:
            channel.close()
            await finished(channel.remove)
            raise
        return Shell(process, channel, self._spawner)

    def _discard(self, channel: ShellChannel) -> None:
        """Free the channel of a caller that is gone."""
        channel.close()
        self._spawner.background.start(in_thread(channel.remove))

    def get(self, id: str) -> Session:
        """The session with that id."""
        session = self._sessions.get(check_id("session", id))
        if session is None:
            raise SessionNotFound(f"there is no session {id} in this sandbox", id=id)
        return session

    def list(self) -> builtins.list[SessionInfo]:
        """All of them, oldest first."""
        return [session.info() for session in self._sessions.values() if session is not None]

    async def hold_idle(self) -> dict[int, Session]:
        """Keep all whose shells wait as they are, by their pids inside. The caller lets each of them go."""
        found = {}
        for session in [each for each in self._sessions.values() if each is not None]:
            pid = await session.hold()
            if pid is not None:
                found[pid] = session
        return found

    def close(self) -> None:
        """Free what all of them held, after the sandbox has ended."""
        for session in self._sessions.values():
            if session is not None:
                session.close()
        self._sessions.clear()

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]


def _drop(stream: int, data: bytes) -> None:
    """Discard what the loop itself prints (a trace, a DEBUG trap): it belongs to no command."""


@cache
def _loops() -> bytes:
    return loop_script((Path(shell_files.__file__).parent / "loop.bash").read_text()).encode()
