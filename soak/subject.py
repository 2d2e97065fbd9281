"""A sandbox under test: where it is, what is done to it, and how it is brought back."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bench.proc import descendants
from cove import AsyncSandbox
from cove.errors import ConnectionLost, CoveError, SandboxUnavailable
from cove.model import Limits, NetworkPolicy, NetworkRule, SandboxSpec
from cove.runtime.sandbox import Sandbox
from soak.faults import Fault, Strike, Weather
from soak.history import History
from soak.possible import Possible, Violation
from soak.server import Server
from soak.world import HOSTS, World

_RECOVERY_SECONDS = 150.0  # also on a machine that others keep busy
_PAUSE = 0.05
_SOON = 0.7
_HELPER_SECONDS = 20.0
_MOST_COMPLAINTS = 4000
_EGRESS = "cove-egress"
IMAGE = "soak:latest"


@dataclass
class Where:
    """This program, a server, or a cluster; what is shared by all that are under test.

    If calm, nothing of Cove is killed. `has_leftovers` says that a fault may have left what nobody knows of.
    """

    servers: Sequence[Server]
    weather: Weather
    history: History
    world: World
    has_python: bool = True
    is_calm: bool = False
    has_leftovers: bool = False
    subjects: "dict[str, Subject]" = field(default_factory=dict)

    @property
    def is_served(self) -> bool:
        """Whether there is a server."""
        return bool(self.servers)

    @property
    def is_cluster(self) -> bool:
        """Whether there are several."""
        return len(self.servers) > 1

    @property
    def url(self) -> str | None:
        """The servers' addresses."""
        return ",".join(server.url for server in self.servers) or None

    @property
    def key(self) -> str | None:
        """What a server is shown."""
        return self.servers[0].key if self.servers else None

    def node(self, id: str) -> Server | None:
        """The server that has a sandbox. Blocks."""
        return next((server for server in self.servers if server.has(id)), None)


