"""The sandbox itself: restarted, put to sleep, swept clean from inside, and others made beside it."""

import asyncio
from collections.abc import Mapping

from cove import AsyncSandbox
from cove.errors import CoveError, SandboxDestroyed, SandboxNotFound
from cove.model import SandboxStatus
from soak.faults import Fault
from soak.hand import Step, Surface
from soak.model import check
from soak.possible import Violation

_DEATH_SECONDS = 20.0
_PAUSE = 0.02


class Life(Surface):
    """What concerns all that runs in the sandbox."""

    weight = 0.5

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        where = self.hand.subject.where
        return {
            self._info: 0.5,
            self._usage: 0.2,
            self._restart: 0 if where.is_calm else 0.08,
            self._kill_everything: 0 if where.is_calm else 0.08,
            self._visitor: 0.3,
            self._rest: 0.4 if self.hand.subject.idle_timeout and where.server else 0,
        }

    async def _info(self) -> None:
        answer = await self.hand.call("info", self.hand.sandbox.info())
        if answer.is_done:
            check("it runs", answer.get().status is not SandboxStatus.LOST or self.hand.subject.is_lost, answer.value)

    async def _usage(self) -> None:
        await self.hand.call("usage", self.hand.sandbox.usage())

    async def _restart(self) -> None:
        await self.hand.subject.restart()

    async def _kill_everything(self) -> None:
        """As hostile code can: SIGKILL for all that it may signal, launchers among them."""
        subject = self.hand.subject
        subject.strike(Fault.EVERYTHING_INSIDE_KILLED)
        answer = await self.hand.call("exec kill -9 -1", self.hand.sandbox.exec("kill -9 -1"), is_steady=True)
        if answer.is_certain and answer.error is None:
            await self._until_all_are_dead()
        subject.ended()

    async def _until_all_are_dead(self) -> None:
        until = asyncio.get_running_loop().time() + _DEATH_SECONDS
        while True:
            answer = await self.hand.call("list-processes", self.hand.sandbox.list_processes(), is_steady=True)
            running = [process.id for process in answer.value or () if process.ended_at is None]
            if not answer.is_done or not running:
                return
            if asyncio.get_running_loop().time() > until:
                raise Violation(f"after SIGKILL for all of them {running} are still said to run")
            await asyncio.sleep(_PAUSE)

    async def _visitor(self) -> None:
        """Another sandbox, made and ended, perhaps given up half-way."""
        id = f"visitor-{self.hand.new_id('x')}"
        answer = await self.hand.call(f"visitor {id}", self._visit(id), SandboxDestroyed)
        if not answer.is_done:
            await self._remove(id)

    async def _visit(self, id: str) -> str:
        where = self.hand.subject.where
        async with AsyncSandbox.create(id=id, url=where.url, api_key=where.key) as visitor:
            output = (await visitor.exec(f"ls /workspace; echo {id}")).stdout
            check("a new sandbox is empty", output == f"{id}\n", output)
            return output

    async def _remove(self, id: str) -> None:
        """Whoever gave up does not know whether it exists."""
        began, where = asyncio.get_running_loop().time(), self.hand.subject.where
        while True:
            try:
                async with AsyncSandbox.connect(id, url=where.url, api_key=where.key) as visitor:
                    await visitor.destroy()
                return
            except SandboxNotFound:
                return
            except CoveError as error:
                if not where.weather.permits(error, self.hand.subject.name, began):
                    raise Violation(f"{id} cannot be removed: {error!r}") from error
                await asyncio.sleep(_PAUSE)

    async def _rest(self) -> None:
        """Long enough for an idle sandbox to stop; looking does not wake it, and the next call does."""
        subject = self.hand.subject
        assert subject.idle_timeout is not None
        if subject.is_lost:
            return
        await self.hand.call("kill-all", self.hand.sandbox.kill_all_processes("KILL"), is_steady=True)
        self.hand.note("rest")
        subject.strike(Fault.STOPPED)
        until = asyncio.get_running_loop().time() + subject.idle_timeout + _DEATH_SECONDS
        await asyncio.sleep(subject.idle_timeout)
        while True:
            answer = await self.hand.call("info", self.hand.sandbox.info(), is_steady=True)
            if not answer.is_done or answer.get().status is not SandboxStatus.RUNNING:
                break
            if asyncio.get_running_loop().time() > until:
                raise Violation(f"nobody used it for {_DEATH_SECONDS} seconds, and it runs: {answer.get()!r}")
            await asyncio.sleep(_PAUSE)
        woken = await self.hand.call("exec wake", self.hand.sandbox.exec("echo awake"), is_steady=True)
        if woken.is_done:
            check("a call wakes it", woken.get().stdout == "awake\n", woken.value)
        subject.ended()
