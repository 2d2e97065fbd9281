"""A living sandbox: the calls of its users."""

import builtins
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec

from cove.api import AsyncSandbox, CodeContext, Process, Terminal
from cove.core.command import Invocation, build_invocation, check_timeout, merge_environment
from cove.core.mount import normalise
from cove.errors import ValidationFailed
from cove.images.commit import commit_image
from cove.images.reference import parse_reference
from cove.images.store import open_images
from cove.local.threads import finished, in_thread, in_transfer
from cove.model import (
    CodeContextInfo,
    CodeEvent,
    ExecResult,
    Execution,
    FileChange,
    Isolation,
    JournalKind,
    Outcome,
    ResetReport,
    SandboxSpec,
    SessionInfo,
    TerminalInfo,
)
from cove.model.snapshot import check_snapshot_name
from cove.model.spec import HOST_IMAGE, HasId, check_labels
from cove.runtime.code_context import collect
from cove.runtime.code_contexts import run_borrowed
from cove.runtime.exec import run_command
from cove.runtime.executor import Weighed
from cove.runtime.gate import gated
from cove.runtime.image import Image, describe
from cove.runtime.kept_sessions import close_sessions
from cove.runtime.sandbox_lifecycle import SandboxLifecycle
from cove.runtime.session import Session
from cove.runtime.snapshot import Snapshot
from cove.runtime.state import check_system
from cove.runtime.tracing import traced
from cove.runtime.users import environment_of

MOST_COPIES = 1000


