"""All code contexts of one sandbox, and spare executors kept ready for code without a context."""

import builtins
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import chain

from cove.core.command import Invocation, check_timeout, encode_environment, encode_text
from cove.core.executor_protocol import check_language
from cove.core.identifier import check_id, new_identifier
from cove.errors import (
    ContextAlreadyExists,
    ContextNotFound,
    CoveError,
    FileNotFound,
    InterpreterNotReady,
    LimitExceeded,
    SandboxDestroyed,
    SpawnFailed,
    UnsupportedLanguage,
    ValidationFailed,
)
from cove.local.threads import close_all
from cove.model import CodeContextInfo, CodeInterpreter, Outcome
from cove.runtime.code_context import CodeContext
from cove.runtime.executor import Executor, ExecutorEnded, Weighed, open_executor
from cove.runtime.executor_fork import explain_refusal
from cove.runtime.exit_record import KILLED_EXIT_CODE
from cove.runtime.fork_server import ForkServers
from cove.runtime.interpreters import OLDEST_NODE, Interpreters
from cove.runtime.spawner import Spawner
from cove.tasks import shared

_READY_SECONDS = 60.0
# Clean executors of each language that wait for `run_code` without a context.
SPARE_EXECUTORS = 1
# What one call makes at most.
MOST_COPIES = 256


@dataclass(frozen=True, slots=True)
class _Spare:
    """A clean executor that waits, and what it was started with."""

    executor: Executor
    cwd: str
    env: Mapping[str, str]

    def end(self) -> None:
        """End an executor that nobody will use."""
        self.executor.process.end(Outcome.KILLED, 0)
        self.executor.close()


