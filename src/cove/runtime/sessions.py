"""All sessions of one sandbox."""

import builtins
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
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
from cove.runtime.kept_sessions import Kept, SleepingSession, keep_sessions
from cove.runtime.processes import Processes
from cove.runtime.session import Session
from cove.runtime.session_shell import SessionShell
from cove.runtime.shell import Shell
from cove.runtime.shell_channel import ShellChannel, open_channel
from cove.runtime.shell_snapshot import ShellSnapshot
from cove.runtime.spawner import Spawner
from cove.tasks import settled, shared, together

MOST_SESSIONS = 256

log = logging.getLogger("cove.runtime")


class Sessions:
    """Owns the sessions by id. An id is taken before the first await."""

    def __init__(
        self,
        spawner: Spawner,
        processes: Processes,
        place: Place,
        egress: Egress,
        *,
        make_files: Callable[[Callable[[], str], bytes], Files],
        inside: str,
        prologue: str,
    ) -> None:
        self.spawner = spawner
        self.processes = processes
        self.egress = egress
        self._place = place
        self.make_files = make_files
        self._inside = inside
        self._prologue = prologue
        self._sessions: dict[str, Session | None] = {}
        self.is_ending = False
        self._shells = 0

    async def create(
        self, *, id: str | None, cwd: str, env: Mapping[str, str], timeout: float | None, user: bytes = b""
    ) -> Session:
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
                await previous.remove()
            return self._take_in(await self._open(id, cwd, env, seconds, user))
        except BaseException:
            self._sessions.pop(id, None)
            raise

    def _take_in(self, session: Session) -> Session:
        """One whose sandbox has begun to end meanwhile would end with it, and nobody would bring it back."""
        if self.is_ending or self.spawner.closed:
            session.close()
            raise self.spawner.link.explain(False)
        self._sessions[session.id] = session
        return session

    async def fork(self, parent: Session) -> Session:
        """A session with the state of another."""
        if len(self._sessions) >= MOST_SESSIONS:
            raise LimitExceeded(f"this sandbox has {MOST_SESSIONS} sessions already: delete some")
        id = new_identifier()
        self._sessions[id] = None
        try:
            cwd, env = parent.origin
            shell = await parent.copy_shell()
            user = parent.user
            return self._take_in(Session(id, self, shell, cwd=cwd, env=env, timeout=parent.timeout, user=user))
        except BaseException:
            self._sessions.pop(id, None)
            raise

    async def _open(self, id: str, cwd: str, env: Mapping[str, str], timeout: float | None, user: bytes) -> Session:
        shell = await self.open_shell(cwd, env, None, user)
        return Session(id, self, shell, cwd=cwd, env=env, timeout=timeout, user=user)

    async def open_shell(
        self, cwd: str, env: Mapping[str, str], state: ShellSnapshot | None, user: bytes
    ) -> SessionShell:
        """A shell at its loop: fresh, or made from a snapshot."""
        start_shell = partial(self._start_shell, cwd, env, user or self.spawner.user)
        return SessionShell(await start_shell(state), start_shell, self.spawner, cwd=cwd, env=env)

    def wake(self, sessions: "Iterable[Session]") -> None:
        """Take over the sessions of the jail before this one: they sleep until they are used."""
        for session in sessions:
            session.wake_in(self)
            self._sessions[session.id] = session

    def restore(self, sleeping: Iterable[SleepingSession]) -> None:
        """Make the sessions that a process before this one has kept."""
        for each in sleeping:
            kept = each.kept
            self._sessions[kept.id] = Session(
                kept.id,
                self,
                None,
                cwd=os.fsdecode(kept.directory),
                env=kept.variables(),
                timeout=kept.timeout,
                sleeping=each,
                user=kept.user,
            )

    async def keep(self, directory: Path, seconds: float) -> "builtins.list[tuple[Session, SleepingSession]]":
        """Keep in that directory what brings the sessions back; returns those that can sleep when the jail has ended.

        Where nothing can be written, as on a full disk, they come back as they were created.
        """
        held = await self.hold_idle()
        try:
            found = await self.capture(held, seconds)
        finally:
            _let_go(held)
        if not found:
            return []
        try:
            sleeping = await in_thread(keep_sessions, directory, [each for _, each in found])
        except OSError as error:
            log.error("cannot keep the state of sessions: %s", error)
            sleeping = [SleepingSession(each) for _, (each, _) in found]
        finally:
            for _, (_, state) in found:
                if state is not None:
                    state.close()
        return [(session, each) for (session, _), each in zip(found, sleeping, strict=True)]

    async def capture(self, held: Collection[Session], seconds: float) -> "builtins.list[tuple[Session, Kept]]":
        """Have what brings the sessions back: of those that are `held` as they are now, of others as they were last.

        The caller closes the states.
        """
        living = self._living()
        kept: dict[str, Kept] = {}

        async def keep(session: Session) -> None:
            each = await session.keep(seconds, is_held=session in held)
            if each is not None:
                kept[session.id] = each

        try:
            await together(map(keep, living))
        except BaseException:
            for _, state in kept.values():
                if state is not None:
                    state.close()
            raise
        return [(session, kept[session.id]) for session in living if session.id in kept]

    def expel(self, reason: str) -> "builtins.list[Session]":
        """Let nothing more begin in any of them; returns those for `leave`."""
        living = self._living()
        for session in living:
            session.expel(reason)
        return living

    async def leave(
        self, expelled: "builtins.list[Session]", returning: Iterable[SleepingSession]
    ) -> "builtins.list[Session]":
        """End those that were expelled, now that nothing runs any more.

        Returns those that are to come back, whose turns are held until `come_back`; the others are gone.
        """
        ids = {each.kept.id for each in returning}
        await together(session.leave() if session.id in ids else session.remove() for session in expelled)
        return [session for session in expelled if session.id in ids]

    def come_back(self, left: "builtins.list[Session]", sleeping: Iterable[SleepingSession]) -> None:
        """Put these in the places of those that left: who holds one of them goes on with it.

        One that did not come back has ended. An id that somebody else took meanwhile is theirs.
        """
        kept = {each.kept.id: each for each in sleeping}
        for session in left:
            if session.id in kept and self._sessions.get(session.id, session) is session and not session.is_deleted:
                session.come_back(self, kept.pop(session.id))
                self._sessions[session.id] = session
            else:
                session.stay_away()
        for id, each in kept.items():
            if id in self._sessions:
                each.close()
            else:
                self.restore([each])

    async def _start_shell(self, cwd: str, env: Mapping[str, str], user: bytes, state: ShellSnapshot | None) -> Shell:
        """A bash at its loop: fresh, or made from a snapshot."""
        self._shells += 1
        number = self._shells
        inside = f"{self._inside}/{number}"
        loops = await in_thread(_loops)
        path = self._place.shell / str(number)
        try:
            owner, group = [int(each) for each in user.split(b":")[:2]] if user else (0, 0)
            place = self._place
            opening = start_in_thread(
                open_channel, path, inside, place.host_id(owner), place.host_id(group), place.visitor(owner)
            )
            channel = await settled(opening, discard=self._discard)
        except OSError as error:
            if self.spawner.closed:  # and its directory is gone
                raise self.spawner.link.explain(False) from None
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
            user=user,
        )
        try:
            process = await self.spawner.spawn(invocation, _drop)
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
        return Shell(process, channel, self.spawner, user)

    def _discard(self, channel: ShellChannel) -> None:
        """Free the channel of a caller that is gone."""
        channel.close()
        self.spawner.background.start(in_thread(channel.remove))

    def get(self, id: str) -> Session:
        """The session with that id."""
        session = self._sessions.get(check_id("session", id))
        if session is None:
            raise SessionNotFound(f"there is no session {id} in this sandbox", id=id)
        return session

    def list(self) -> builtins.list[SessionInfo]:
        """All of them, oldest first."""
        return [session.info() for session in self._sessions.values() if session is not None]

    async def hold_idle(self) -> "builtins.list[Session]":
        """Keep all that wait or sleep as they are. The caller lets each of them go."""
        held: builtins.list[Session] = []

        async def hold(session: Session) -> None:
            if await session.hold():
                held.append(session)

        try:
            await together(map(hold, self._living()))
        except BaseException:
            _let_go(held)
            raise
        return held

    def _living(self) -> "builtins.list[Session]":
        return [session for session in self._sessions.values() if session is not None]

    def close(self) -> None:
        """Free what all of them held, after the sandbox has ended."""
        for session in self._sessions.values():
            if session is not None:
                session.close()
        self._sessions.clear()

    def forget(self, session: Session) -> None:
        """Drop a session that was deleted."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]


def _let_go(held: Iterable[Session]) -> None:
    for session in held:
        session.let_go(moved=False)


def _drop(stream: int, data: bytes) -> None:
    """Discard what the loop itself prints (a trace, a DEBUG trap): it belongs to no command."""


@cache
def _loops() -> bytes:
    return loop_script((Path(shell_files.__file__).parent / "loop.bash").read_text()).encode()