@traced("sandbox", AsyncSandbox)
@gated()
class Sandbox(SandboxLifecycle):
    """A running sandbox."""

    async def snapshot(self, name: str | None = None, labels: Mapping[str, str] | None = None) -> Snapshot:
        self._check_files()
        check_snapshot_name(name)
        check_labels(labels or {})
        with self._ending.telling("no snapshot was made"):
            made = await self._state.snapshot(name, labels or {}, self._spec.env, self._spec.workdir)
        self.journaling.record(JournalKind.SNAPSHOT, subject=made.id)
        return Snapshot(self.layers.store, made.info(None))

    async def commit(self, name: str) -> Image:
        self._check_files()
        parse_reference(name)
        if self.layers.place.system is None:
            raise ValidationFailed(
                "this sandbox stands on the host's system, which is not its own: make images of sandboxes on an image"
            )
        snapshot = await self._state.snapshot(None, {}, self._spec.env, self._spec.workdir, self._place.key)
        try:
            images = await in_thread(open_images, self._machine.home.path, self.layers.store)
            record = await in_transfer(lambda check: commit_image(images, snapshot, name, check))
            self.journaling.record(JournalKind.SNAPSHOT, operation="commit", target=name[:1024])
            return Image(images, describe(record))
        finally:
            await finished(self._forget_snapshot, snapshot.id)

    async def restore(self, snapshot: str | HasId) -> None:
        id = snapshot if isinstance(snapshot, str) else snapshot.id
        self._check_files()
        check_system(await in_thread(self.layers.store.find, id), self.layers.place.system)
        with self._ending.telling("create another one from the snapshot"):
            await self._state.restore(id, lambda: self._quiet("the sandbox goes back to a snapshot", id))
        self.journaling.record(JournalKind.RESTORED, subject=id)

    async def fork(self, count: int = 1) -> builtins.list[AsyncSandbox]:
        self._check_files()
        if not 0 < count <= MOST_COPIES:
            raise ValidationFailed(f"count must be from 1 to {MOST_COPIES}, not {count!r}")
        with self._ending.telling("there are no copies. Fork a sandbox that is kept, or make them from a snapshot."):
            return await self._fork(count)

    async def _fork(self, count: int) -> builtins.list[AsyncSandbox]:
        made = builtins.list[str]()

        async def seal() -> SandboxSpec:
            snapshot = await self._state.snapshot(None, {}, self._spec.env, self._spec.workdir, self._place.key)
            made.append(snapshot.id)
            return self._spec_of_copy(snapshot.id)

        try:
            copies = await self.on_fork(seal, count)
            for copy in copies:
                self.journaling.record(JournalKind.FORKED, subject=copy.id)
            return copies
        finally:
            for id in made:
                await finished(self._forget_snapshot, id)

    def _spec_of_copy(self, snapshot: str) -> SandboxSpec:
        """The snapshot brings the image and its user."""
        return msgspec.structs.replace(self._spec, snapshot=snapshot, image=HOST_IMAGE, user=None)

    def _forget_snapshot(self, id: str) -> None:
        self.layers.store.forget(id)
        self.layers.store.collect()

    async def changes(self, since: str | HasId | None = None) -> builtins.list[FileChange]:
        self._check_files()
        return await self._state.comparison.changes(_id(since))

    async def diff(self, path: str | None = None, since: str | HasId | None = None) -> str:
        self._check_files()
        chosen = b"/" if path is None else os.fsencode(normalise(self._resolve(path)))
        return await self._state.comparison.diff(chosen, _id(since))

    async def begin_transaction(self, lease: float = 30.0) -> str:
        self._check_files()
        with self._ending.telling("no transaction was begun"):
            return await self._state.begin_transaction(lease)

    async def renew_transaction(self, id: str, lease: float = 30.0) -> None:
        self._check_files()
        await self._state.renew_transaction(id, lease)

    async def commit_transaction(self, id: str) -> None:
        self._check_files()
        await self._state.commit_transaction(id)

    async def rollback_transaction(self, id: str) -> None:
        self._check_files()
        await self._state.rollback_transaction(id)
        self.journaling.record(JournalKind.RESTORED, operation="transaction", subject=id[:64])

    async def reset(self) -> ResetReport:
        self._check_files()
        with self._ending.telling("create another one"):
            report = await self._state.reset(lambda: self._quiet("the sandbox is reset"), self.forget_changes)
        self.journaling.record(JournalKind.RESET)
        shared = await self.files.list("/dev/shm", hidden=True)
        return msgspec.structs.replace(report, processes=self._surfaces.spawner.count_busy(), shared_memory=len(shared))

    @asynccontextmanager
    async def _quiet(self, reason: str, snapshot: str | None = None) -> AsyncGenerator[None, None]:
        """End everything that runs but the agent; when this is left, there are the sessions of the snapshot, if any.

        When the body fails there are none. The caller shields it from cancel.
        """
        expelled, left = self._surfaces.sessions.expel(reason), builtins.list[Session]()
        sleeping = await self._sessions.in_snapshot(snapshot)
        try:
            await self._surfaces.spawner.end_everything(reason)
            await self._surfaces.contexts.close()
            left = await self._surfaces.sessions.leave(expelled, sleeping)
            yield
        except BaseException:
            close_sessions(sleeping)
            sleeping = []
            raise
        finally:
            self._surfaces.sessions.come_back(left, sleeping)

    def _check_files(self) -> None:
        self._check_running()
        if self._spec.isolation is Isolation.NONE:
            raise ValidationFailed("with isolation='none' the files are the host's: there is nothing to go back to")

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        max_output: int | None = None,
        user: str | None = None,
    ) -> ExecResult:
        invocation = await self._invocation(command, cwd, env, user)
        mark = self._surfaces.egress.mark()
        with self.journaling.call(JournalKind.EXEC, command) as entry:
            result = await run_command(
                self._surfaces.spawner,
                command,
                invocation,
                timeout=check_timeout(timeout),
                stdin=stdin,
                max_output=max_output,
                entry=entry,
            )
        if result.outcome is Outcome.KILLED and self._ending.closing.is_started:
            raise self._ending.explain(True)
        return result if mark is None else await self._surfaces.egress.add_denials(result, mark)

    async def start_process(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        keep: bool = True,
        lossless: bool = False,
        user: str | None = None,
    ) -> Process:
        invocation = await self._invocation(command, cwd, env, user)
        return await self._surfaces.processes.start(
            command, invocation, id=id, timeout=check_timeout(timeout), stdin=stdin, keep=keep, lossless=lossless
        )

    async def get_process(self, id: str) -> Process:
        self._check_running()
        return self._surfaces.processes.get(id)

    async def list_processes(self) -> builtins.list[Process]:
        self._check_running()
        return [*self._surfaces.processes.list()]

    async def kill_process(self, id: str, signal: int | str = "TERM") -> None:
        self._check_running()
        await self._surfaces.processes.get(id).kill(signal)

    async def kill_all_processes(self, signal: int | str = "TERM") -> int:
        self._check_running()
        return await self._surfaces.processes.kill_all(signal)

    async def cleanup_processes(self) -> int:
        self._check_running()
        return self._surfaces.processes.cleanup()

    async def create_session(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> Session:
        self._check_running()
        who, by = await self._find_user(user)
        merged = merge_environment(self._env, who, env)
        return await self._surfaces.sessions.create(id=id, cwd=self._resolve(cwd), env=merged, timeout=timeout, user=by)

    async def get_session(self, id: str) -> Session:
        self._check_running()
        return self._surfaces.sessions.get(id)

    async def list_sessions(self) -> builtins.list[SessionInfo]:
        self._check_running()
        return self._surfaces.sessions.list()

    async def delete_session(self, id: str) -> None:
        self._check_running()
        await self._surfaces.sessions.get(id).delete()

    async def terminal(
        self,
        *,
        id: str | None = None,
        shell: str | Sequence[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        cols: int = 80,
        rows: int = 24,
        user: str | None = None,
    ) -> Terminal:
        command = [shell] if isinstance(shell, str) else shell or ["/bin/bash"]
        invocation = await self._invocation(command, cwd, {"TERM": "xterm-256color", **(env or {})}, user)
        return await self._surfaces.terminals.get_or_create(id, invocation, cols, rows)

    async def get_terminal(self, id: str) -> Terminal:
        self._check_running()
        return self._surfaces.terminals.get(id)

    async def list_terminals(self) -> builtins.list[TerminalInfo]:
        self._check_running()
        return self._surfaces.terminals.list()

    async def create_code_context(
        self,
        language: str = "python",
        *,
        id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> CodeContext:
        self._check_running()
        who, by = await self._find_user(user)
        merged, where = merge_environment(self._env, who, env), self._resolve(cwd)
        return await self._surfaces.contexts.create(language, id=id, cwd=where, env=merged, timeout=timeout, user=by)

    async def get_code_context(self, id: str) -> CodeContext:
        self._check_running()
        return self._surfaces.contexts.get(id)

    async def list_code_contexts(self) -> builtins.list[CodeContextInfo]:
        self._check_running()
        return self._surfaces.contexts.list()

    async def delete_code_context(self, id: str) -> None:
        self._check_running()
        await self._surfaces.contexts.get(id).delete()

    async def run_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> Execution:
        self._check_running()
        if context is not None:
            return await self._chosen(context).run(code, timeout=timeout)
        return await collect(self._run_borrowed(language, code, timeout))

    async def stream_code(
        self,
        code: str,
        *,
        context: CodeContext | str | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> AsyncGenerator[CodeEvent, None]:
        self._check_running()
        if context is not None:
            async with aclosing(self._chosen(context).stream(code, timeout=timeout)) as events:
                async for event in events:
                    yield event
            return
        async with aclosing(self._run_borrowed(language, code, timeout)) as weighed:
            async for event, _ in weighed:
                yield event

    def prepare_code(self) -> None:
        """Have a clean Python ready soon: for a sandbox that waits to be used."""
        self._check_running()
        self._surfaces.contexts.prepare(cwd=self._resolve(None), env=self._env)

    def _chosen(self, context: CodeContext | str) -> CodeContext:
        return self._surfaces.contexts.get(context) if isinstance(context, str) else context

    def _run_borrowed(self, language: str, code: str, timeout: float | None) -> AsyncGenerator[Weighed, None]:
        cwd = self._resolve(None)
        return run_borrowed(self._surfaces.contexts, language, code, cwd=cwd, env=self._env, timeout=timeout)

    async def _invocation(
        self,
        command: str | Sequence[str],
        cwd: str | None,
        env: Mapping[str, str | None] | None,
        user: str | None,
    ) -> Invocation:
        self._check_running()
        who, by = await self._find_user(user)
        merged = self._env if not env and not who else merge_environment(self._env, who, env)
        return build_invocation(command, cwd=self._resolve(cwd), env=merged, user=by)

    async def _find_user(self, user: str | None) -> tuple[dict[str, str], bytes]:
        """Return the variables of a user, and who that is for the agent; nothing for the sandbox's own."""
        found = None if user is None else await self.users.find(user)
        return environment_of(found), b"" if found is None else found.encode()

    def _resolve(self, cwd: str | None) -> str:
        if cwd is None:
            return self._cwd
        if not isinstance(cwd, str):
            raise ValidationFailed(f"cwd must be a string, not {type(cwd).__name__}")
        return cwd if cwd.startswith("/") else f"{self._cwd}/{cwd}"


def _id(snapshot: str | HasId | None) -> str | None:
    return snapshot if snapshot is None or isinstance(snapshot, str) else snapshot.id
