"""Rounds of random use, each followed by a look at everything and a count of what is left."""

import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from bench.proc import resident_bytes
from cove import AsyncImage
from cove.errors import CoveError, InterpreterNotReady
from cove.model import SandboxSpec
from soak.census import Census
from soak.faults import Weather
from soak.hand import Hand, Step, Surface
from soak.history import History
from soak.leftovers import remove_leftovers
from soak.nodes import NODES, running_servers
from soak.possible import Violation
from soak.subject import IMAGE, Subject, Where, imaged, networked, sleepy, small_disk
from soak.surfaces import all_surfaces
from soak.trouble import strike
from soak.world import running_world

_ROUND_SECONDS = 60.0
_PROGRESS_SECONDS = 10.0
_GLANCE_SECONDS = 0.1
_TROUBLE_SECONDS = (3.0, 15.0)
_MOST_FAILURES = 20
_SHORT_SECONDS = 30.0  # a run for which a storage server is not worth its start


class Way(StrEnum):
    """Where the sandboxes are."""

    EMBEDDED = "embedded"
    SERVER = "server"
    CLUSTER = "cluster"


_SERVERS = {Way.EMBEDDED: 0, Way.SERVER: 1, Way.CLUSTER: len(NODES)}


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    seconds: float
    seed: int
    way: Way
    hands: int
    is_calm: bool


@dataclass
class Player:
    """A hand with all it can do, and the ends of all in the sandbox that it knows of."""

    hand: Hand
    surfaces: list[Surface]
    generation: int
    losses: int

    async def play(self, until: float) -> None:
        """Do random things; a violation is raised."""
        while asyncio.get_running_loop().time() < until:
            self.hand.step += 1
            await self.catch_up()
            await self._choose()()

    async def catch_up(self) -> None:
        """Bring the sandbox back, and forget what ended meanwhile."""
        subject = self.hand.subject
        await subject.recover()
        subject.doze()
        if self.generation == subject.generation:
            return
        is_loss = self.losses != subject.losses
        self.generation, self.losses = subject.generation, subject.losses
        for surface in self.surfaces:
            surface.forget() if is_loss else surface.restarted()

    def _choose(self) -> Step:
        able = [surface for surface in self.surfaces if any(surface.steps().values())]
        steps = self.hand.random.choices(able, [surface.weight for surface in able])[0].steps()
        return self.hand.random.choices(list(steps), list(steps.values()))[0]

    async def each(self, what: str) -> None:
        """`verify`, `empty` or `leave` for all that it knows."""
        for surface in self.surfaces:
            await self.catch_up()
            await getattr(surface, what)()