class CodeContexts:
    """Owns the contexts by id. An id is taken before the first await. No executor ever serves two contexts."""

    def __init__(self, spawner: Spawner, interpreters: Interpreters, *, limit: int | None = None) -> None:
        self._spawner = spawner
        self._interpreters = interpreters
        self._limit = limit
        self._contexts: dict[str, CodeContext | None] = {}
        self._languages: dict[str, str] = {}
        self._servers = ForkServers(spawner, interpreters, self._renew_spares)
        self._servers_of: dict[bytes, ForkServers] = {b"": self._servers}
        self._spare: dict[str, builtins.list[_Spare]] = {}
        self._refilling: set[str] = set()
        self._chosen_node = 0

    def prepare(self, *, cwd: str, env: Mapping[str, str]) -> None:
        """Have a clean Python ready soon, for a sandbox that waits to be used."""
        self._refill("python", cwd, env)

    async def create(
        self,
        language: str,
        *,
        id: str | None,
        cwd: str,
        env: Mapping[str, str],
        timeout: float | None,
        user: bytes = b"",
    ) -> CodeContext:
        """A new context with an executor of its own."""
        language = check_language(language)
        id = new_identifier() if id is None else check_id("context", id)
        if id in self._contexts:
            raise ContextAlreadyExists(f"code context {id} exists already: choose another id, or delete it", id=id)
        self._check_room(language, 1)
        seconds = check_timeout(timeout)
        self._contexts[id] = None
        self._languages[id] = language
        try:
            executor = await self._start(language, cwd, env, user)
        except BaseException:
            self._release(id)
            raise
        context = self._wrap(id, language, executor, seconds)
        self._contexts[id] = context
        return context

    def _check_room(self, language: str, count: int) -> None:
        there = list(self._languages.values()).count(language)
        if self._limit is not None and there + count > self._limit:
            raise LimitExceeded(f"this sandbox has {there} of {self._limit} {language} contexts already: delete some")

    async def fork(self, parent: CodeContext, count: int, force: bool) -> builtins.list[CodeContext]:
        """Copies of a context, all of them or none."""
        if parent.language != "python":
            raise UnsupportedLanguage(explain_refusal(parent.language), supported=["python"])
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_COPIES:
            raise ValidationFailed(f"count must be a number from 1 to {MOST_COPIES}, not {count!r}")
        self._check_room(parent.language, count)
        ids = [new_identifier() for _ in range(count)]
        for id in ids:
            self._contexts[id], self._languages[id] = None, parent.language
        try:
            executors = await parent.fork_executor(count, self._servers.want_packages, force=force)
        except BaseException:
            for id in ids:
                self._release(id)
            raise
        for id, executor in zip(ids, executors, strict=True):
            executor.process.ended.add_done_callback(lambda _: self._servers.end_idle())
            self._contexts[id] = self._wrap(id, parent.language, executor, parent.timeout)
        return [self.get(id) for id in ids]

    async def borrow(self, language: str, *, cwd: str, env: Mapping[str, str]) -> CodeContext:
        """A context that nobody else has used or will use: for one run, then to be deleted."""
        language = check_language(language)
        spare = self._spare.setdefault(language, [])
        executor = None
        while spare and executor is None:
            found = spare.pop()
            if found.executor.is_alive and found.env == env:
                executor = found.executor
            else:
                found.end()
        if executor is None:
            executor = await self._start(language, cwd, env)
        self._refill(language, cwd, env)
        return self._wrap(new_identifier(), language, executor, None)

    def get(self, id: str) -> CodeContext:
        """The context with that id."""
        context = self._contexts.get(check_id("context", id))
        if context is None:
            raise ContextNotFound(f"there is no code context {id} in this sandbox", id=id)
        return context

    def list(self) -> builtins.list[CodeContextInfo]:
        """All of them, oldest first."""
        return [context.info() for context in self._contexts.values() if context is not None]

    async def hold_idle(self) -> dict[int, CodeContext]:
        """Keep all whose executors wait as they are, by their pids inside. The caller lets each of them go."""
        found = {}
        for context in [each for each in self._contexts.values() if each is not None]:
            pid = await context.hold()
            if pid is not None:
                found[pid] = context
        return found

    async def close(self) -> None:
        """Free everything, after the sandbox has ended."""
        for servers in self._servers_of.values():
            await servers.close()
        for context in filter(None, list(self._contexts.values())):
            await context.settled()
            context.executor.close()
        for spare in chain.from_iterable(self._spare.values()):
            spare.executor.close()
        self._contexts.clear()
        self._languages.clear()
        self._spare.clear()

    def _wrap(self, id: str, language: str, executor: Executor, timeout: float | None) -> CodeContext:
        context = CodeContext(
            id,
            language,
            executor,
            timeout=timeout,
            spawner=self._spawner,
            on_fork=self.fork,
            on_deleted=lambda: self._forget(context),
            interpreter=self._source(language),
        )
        return context

    def _source(self, language: str) -> CodeInterpreter:
        """Return whose interpreter runs contexts of a language that has one."""
        if language == "python":
            return self._servers.source
        return self._interpreters.require_nodes(language)[self._chosen_node].source

    def _forget(self, context: CodeContext) -> None:
        if self._contexts.get(context.id) is context:
            self._release(context.id)

    def _release(self, id: str) -> None:
        self._contexts.pop(id, None)
        self._languages.pop(id, None)

    def _refill(self, language: str, cwd: str, env: Mapping[str, str]) -> None:
        if language not in self._refilling and not self._spawner.closed:
            self._refilling.add(language)
            self._spawner.background.start(self._add_spare(language, cwd, env))

    async def _add_spare(self, language: str, cwd: str, env: Mapping[str, str]) -> None:
        spare = self._spare.setdefault(language, [])
        try:
            while len(spare) < SPARE_EXECUTORS and not self._spawner.closed:
                spare.append(_Spare(await self._start_spare(language, cwd, env), cwd, env))
        except CoveError:
            return  # whoever asks next gets the error
        finally:
            self._refilling.discard(language)

    async def _start_spare(self, language: str, cwd: str, env: Mapping[str, str]) -> Executor:
        """An executor that enters its directory with its first run: until then it keeps no mount busy."""
        executor = await self._start(language, "/", env)
        executor.directory = cwd
        return executor

    def _renew_spares(self) -> None:
        """There is a better Python to fork them from."""
        spares, self._spare["python"] = self._spare.get("python", []), []
        for spare in spares:
            spare.end()
            self._refill("python", spare.cwd, spare.env)

    async def _start(self, language: str, cwd: str, env: Mapping[str, str], user: bytes = b"") -> Executor:
        """A clean executor that has said that it is ready."""
        try:
            return await self._start_executor(language, cwd, env, user)
        except (SandboxDestroyed, InterpreterNotReady, SpawnFailed) as error:
            if self._spawner.closed:
                raise self._spawner.link.explain(True) from None
            if not isinstance(error, SandboxDestroyed):
                raise
            raise SpawnFailed("the Python that contexts are forked from was killed. Nothing was started.") from error

    async def _start_executor(self, language: str, cwd: str, env: Mapping[str, str], user: bytes) -> Executor:
        if language != "python":
            return await self._start_node(language, cwd, env, user)
        servers = self._servers_of.setdefault(user, ForkServers(self._spawner, self._interpreters, lambda: None, user))
        server = await servers.get(env)
        with server.starting() as spawner:
            executor = await self._spawn_executor(spawner, language, (b"python",), cwd, env)
        executor.process.ended.add_done_callback(lambda _: servers.end_idle())
        return executor

    async def _start_node(self, language: str, cwd: str, env: Mapping[str, str], user: bytes) -> Executor:
        """Start the first Node.js that can be; others than that are not tried again."""
        programs = self._interpreters.require_nodes(language)
        for number in range(self._chosen_node, len(programs)):
            argv = tuple(word.encode() for word in self._interpreters.node_command(programs[number], language))
            try:
                executor = await self._spawn_executor(self._spawner, language, argv, cwd, env, user)
            except InterpreterNotReady as error:
                if programs[number] is programs[-1]:
                    where = "" if self._interpreters.image is None else ", in the image or below /usr of this machine"
                    raise InterpreterNotReady(f"{error}: it needs Node.js {OLDEST_NODE} or newer{where}") from error
            except FileNotFound:  # the program, or its directory: then the last one says so
                if programs[number] is programs[-1]:
                    raise
            else:
                self._chosen_node = number
                return executor
        raise AssertionError("there is a last one")

    async def _spawn_executor(
        self,
        spawner: Spawner,
        language: str,
        argv: tuple[bytes, ...],
        cwd: str,
        env: Mapping[str, str],
        user: bytes = b"",
    ) -> Executor:
        executor, given = open_executor(self._servers.want_packages, can_be_stuck=language != "python")
        invocation = Invocation(argv=argv, env=encode_environment(env), cwd=encode_text(cwd, "cwd"), user=user)
        expect = partial(executor.expect, spawner=spawner)
        try:
            try:
                process = await spawner.spawn(invocation, executor.take, extra=given, on_spawn=expect)
            finally:
                close_all(list(given.values()))
            executor.attach(process)
            try:
                await shared(process.started)
                if not process.pid and not process.refusal:
                    raise SpawnFailed("the executor was killed before it ran. Nothing was started.")
                if not process.pid:
                    raise FileNotFound(process.refusal)
                async with spawner.clock.timeout(_READY_SECONDS):
                    await shared(executor.ready)
            except BaseException:
                await process.sweep()
                raise
        except ExecutorEnded as error:
            executor.close()
            if error.end.exit_code in (None, KILLED_EXIT_CODE):
                raise SpawnFailed(f"the executor for {language} was killed before it was ready: try again.") from None
            raise InterpreterNotReady(f"the executor for {language} did not start: {error}") from None
        except TimeoutError:
            executor.close()
            raise InterpreterNotReady(f"the executor for {language} was not ready in {_READY_SECONDS:g} s") from None
        except BaseException:
            executor.close()
            raise
        return executor


async def run_borrowed(
    contexts: CodeContexts, language: str, code: str, *, cwd: str, env: Mapping[str, str], timeout: float | None
) -> AsyncGenerator[Weighed, None]:
    """Run code in an executor that is taken once and ended afterwards."""
    context = await contexts.borrow(language, cwd=cwd, env=env)
    try:
        async with aclosing(context.weighed_events(code, timeout=timeout)) as events:
            async for event in events:
                yield event
    finally:
        await context.delete()
