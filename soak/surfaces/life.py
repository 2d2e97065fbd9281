"""The sandbox itself: restarted, put to sleep, swept clean from inside, and others made beside it."""

import asyncio
from collections.abc import Mapping

from cove import AsyncSandbox
from cove.errors import CoveError, SandboxDestroyed, SandboxNotFound, SandboxPaused, SandboxStopped
from cove.model import SandboxStatus
from soak.faults import Fault
from soak.hand import Step, Surface
from soak.model import check
from soak.possible import Violation

_DEATH_SECONDS = 20.0
_PAUSE = 0.02
# A pause that was cancelled may come after the resume: the next call then says so, once.
_AFTER_CANCEL: dict[bool, tuple[type[CoveError], ...]] = {True: (), False: (SandboxPaused,)}


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
            self._kill_everything: 0 if where.is_calm or self._has_image else 0.08,
            self._visitor: 0.3,
            self._rest: 0.4 if self.hand.subject.idle_timeout else 0,
            self._stop_and_start: 0 if where.is_calm else 0.15,
            self._pause: 0.3,
            self._pause_for_good: 0.2 if self.hand.subject.is_sole else 0,
            self._set_labels: 0.3 if self.hand.is_first else 0,
            self._short_life: 0.08,
            self._move: 0.3 if where.is_cluster else 0,
        }

    @property
    def _has_image(self) -> bool:
        return self.hand.subject.spec.image != "host"

    async def _info(self) -> None:
        answer = await self.hand.call("info", self.hand.sandbox.info())
        if answer.is_done:
            if self.hand.is_first:
                self.hand.subject.labels.observe(answer.get().spec.labels.get("soak", ""), "the label")
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

    async def _stop_and_start(self) -> None:
        await self.hand.subject.rest(self._meet_stopped)

    async def _meet_stopped(self) -> None:
        """Until it is started every call is refused."""
        subject, began = self.hand.subject, asyncio.get_running_loop().time()
        try:
            result = await self.hand.sandbox.exec("true")
        except SandboxStopped:
            return
        except CoveError as error:
            if subject.where.weather.permits(error, subject.name, began):
                return
            raise Violation(f"a call on a stopped sandbox raised {error!r}") from error
        raise Violation(f"a stopped sandbox answers: {result!r}")

    @property
    def _may_sleep(self) -> tuple[type[CoveError], ...]:
        """Of one that idleness has stopped there is nothing to pause."""
        return (SandboxStopped,) if self.hand.subject.idle_timeout else ()

    async def _pause(self) -> None:
        """The next call wakes it, whoever makes it."""
        answer = await self.hand.call("pause", self.hand.sandbox.pause(), *self._may_sleep)
        if answer.is_done:
            woken = await self.hand.call("exec woken", self.hand.sandbox.exec("echo woken"))
            if woken.is_done:
                check("a call resumes it", woken.get().stdout == "woken\n", woken.value)

    async def _pause_for_good(self) -> None:
        """Until it is resumed every call is refused; then it goes on."""
        answer = await self.hand.call("pause", self.hand.sandbox.pause(wake=False), *self._may_sleep)
        if answer.is_done:
            met = await self.hand.call("exec paused", self.hand.sandbox.exec("true"), SandboxPaused, is_steady=True)
            check("a paused sandbox does not answer", not met.is_done or self.hand.is_disturbed, met.value)
        if not isinstance(answer.error, SandboxStopped):
            await self.hand.insist("resume", self.hand.sandbox.resume)
        on = await self.hand.call("exec resumed", self.hand.sandbox.exec("echo on"), *_AFTER_CANCEL[answer.is_done])
        if on.is_done:
            check("a resumed sandbox goes on", on.get().stdout == "on\n", on.value)
        elif isinstance(on.error, SandboxPaused):
            await self.hand.insist("resume", self.hand.sandbox.resume)

    async def _set_labels(self) -> None:
        """What was set is what a list finds it by."""
        subject, label = self.hand.subject, f"label-{self.hand.number()}"
        answer = await self.hand.call(f"set-labels {label}", self.hand.sandbox.set_labels({"soak": label}))
        if not answer.is_done:
            subject.labels.may_become(label)
            return
        subject.labels.become(label)
        where = subject.where
        listing = AsyncSandbox.list(labels={"soak": label}, url=where.url, api_key=where.key)
        listed = await self.hand.call("list", listing, is_steady=True)
        if listed.is_done and not self.hand.is_disturbed:
            check("it is found by its label", subject.sandbox.id in [info.id for info in listed.get()], label)

    async def _short_life(self) -> None:
        """One whose lifetime is over is gone."""
        id = f"mayfly-{self.hand.new_id('x')}"
        answer = await self.hand.call(f"mayfly {id}", self._live_shortly(id), is_steady=True)
        if not answer.is_done:
            await self._remove(id)

    async def _live_shortly(self, id: str) -> None:
        where = self.hand.subject.where
        made = await AsyncSandbox.create(id=id, url=where.url, api_key=where.key)
        await made.set_lifetime(0.3)
        until = asyncio.get_running_loop().time() + _DEATH_SECONDS
        while True:
            try:
                await made.exec("true")
            except (SandboxNotFound, SandboxDestroyed):
                await made.detach()
                return
            check("a lifetime ends", asyncio.get_running_loop().time() < until, id)
            await asyncio.sleep(_PAUSE)

    async def _move(self) -> None:
        """Another sandbox, that goes to another node with all that it has."""
        id = f"mover-{self.hand.new_id('x')}"
        answer = await self.hand.call(f"move {id}", self._carry(id), SandboxDestroyed)
        if not answer.is_done:
            await self._remove(id)

    async def _carry(self, id: str) -> None:
        where = self.hand.subject.where
        async with AsyncSandbox.create(id=id, url=where.url, api_key=where.key) as mover:
            await mover.files.write("/workspace/kept", id)
            session = await mover.create_session(id="s")
            await session.exec(f"cd /tmp; carried={id}")
            before = (await mover.info()).node
            await mover.stop()
            await mover.move()
            await mover.start()
            output = (await session.exec('echo "$(cat /workspace/kept) $PWD $carried"')).stdout
            has_met = bool(where.weather.during(self.hand.subject.name, self.hand.began))
            check("a moved sandbox has what it had", output == f"{id} /tmp {id}\n" or has_met, (before, output))

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
            has_met = bool(where.weather.during(self.hand.subject.name, self.hand.began))
            check("a new sandbox is empty", output == f"{id}\n" or has_met, output)
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