@dataclass
class Subject:
    """One sandbox. `generation` counts how often everything that ran in it has ended, `losses` how often sessions did.

    `labels`, `policy` and `mounted` are the settings that it has now: a reset makes them those of its creation.
    """

    name: str
    where: Where
    spec: SandboxSpec = field(default_factory=SandboxSpec)
    users: int = 1
    generation: int = 0
    losses: int = 0
    is_lost: bool = False
    last_answer: float = 0.0
    labels: Possible[str] = field(default_factory=lambda: Possible(""))
    policy: Possible[str] = field(default_factory=lambda: Possible(""))
    mounted: dict[str, Possible[bool]] = field(default_factory=dict)
    _recovering: asyncio.Lock = field(default_factory=asyncio.Lock)
    _strikes: list[Strike] = field(default_factory=list)
    _has_slept: bool = False

    @property
    def is_made(self) -> bool:
        """Whether there is a sandbox."""
        return hasattr(self, "sandbox")

    async def create(self, id: str) -> None:
        """Make the sandbox."""
        self.forget_settings()
        self.where.subjects[self.name] = self
        while True:
            began = _now()
            try:
                self.sandbox = await AsyncSandbox.create(
                    id=id, spec=self.spec, exist_ok=True, url=self.where.url, api_key=self.where.key
                )
                self.last_answer = _now()
                self.is_lost = bool(self.where.weather.during(self.name, began))  # it may have met the fault too
                return
            except CoveError as error:
                if not self.where.weather.permits(error, self.name, began):
                    raise Violation(f"the sandbox was not made: {error!r}") from error
                await asyncio.sleep(_PAUSE)

    def forget_settings(self) -> None:
        """It is as it was created."""
        self.labels.become("")
        self.policy.become(self.original_policy)
        self.mounted.clear()

    @property
    def original_policy(self) -> str:
        """What it may reach when it is created."""
        return policy_name(self.spec.network)

    @property
    def has_policy(self) -> bool:
        """Whether it is there to reach others."""
        return isinstance(self.spec.network, NetworkPolicy)

    @property
    def has_bucket(self) -> bool:
        """Whether it is there to use a bucket."""
        return self.name == "bucketed"

    @property
    def is_sole(self) -> bool:
        """Whether one hand uses it, which then knows all that is in it."""
        return self.users == 1

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

    def complaints(self) -> str:
        """What servers and their runtimes have written last, where it is about a failure."""
        logs = [path for each in self.where.servers for path in (each.home / "sandboxes").glob("*/runtime.log")]
        logs += [server.complaints for server in self.where.servers]
        texts = [log.read_text(errors="replace")[-_MOST_COMPLAINTS:] for log in logs if log.exists()]
        return "\n".join(("", *(text for text in texts if "Traceback" in text)))

    # Faults

    async def kill_agent(self) -> None:
        """SIGKILL for the jail: for the agent, all inside ends with it."""
        if not self.where.is_served:
            assert isinstance(self.sandbox, Sandbox)
            pid: int | None = self.sandbox._jail.pid if self.sandbox._has_jail else None
        else:
            runtime = await self.runtime()
            pid = None if runtime is None else await asyncio.to_thread(_jail_of, runtime)
        if pid is not None:
            self.lose(Fault.AGENT_KILLED)
            _kill(pid)

    async def runtime(self) -> int | None:
        """The process that serves the sandbox, if it runs."""
        node = await asyncio.to_thread(self.where.node, self.sandbox.id)
        return None if node is None else await asyncio.to_thread(node.runtime, self.sandbox.id)

    async def kill_runtime(self) -> None:
        """SIGKILL for the process that serves the sandbox."""
        pid = await self.runtime()
        if pid is not None:
            self.lose(Fault.RUNTIME_KILLED)
            _kill(pid)

    async def kill_egress(self) -> None:
        """SIGKILL for what carries the network; wait until another one has begun anew."""
        root = await self.runtime() if self.where.is_served else os.getpid()
        before = [] if root is None else await asyncio.to_thread(_named, root, _EGRESS)
        if root is None or not before:
            return
        strike = self.where.weather.begin(Fault.EGRESS_KILLED, self.name, _now())
        self.where.history.note(f"{self.name}/", 0, f"!! {Fault.EGRESS_KILLED}")
        for pid in before:
            _kill(pid)
        until = _now() + _HELPER_SECONDS
        while _now() < until and not set(await asyncio.to_thread(_named, root, _EGRESS)) - set(before):
            await asyncio.sleep(_PAUSE)  # the runtime replaces it, and tells nobody
        strike.ended = _now()

    async def kill_rclone(self) -> Strike | None:
        """SIGKILL for what serves a bucket: nothing replaces it. The strike is for the caller to end."""
        root = await self.runtime() if self.where.is_served else os.getpid()
        found = [] if root is None else await asyncio.to_thread(_named, root, "rclone")
        if not found:
            return None
        strike = self.where.weather.begin(Fault.RCLONE_KILLED, self.name, _now())
        self.where.history.note(f"{self.name}/", 0, f"!! {Fault.RCLONE_KILLED}")
        for pid in found:
            _kill(pid)
        return strike

    def lose(self, fault: Fault) -> None:
        """It is hit: everything in it ends, until it is restarted."""
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
        if self.idle_timeout is None:
            return
        if self._has_slept or _now() - self.last_answer > _SOON * self.idle_timeout:
            self._has_slept = False
            self.strike(Fault.STOPPED)
            self.ended()

    def answered(self, began: float) -> None:
        """A call that began then was answered; what was there before it may have stopped meanwhile."""
        if self.idle_timeout is not None and began - self.last_answer > _SOON * self.idle_timeout:
            self._has_slept = True
        self.last_answer = began

    async def restart(self) -> None:
        """Restart one that is well."""
        async with self._recovering:
            if not self.is_lost:
                is_well = not self.where.weather.during(self.name, began := _now())
                self._strikes.append(self.where.weather.begin(Fault.RESTARTED, self.name, began))
                await self._insist("restart", self.sandbox.restart)
                self.ended(keeps_sessions=is_well and self._met_only(Fault.RESTARTED, began))

    async def rest(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Stop one that is well, do something, and start it again: sessions come back."""
        async with self._recovering:
            if self.is_lost:
                return
            is_well = not self.where.weather.during(self.name, began := _now())
            self._strikes.append(self.where.weather.begin(Fault.STOPPED_BY_CALL, self.name, began))
            await self._insist("stop", self.sandbox.stop)
            if self._met_only(Fault.STOPPED_BY_CALL, began):
                await meanwhile()
            await self._insist("start", self.sandbox.start)
            self.ended(keeps_sessions=is_well and self._met_only(Fault.STOPPED_BY_CALL, began))
            self.is_lost = False

    def _met_only(self, fault: Fault, began: float) -> bool:
        return set(self.where.weather.during(self.name, began)) <= {fault}

    async def _restart(self) -> None:
        await self._insist("restart", self.sandbox.restart)
        self.ended()

    async def _insist(self, label: str, call: Callable[[], Awaitable[None]]) -> None:
        self.where.history.note(f"{self.name}/", 0, label)
        self.where.history.counts[label] += 1
        until = _now() + _RECOVERY_SECONDS
        while True:
            began = _now()
            try:
                async with asyncio.timeout(_RECOVERY_SECONDS):
                    await call()
                return
            except (SandboxUnavailable, ConnectionLost) as error:
                if not self.where.weather.permits(error, self.name, began) or _now() > until:
                    raise Violation(f"{label} failed: {error!r}{self.complaints()}") from error
                self.where.history.note(f"{self.name}/", 0, f"{label}: {error!r}")
                await asyncio.sleep(_PAUSE)
            except TimeoutError:
                raise Violation(f"{label} did not come back") from None

    def ended(self, *, keeps_sessions: bool = False) -> None:
        """Everything that ran is gone; files are not."""
        self.generation += 1
        self.losses += not keeps_sessions
        for strike in self._strikes:
            strike.ended = _now()
        self._strikes.clear()


def small_disk() -> SandboxSpec:
    """One that is soon full."""
    return SandboxSpec(limits=Limits(disk=32 << 20))


def sleepy() -> SandboxSpec:
    """One that stops when nobody uses it."""
    return SandboxSpec(idle_timeout=3.0)


def networked(world: World) -> SandboxSpec:
    """One that reaches the first host."""
    return SandboxSpec(network=policy_of(HOSTS[0], world.port))


def imaged() -> SandboxSpec:
    """One whose system is an image's."""
    return SandboxSpec(image=IMAGE, user="root")


def policy_name(network: object) -> str:
    """A policy by the hosts that it allows; empty where there is none."""
    if not isinstance(network, NetworkPolicy):
        return ""
    return ",".join(sorted(rule.target.name for rule in network.rules))


def policy_of(name: str, port: int) -> NetworkPolicy:
    """The policy with that name."""
    return NetworkPolicy(allow=[NetworkRule(host, ports=[port], private=True) for host in name.split(",") if host])


def _now() -> float:
    return asyncio.get_running_loop().time()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has ended by itself


def _jail_of(pid: int) -> int | None:
    """The jail among the children of a runtime: an egress process, rclone and helpers are others."""
    return next((child for child in children_of(pid) if name_of(child) == "bwrap" and not _serves_bucket(child)), None)


def _serves_bucket(pid: int) -> bool:
    return b"rclone" in command_of(pid)


def _named(root: int, name: str) -> list[int]:
    return [pid for pid in descendants(root) if name_of(pid) == name]


def children_of(pid: int) -> list[int]:
    """The children of all its threads."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def name_of(pid: int) -> str:
    """The name of a process; empty when it has ended."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def command_of(pid: int) -> bytes:
    """Its arguments."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""