class Soak:
    """One run, in this program or on a server."""

    def __init__(self, plan: Plan, where: Where, census: Census) -> None:
        self._plan = plan
        self._where = where
        self._census = census
        self._random = random.Random(f"{plan.seed}/plan")
        self._players: dict[str, list[Player]] = {}
        self._began = time.monotonic()
        self._rounds = 0
        self._calm = asyncio.Event()

    @property
    def _history(self) -> History:
        return self._where.history

    async def run(self) -> None:
        """Rounds until the time is over; then nothing may be left."""
        until = self._began + self._plan.seconds
        tasks = [asyncio.ensure_future(work()) for work in (self._tell, self._glance)]
        trouble = asyncio.ensure_future(self._trouble())
        try:
            while time.monotonic() < until and len(self._history.failures) < _MOST_FAILURES:
                left = until - time.monotonic()
                await self._round(min(_ROUND_SECONDS, left), is_last=left <= _ROUND_SECONDS)
        finally:
            self._calm.set()
            await asyncio.wait([trouble])  # what it has killed is there again
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in (*tasks, trouble):
            if not task.cancelled() and task.exception() is not None:
                self._history.fail("all/", 0, repr(task.exception()))

    # Rounds

    async def _round(self, seconds: float, *, is_last: bool) -> None:
        self._rounds += 1
        names = [f"sandbox{number}" for number in range(max(self._plan.hands - 1, 1))]
        names += [name for name, spec in self._kinds().items() if spec is not None and not name.startswith("sandbox")]
        await asyncio.gather(*(self._guard(name, self._open(name)) for name in names if name not in self._players))
        until = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(self._guard(name, self._play(name, until)) for name in list(self._players)))
        is_clean = is_last or (self._rounds % 4 == 0 and not self._plan.is_calm)
        kept = [] if is_clean else [name for name in self._players if name.endswith(("0", "2"))]
        for name in list(self._players):
            await self._guard(name, self._empty(name) if name in kept else self._close(name))
        if self._where.has_leftovers:
            ids = [players[0].hand.sandbox.id for players in self._players.values()]
            await self._guard("all", remove_leftovers(self._where, ids))
        await asyncio.to_thread(self._census.measure)
        for leak in await asyncio.to_thread(self._census.leaks, len(self._players)):
            self._history.fail("all/", 0, f"left after round {self._rounds}: {leak}")

    async def _open(self, name: str) -> None:
        """The first sandbox has two users, the others have one each; most are of a special kind."""
        users = ("left", "right") if name == "sandbox0" and self._plan.hands > 1 else ("only",)
        subject = Subject(name, self._where, self._kinds().get(name) or SandboxSpec(), len(users))
        await subject.create(f"{name}-{self._rounds}-{self._random.randrange(10**6)}")
        hands = [
            Hand(subject, user, f"{self._plan.seed}/{self._rounds}/{name}/{user}", is_first=user == users[0])
            for user in users
        ]
        self._players[name] = [Player(hand, all_surfaces(hand), subject.generation, subject.losses) for hand in hands]

    def _kinds(self) -> dict[str, SandboxSpec | None]:
        """Sandboxes of a special kind by their names; None where there can be none."""
        world = self._where.world
        return {
            "sandbox1": small_disk(),
            "sandbox2": sleepy(),
            "networked": networked(world),
            "imaged": None if world.image is None else imaged(),
            "bucketed": None if world.storage is None else SandboxSpec(),
        }

    async def _play(self, name: str, until: float) -> None:
        players = self._players[name]
        async with asyncio.TaskGroup() as group:
            for player in players:
                group.create_task(self._watched(player, player.play(until)))
        for player in players:
            await self._watched(player, player.each("verify"))

    async def _watched(self, player: Player, work: Awaitable[None]) -> None:
        try:
            await work
        except Violation as error:
            self._history.fail(player.hand.name, player.hand.step, str(error))
            raise

    async def _empty(self, name: str) -> None:
        for player in self._players[name]:
            await self._watched(player, player.each("empty"))

    async def _close(self, name: str) -> None:
        for player in self._players[name]:
            await self._watched(player, player.each("leave"))
        players = self._players.pop(name)
        await players[0].hand.subject.destroy()

    async def _guard(self, name: str, work: Awaitable[None]) -> None:
        """A sandbox of which something is not true is given up; the others are not affected."""
        try:
            await work
        except* Violation as group:
            if not self._history.failures or name not in self._history.failures[-1].partition("\n")[0]:
                self._history.fail(f"{name}/", 0, str(group.exceptions[0]))
            await self._give_up(name)
        except* (CoveError, OSError, AssertionError, ValueError, KeyError, TypeError) as group:
            self._history.fail(f"{name}/", 0, f"raised {group.exceptions!r}")
            await self._give_up(name)

    async def _give_up(self, name: str) -> None:
        players = self._players.pop(name, None)
        self._where.has_leftovers = True
        if players:
            try:
                await players[0].hand.subject.destroy()
            except Violation as error:
                self._history.fail(f"{name}/", 0, str(error))

    # Beside the rounds

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            calls, seconds = self._history.counts.total(), time.monotonic() - self._began
            print(
                f"{seconds:6.0f} s  round {self._rounds}  {calls} calls ({calls / seconds:.0f}/s)  "
                f"{self._where.weather.count} faults  {len(self._history.failures)} failures  "
                f"{resident_bytes() / 2**20:.0f} MiB",
                file=sys.stderr,
                flush=True,
            )

    async def _glance(self) -> None:
        while True:
            await asyncio.to_thread(self._census.glance)
            await asyncio.sleep(_GLANCE_SECONDS)

    async def _trouble(self) -> None:
        """Parts of Cove are killed while it is used."""
        if self._plan.is_calm:
            return
        choose = random.Random(f"{self._plan.seed}/trouble")
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._calm.wait(), choose.uniform(*_TROUBLE_SECONDS))
                return
            await strike(self._where, choose)


async def run(plan: Plan, history: History, home: Path) -> Census:
    """One run on a state directory of its own; failures are in the history."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(partial(_complain, history))
    with running_world(with_storage=plan.seconds > _SHORT_SECONDS) as world:
        os.environ.update(world.environment())
        async with running_servers(home, world, _SERVERS[plan.way]) as servers:
            where = Where(servers, Weather(), history, world, is_calm=plan.is_calm)
            where.has_python = await _has_python(where)
            image = await _load_image(where)
            census = Census(home, servers)
            await asyncio.to_thread(census.leaks, 0)
            await Soak(plan, where, census).run()
            if image is not None:
                await image.delete()
            for growing in census.growing():
                history.fail("all/", 0, growing)
    return census


async def _load_image(where: Where) -> AsyncImage | None:
    if where.world.image is None:
        return None
    return await AsyncImage.load(where.world.image, name=IMAGE, url=where.url, api_key=where.key)


def _complain(history: History, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    history.fail("all/", 0, f"the event loop complains: {context}")


async def _has_python(where: Where) -> bool:
    """Whether code contexts can be used here."""
    subject = Subject("first", where)
    await subject.create("first")
    try:
        await subject.sandbox.run_code("1")
        return True
    except InterpreterNotReady as error:
        print(f"without code contexts: {error}", file=sys.stderr)
        return False
    finally:
        await subject.destroy()


def make_home() -> Path:
    """A state directory that sandboxes' users can reach."""
    home = Path(tempfile.mkdtemp(prefix="cove-soak-", dir="/tmp"))
    home.chmod(0o711)
    return home


def remove_home(home: Path) -> None:
    """And what the server wrote beside it."""
    shutil.rmtree(home)
    home.with_name(home.name + ".log").unlink(missing_ok=True)
