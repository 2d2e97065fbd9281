"""Fork servers: warm Pythons inside a sandbox from which Python contexts are forked (copy-on-write)."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cove.core.capture import Capture
from cove.core.command import Invocation, encode_environment
from cove.errors import CoveError, InterpreterNotReady, SpawnFailed
from cove.linux.packets import socket_pair
from cove.model import CodeInterpreter, Outcome, ProcessExit
from cove.runtime.clock import Clock
from cove.runtime.exit_record import KILLED_EXIT_CODE
from cove.runtime.interpreters import Interpreters
from cove.runtime.link import Link
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import Supervised
from cove.tasks import Once, owned, shared

_START_SECONDS = 60.0
# How long it may outlive its end of the link.
_REPORT_SECONDS = 0.5
_CONTROL = 4
_COMPLAINT_BYTES = 8192


class ForkServer:
    """A supervised process that serves `launcher` and `end` like init; its launchers fork executors."""

    def __init__(self, process: Supervised, link: Link) -> None:
        self._process = process
        self._link = link
        self.spawner = Spawner(link, None, lambda reason: process.end(Outcome.KILLED, 0))
        self._ending: Once[None] = Once()
        self._starting = 0
        self.is_ready = False
        process.end_if_stopped()
        process.ended.add_done_callback(self._on_end)

    @property
    def is_alive(self) -> bool:
        """Contexts can be made."""
        return not self._process.ended.done() and not self._link.closed

    @property
    def is_idle(self) -> bool:
        """Return whether no context was forked from it, or is about to be."""
        return not self._starting and not self.spawner.is_busy()

    @contextmanager
    def starting(self) -> Iterator[Spawner]:
        """Keep it in use while a context is forked from it."""
        self._starting += 1
        try:
            yield self.spawner
        finally:
            self._starting -= 1

    async def close(self) -> None:
        """End it and every context forked from it. Idempotent."""
        await self._ending.run(self._close)

    async def _close(self) -> None:
        self._link.close()
        await self._process.sweep()
        await self.spawner.close(Outcome.KILLED)

    def _on_end(self, _: object) -> None:
        """Without it nobody could end its contexts: they end with it."""
        self._ending.start(self._close)


async def start_fork_server(
    spawner: Spawner, command: list[str], env: Mapping[str, str], cwd: str, user: bytes = b""
) -> ForkServer:
    """Start it and wait until everything is imported."""
    ours, theirs = socket_pair()
    complaint = Capture(_COMPLAINT_BYTES)
    invocation = Invocation(
        argv=tuple(word.encode() for word in [*command, str(_CONTROL)]),
        env=encode_environment(env),
        cwd=cwd.encode(),
        user=user,
    )
    with theirs:
        try:
            process = await spawner.spawn(
                invocation, lambda stream, data: complaint.append(data), extra={_CONTROL: theirs.fileno()}
            )
        except BaseException:
            ours.close()
            raise

    def lose(_: str) -> None:
        """One that ends before it is ready says why by its exit code and its complaint."""
        if server.is_ready:
            process.end(Outcome.KILLED, 0)

    link = Link(ours, lose, spawner.clock)
    link.gate = spawner.link.gate
    server = ForkServer(process, link)
    try:
        await _first(spawner.clock, link.hello, process.ended)
        if not link.hello.done() or link.hello.cancelled() or process.ended.done():
            raise await _failure(process, complaint)
        server.is_ready = True
        await server.spawner.open()
    except BaseException:
        await server.close()
        raise
    return server


async def _failure(process: Supervised, complaint: Capture) -> CoveError:
    """Make the error: it was stopped or killed, or cannot be started at all."""
    await process.clock.wait([process.ended], _REPORT_SECONDS)
    if not process.ended.done() and not complaint.total:
        return SpawnFailed(f"the Python for code contexts was not ready within {_START_SECONDS:g} s: try again.")
    if process.ended.done() and process.ended.result().exit_code in (None, KILLED_EXIT_CODE):
        outcome = process.ended.result().outcome
        return SpawnFailed(f"the Python for code contexts was killed before it was ready ({outcome}): try again.")
    text = complaint.getvalue().decode("utf-8", "replace").strip()
    return InterpreterNotReady(f"the Python for code contexts did not start: {text[-1000:]}. Run `cove setup`.")


async def _first(clock: Clock, one: "asyncio.Future[None]", other: "asyncio.Future[ProcessExit]") -> None:
    """Until either is done, or too much time has passed."""
    both: list[asyncio.Future[None] | asyncio.Future[ProcessExit]] = [one, other]
    await clock.wait(both, _START_SECONDS, return_when=asyncio.FIRST_COMPLETED)


class ForkServers:
    """The fork servers of one sandbox: the one in use, and those that were replaced and still have contexts.

    The first one imports IPython only. When code has used one of the usual packages (numpy, pandas, matplotlib) and
    further contexts are made, one that has imported them takes its place: from then on they cost nothing.
    """

    def __init__(
        self, spawner: Spawner, interpreters: Interpreters, on_replaced: Callable[[], None], user: bytes = b""
    ) -> None:
        self._spawner = spawner
        self._user = user
        self._interpreters = interpreters
        self._on_replaced = on_replaced
        self._current: asyncio.Future[ForkServer] | None = None
        self._replaced: list[ForkServer] = []
        self._wants_packages = False
        self._has_tried_packages = False
        self._chosen = 0

    @property
    def source(self) -> CodeInterpreter:
        """Return whose Python is used."""
        return self._interpreters.require_pythons()[self._chosen].source

    def want_packages(self) -> None:
        """Code has used one of the packages."""
        self._wants_packages = True

    async def get(self, env: Mapping[str, str]) -> ForkServer:
        """The living one, or a new one; everybody who comes while it starts waits for the same."""
        if self._current is None or (self._current.done() and not _is_alive(self._current)):
            self._current = owned(self._start(env, preload=False))
            self._has_tried_packages = False
        elif self._wants_packages and not self._has_tried_packages:
            self._has_tried_packages = True
            self._spawner.background.start(self._replace(env))
        return await shared(self._current)

    def end_idle(self) -> None:
        """End those that were replaced and have no context any more."""
        for server in [each for each in self._replaced if each.is_idle]:
            self._replaced.remove(server)
            self._spawner.background.start(server.close())

    async def close(self) -> None:
        """Free everything, after the sandbox has ended."""
        if self._current is not None:
            await asyncio.wait([self._current])
            if not self._current.cancelled() and self._current.exception() is None:
                self._replaced.append(self._current.result())
        for server in self._replaced:
            await server.close()
        self._replaced.clear()

    async def _start(self, env: Mapping[str, str], *, preload: bool) -> ForkServer:
        """Start the first Python that can be; one that cannot is not tried again."""
        programs = self._interpreters.require_pythons()
        while True:
            command = self._interpreters.python_command(programs[self._chosen], preload=preload)
            try:
                return await start_fork_server(self._spawner, command, env, "/", self._user)
            except InterpreterNotReady:
                if self._chosen + 1 == len(programs):
                    raise
                self._chosen += 1

    async def _replace(self, env: Mapping[str, str]) -> None:
        try:
            server = await self._start(env, preload=True)
        except CoveError:
            return  # contexts import the packages themselves
        before, self._current = self._current, asyncio.get_running_loop().create_future()
        self._current.set_result(server)
        if before is not None and before.done() and _is_alive(before):
            self._replaced.append(before.result())
        self._on_replaced()
        self.end_idle()


def _is_alive(server: "asyncio.Future[ForkServer]") -> bool:
    return not server.cancelled() and server.exception() is None and server.result().is_alive
