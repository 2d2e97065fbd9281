"""A sandbox under test: where it is, what is done to it, and how it is brought back."""

import asyncio
import os
import signal
from dataclasses import dataclass, field

from cove import AsyncSandbox
from cove.errors import ConnectionLost, CoveError, SandboxUnavailable
from cove.model import Limits, SandboxSpec
from cove.runtime.sandbox import Sandbox
from soak.faults import Fault, Strike, Weather
from soak.history import History
from soak.possible import Violation
from soak.server import Server

_RECOVERY_SECONDS = 30.0
_PAUSE = 0.05
_SOON = 0.7


@dataclass
class Where:
    """This program, or a server; what is shared by all that are under test. If calm, nothing of Cove is killed."""

    server: Server | None
    weather: Weather
    history: History
    has_python: bool = True
    is_calm: bool = False

    @property
    def url(self) -> str | None:
        """The server's address."""
        return None if self.server is None else self.server.url

    @property
    def key(self) -> str | None:
        """What the server is shown."""
        return None if self.server is None else self.server.key


@dataclass
class Subject:
    """One sandbox. `generation` counts how often everything that ran in it has ended."""

    name: str
    where: Where
    spec: SandboxSpec = field(default_factory=SandboxSpec)
    generation: int = 0
    is_lost: bool = False
    last_answer: float = 0.0
    _recovering: asyncio.Lock = field(default_factory=asyncio.Lock)
    _strikes: list[Strike] = field(default_factory=list)

    async def create(self, id: str) -> None:
        """Make the sandbox."""
        while True:
            began = _now()
            try:
                self.sandbox = await AsyncSandbox.create(
                    id=id, spec=self.spec, exist_ok=True, url=self.where.url, api_key=self.where.key
                )
                self.last_answer = _now()
                return
            except CoveError as error:
                if not self.where.weather.permits(error, self.name, began):
                    raise Violation(f"the sandbox was not made: {error!r}") from error
                await asyncio.sleep(_PAUSE)

    @property
    def idle_timeout(self) -> float | None:
        """After which the sandbox stops."""
        return self.spec.idle_timeout

    @property
    def disk(self) -> int | None:
        """How much it may write."""
        return self.spec.limits.disk

    async def destroy(self) -> None:
        """End it, whatever state it is in."""
        for _ in range(int(_RECOVERY_SECONDS / _PAUSE)):
            began = _now()
            try:
                await self.sandbox.destroy()
                return
            except CoveError as error:
                if not self.where.weather.permits(error, self.name, began):
                    raise Violation(f"destroy failed: {error!r}") from error
                await asyncio.sleep(_PAUSE)
        raise Violation(f"destroy failed for {_RECOVERY_SECONDS} seconds")

    # Faults

    async def kill_agent(self) -> None:
        """SIGKILL for the jail: for the agent, all inside ends with it."""
        if self.where.server is None:
            assert isinstance(self.sandbox, Sandbox)
            pid: int | None = self.sandbox._jail.pid
        else:
            runtime = await asyncio.to_thread(self.where.server.runtime, self.sandbox.id)
            pid = None if runtime is None else _first_child(runtime)
        if pid is not None:
            self._lose(Fault.AGENT_KILLED)
            _kill(pid)

    async def kill_runtime(self) -> None:
        """SIGKILL for the process that serves the sandbox."""
        assert self.where.server is not None
        pid = await asyncio.to_thread(self.where.server.runtime, self.sandbox.id)
        if pid is not None:
            self._lose(Fault.RUNTIME_KILLED)
            _kill(pid)

    def _lose(self, fault: Fault) -> None:
        self.is_lost = True
        self.strike(fault)

    def strike(self, fault: Fault) -> None:
        """It has its effects from here on, until everything that runs has ended."""
        self._strikes.append(self.where.weather.begin(fault, self.name, _now()))
        self.where.history.note(f"{self.name}/", 0, f"!! {fault}")

    async def recover(self) -> None:
        """Restart a lost sandbox; whoever of its users comes first does it."""
        async with self._recovering:
            if self.is_lost:
                await self._restart()
                self.is_lost = False

    def doze(self) -> None:
        """One that stops when it is idle may have done so, when its users were slow."""
        if (
            self.idle_timeout is not None
            and self.where.server is not None
            and _now() - self.last_answer > _SOON * self.idle_timeout
        ):
            self.strike(Fault.STOPPED)
            self.ended()

    async def restart(self) -> None:
        """Restart one that is well."""
        async with self._recovering:
            if not self.is_lost:
                self._strikes.append(self.where.weather.begin(Fault.RESTARTED, self.name, _now()))
                await self._restart()

    async def _restart(self) -> None:
        self.where.history.note(f"{self.name}/", 0, "restart")
        until = _now() + _RECOVERY_SECONDS
        while True:
            began = _now()
            try:
                async with asyncio.timeout(_RECOVERY_SECONDS):
                    await self.sandbox.restart()
                break
            except (SandboxUnavailable, ConnectionLost) as error:
                if not self.where.weather.permits(error, self.name, began) or _now() > until:
                    raise Violation(f"restart failed: {error!r}") from error
                self.where.history.note(f"{self.name}/", 0, f"restart: {error!r}")
                await asyncio.sleep(_PAUSE)
            except TimeoutError:
                raise Violation("restart did not come back") from None
        self.ended()

    def ended(self) -> None:
        """Everything that ran is gone; files are not."""
        self.generation += 1
        for strike in self._strikes:
            strike.ended = _now()
        self._strikes.clear()


def small_disk() -> SandboxSpec:
    """One that is soon full."""
    return SandboxSpec(limits=Limits(disk=32 << 20))


def sleepy() -> SandboxSpec:
    """One that stops when nobody uses it."""
    return SandboxSpec(idle_timeout=3.0)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has ended by itself


def _first_child(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = file.read().split()
    except FileNotFoundError:
        return None
    return int(children[0]) if children else None
