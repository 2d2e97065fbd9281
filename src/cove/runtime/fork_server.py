"""The warm Python inside a sandbox from which Python contexts are forked."""

import asyncio
from collections.abc import Mapping

from cove.core.capture import Capture
from cove.core.command import Invocation, encode_environment
from cove.errors import CoveError, InterpreterNotReady, SpawnFailed
from cove.linux.packets import socket_pair
from cove.model import Outcome, ProcessExit
from cove.runtime.link import Link
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import KILLED_EXIT_CODE, Supervised

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
        self._ending: asyncio.Task[None] | None = None
        process.end_if_stopped()
        process.ended.add_done_callback(self._on_end)

    @property
    def is_alive(self) -> bool:
        """Contexts can be made."""
        return not self._process.ended.done() and not self._link.closed

    async def close(self) -> None:
        """End it and every context forked from it. Idempotent."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._ending)

    async def _close(self) -> None:
        self._link.close()
        await self._process.sweep()
        await self.spawner.close(Outcome.KILLED)

    def _on_end(self, _: object) -> None:
        """Without it nobody could end its contexts: they end with it."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._close())


async def start_fork_server(spawner: Spawner, command: list[str], env: Mapping[str, str], cwd: str) -> ForkServer:
    """Start it and wait until everything is imported."""
    ours, theirs = socket_pair()
    complaint = Capture(_COMPLAINT_BYTES)
    invocation = Invocation(
        argv=tuple(word.encode() for word in [*command, str(_CONTROL)]),
        env=encode_environment(env),
        cwd=cwd.encode(),
    )
    with theirs:
        try:
            process = await spawner.spawn(
                invocation, lambda stream, data: complaint.append(data), extra={_CONTROL: theirs.fileno()}
            )
        except BaseException:
            ours.close()
            raise
    link = Link(ours, lambda reason: process.end(Outcome.KILLED, 0))
    server = ForkServer(process, link)
    try:
        await _first(link.hello, process.ended)
        if not link.hello.done() or link.hello.cancelled() or process.ended.done():
            raise await _failure(process, complaint)
        await server.spawner.open()
    except BaseException:
        await server.close()
        raise
    return server


async def _failure(process: Supervised, complaint: Capture) -> CoveError:
    """Whether it was stopped or killed, or cannot be started at all."""
    await asyncio.wait([process.ended], timeout=_REPORT_SECONDS)
    if not process.ended.done() and not complaint.total:
        return SpawnFailed(f"the Python for code contexts was not ready within {_START_SECONDS:g} s: try again.")
    if process.ended.done() and process.ended.result().exit_code in (None, KILLED_EXIT_CODE):
        outcome = process.ended.result().outcome
        return SpawnFailed(f"the Python for code contexts was killed before it was ready ({outcome}): try again.")
    text = complaint.getvalue().decode("utf-8", "replace").strip()
    return InterpreterNotReady(f"the Python for code contexts did not start: {text[-1000:]}. Run `cove setup`.")


async def _first(one: "asyncio.Future[None]", other: "asyncio.Future[ProcessExit]") -> None:
    """Until either is done, or too much time has passed."""
    both: list[asyncio.Future[None] | asyncio.Future[ProcessExit]] = [one, other]
    await asyncio.wait(both, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
